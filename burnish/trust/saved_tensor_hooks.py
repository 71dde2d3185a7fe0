"""The user's hooks on saved tensors (checkpointing, offloading), switched off for burnish's own runs of autograd."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from burnish.torch_private.aot import top_saved_tensors_default_hooks

# The innermost pair, or None, given True; asked in every call.
innermost_hooks: Callable[[bool], Any] = top_saved_tensors_default_hooks or (lambda even_in_tracing: None)  # type: ignore


def hooks_are_active() -> bool:
    return top_saved_tensors_default_hooks is None or top_saved_tensors_default_hooks(True) is not None


def own_saved_tensors() -> AbstractContextManager[Any]:
    """Within it, tensors are saved as they are, whatever hooks are active around it."""
    if not hooks_are_active():
        return nullcontext()  # nor the cost of any
    return torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor, lambda tensor: tensor)
