"""The function that TorchDynamo traces in place of a burnish wrapper that lies inside a larger traced function."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

_INLINED = "_torchdynamo_inline"  # as torch.compile's own wrappers say it


def traced_as(function: Callable[..., Any], wrapper: Callable[..., Any]) -> Callable[..., Any]:
    """`wrapper`, which need not ask in every call whether it is being traced."""
    setattr(wrapper, _INLINED, function)
    return wrapper
