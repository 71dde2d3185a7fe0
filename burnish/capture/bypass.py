"""The way around Dynamo for an object all of whose graphs eager serves better: its guards would cost for nothing.

Eager is always right, so that a look now and then is enough to notice inputs that are worth compiling for.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

import torch

_LOOKS_EVERY = 16  # calls
_MOST_KNOWN = 64


def bypass(target: Callable[..., Any], through: Callable[..., Any]) -> Callable[..., Any]:
    """`target`, until inputs come along of a kind not seen before: `through` is shown those once."""
    known: set[Hashable] = set()
    left = 1

    def call(*args: Any, **kwargs: Any) -> Any:
        nonlocal left
        left -= 1
        if left > 0:
            return target(*args, **kwargs)
        left = _LOOKS_EVERY
        kind = kind_of(args, kwargs)
        if kind in known or len(known) > _MOST_KNOWN:
            return target(*args, **kwargs)
        known.add(kind)
        return through(*args, **kwargs)

    return call


def kind_of(args: tuple[Any, ...], kwargs: dict[str, Any], grad: bool | None = None) -> Hashable:
    """Sizes and types: enough to tell most calls apart, and little work. `grad`: as the calling thread has it."""
    values = (*args, *kwargs.values())
    grad = torch.is_grad_enabled() if grad is None else grad
    return grad, tuple([x.shape if isinstance(x, torch.Tensor) and not x.is_nested else type(x) for x in values])
