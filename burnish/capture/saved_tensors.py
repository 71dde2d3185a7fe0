"""Autograd runs beside the user's own must not go through his hooks on saved tensors (checkpointing, offloading)."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch


def hooks_are_active() -> bool:
    top = getattr(torch._C._autograd, "_top_saved_tensors_default_hooks", None)
    return top is None or top(True) is not None


def own_saved_tensors() -> AbstractContextManager[Any]:
    """Within it, tensors are saved as they are, whatever hooks are active around it."""
    if not hooks_are_active():
        return nullcontext()  # nor the cost of any
    return torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor, lambda tensor: tensor)
