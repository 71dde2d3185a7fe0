"""Replaces a burnish wrapper by another function when TorchDynamo traces it inside a larger function."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

_INLINED = "_torchdynamo_inline"  # the marker of torch.compile's own wrappers


def traced_as(function: Callable[..., Any], wrapper: Callable[..., Any]) -> Callable[..., Any]:
    """`wrapper`, without a check in every call whether it is being traced."""
    setattr(wrapper, _INLINED, function)
    return wrapper
