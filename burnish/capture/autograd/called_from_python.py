"""Graph breaks at checkpoints and custom autograd functions that Dynamo would trace incorrectly. Python calls them
instead."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import fx

from burnish.capture.autograd.checkpoints import note_arguments
from burnish.capture.autograd.custom_functions import note_once_differentiable
from burnish.capture.autograd.linearity import is_linear
from burnish.capture.graphs.written_memory import memory_of_values, memory_written_in, requires_gradients
from burnish.torch_private.patches.left_to_eager import (
    asking_of_checkpoints,
    asking_of_functions,
    is_once_differentiable,
)

_WRITES = "a checkpoint whose region writes to a tensor from outside: eager writes again when it runs the region again"

_NOT_LINEAR = "a custom autograd function whose backward is not known to be linear in its gradients"


@contextlib.contextmanager
def breaking_graphs() -> Iterator[None]:
    """While open, Dynamo breaks the graph at these calls."""
    with asking_of_checkpoints(_why_not_region), asking_of_functions(_why_not_function):
        yield


def _why_not_region(node: fx.Node, region: fx.GraphModule, given: list[torch.Tensor]) -> str:
    note_arguments(node, region, given)
    if not torch.is_grad_enabled() or not requires_gradients(node):
        return ""  # it runs once
    outside = memory_of_values(*region.graph.find_nodes(op="placeholder"))
    return _WRITES if outside & memory_written_in(region) else ""


def _why_not_function(program: Callable[..., Any], forward: fx.GraphModule, backward: fx.GraphModule) -> str:
    (returned,) = forward.graph.find_nodes(op="output")
    saved = returned.args[0][1]  # beside the results
    gradients = len(backward.graph.find_nodes(op="placeholder")) - len(saved)
    if is_once_differentiable(program):
        note_once_differentiable(backward, gradients)
    return "" if is_linear(backward, gradients) else _NOT_LINEAR
