"""The eager form of a captured graph: a function that runs its ops one by one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from burnish.capture.autograd.checkpoints import drawing_alike_in_checkpoints
from burnish.capture.autograd.custom_functions import recording_custom_backwards
from burnish.capture.graphs.called import enters_contexts, function_name
from burnish.capture.graphs.dispatch_state import leaving_contexts
from burnish.capture.graphs.eager_semantics import (
    call_powers_of_negatives,
)
from burnish.torch_private.dispatch import (
    DisableAutocast,
)
from burnish.torch_private.graphs import LazyGraphModule
from burnish.trust.eager_interpreter import ChunkedGraph


def eager_graph(graph: fx.GraphModule) -> Callable[..., Any]:
    """The graph's own ops, one by one. If one raises, the thread's dispatch state (autocast, functorch layers) is
    restored, because a captured graph enters such contexts with plain calls, not with `with`."""
    graph = recording_custom_backwards(drawing_alike_in_checkpoints(graph))
    forward = _forward_of(graph)
    if any(function_name(node) == "_make_dual" for node in graph.graph.nodes):
        forward = _recording_tangents(forward)
    return leaving_contexts(forward) if enters_contexts(graph.graph) else forward


def traced_graph(graph: fx.GraphModule) -> Callable[..., Any]:
    """The ops of a graph that AOTAutograd made."""
    call_powers_of_negatives(graph)
    return without_autocast(eager_graph(graph))


def chunked(graph: fx.GraphModule) -> Callable[..., Any]:
    """The same, passing on each result separately so that it can be compared and freed."""
    return without_autocast(lambda *arguments: ChunkedGraph(graph).run(*arguments))


def without_autocast(run: Callable[..., Any]) -> Callable[..., Any]:
    """For AOTAutograd's graphs, which already contain autocast's casts."""

    def call(*args: Any) -> Any:
        with DisableAutocast():
            return run(*args)

    return call


def _recording_tangents(graph: Callable[..., Any]) -> Callable[..., Any]:
    """Of a graph with forward-mode differentiation. Before torch 2.13 inference mode records no tangents, but a
    captured graph needs them."""

    def run(*args: Any) -> Any:
        if not torch.is_inference_mode_enabled():
            return graph(*args)
        with torch.inference_mode(False), torch.no_grad():
            return graph(*args)

    return run


def _forward_of(graph: fx.GraphModule) -> Callable[..., Any]:
    """The graph's `forward`. Dynamo's graphs generate their Python at the first call; a method bound before that would
    check in each call whether it was generated."""
    if not isinstance(graph, LazyGraphModule):
        return graph.forward
    forward: Callable[..., Any] | None = None

    def run(*args: Any) -> Any:
        nonlocal forward
        if forward is None:
            LazyGraphModule.force_recompile(graph)
            forward = graph.forward
        return forward(*args)

    return run
