"""Restores the thread's dispatch state (autocast, functorch layers) if a captured graph raises."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from torch.autograd import forward_ad

from burnish.torch_private.dispatch import (
    ForceDispatchKeyGuard,
    dispatch_tls_local_exclude_set,
    dispatch_tls_local_include_set,
    exit_dual_level,
    get_dynamic_layer_stack_depth,
    pop_dynamic_layer_stack_and_undo_to_depth,
)


def leaving_contexts(graph: Callable[..., Any]) -> Callable[..., Any]:
    def run(*args: Any) -> Any:
        with left_if_it_raises():
            return graph(*args)

    return run


@contextlib.contextmanager
def left_if_it_raises() -> Iterator[None]:
    depth = get_dynamic_layer_stack_depth()
    is_forward_mode = forward_ad._current_level >= 0
    included = dispatch_tls_local_include_set()
    excluded = dispatch_tls_local_exclude_set()
    with ForceDispatchKeyGuard(included, excluded):
        try:
            yield
        except BaseException:
            # torch 2.11 pops the last one, and then fails because it is missing
            with contextlib.suppress(RuntimeError):
                pop_dynamic_layer_stack_and_undo_to_depth(depth)
            if not is_forward_mode:  # there is at most one level of it in the process
                with contextlib.suppress(RuntimeError):  # none is open
                    exit_dual_level(level=0)
            raise
