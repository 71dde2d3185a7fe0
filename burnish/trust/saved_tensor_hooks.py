"""Disables the user's hooks on saved tensors (checkpointing, offloading) during burnish's own runs of autograd."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from burnish.torch_private.aot import top_saved_tensors_default_hooks

# The innermost pair of hooks, or None, given True; every call reads it.
innermost_hooks: Callable[[bool], Any] = top_saved_tensors_default_hooks or (lambda even_in_tracing: None)  # type: ignore


def hooks_are_active() -> bool:
    return top_saved_tensors_default_hooks is None or top_saved_tensors_default_hooks(True) is not None


def own_saved_tensors() -> AbstractContextManager[Any]:
    """In this context tensors are saved unchanged, whatever hooks are active outside."""
    if not hooks_are_active():
        return nullcontext()  # nor the cost of any
    return torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor, lambda tensor: tensor)
