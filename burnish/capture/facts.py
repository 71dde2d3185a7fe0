"""What torch knows of a captured graph that the gate has to: which inputs it writes, whether it draws numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from burnish.capture.assume import as_captured, assumptions_of
from burnish.trust.gate import GraphFacts
from burnish.trust.record import GraphKind


def draws_random_numbers(node: fx.Node) -> bool:
    """Attention is marked as drawing, for its dropout: without any, it does not."""
    if torch.Tag.nondeterministic_seeded not in getattr(node.target, "tags", ()):
        return False
    names = [argument.name for argument in node.target._schema.arguments]  # type: ignore[union-attr]
    if "dropout_p" not in names:
        return True
    position = names.index("dropout_p")
    dropout = node.args[position] if position < len(node.args) else node.kwargs.get("dropout_p", 0.0)
    return not (isinstance(dropout, (int, float)) and dropout == 0)


def coarsest_type(graph: fx.GraphModule, known: torch.dtype) -> torch.dtype:
    """Of `known` and all that the graph computes, the least exact floating-point type."""
    for node in graph.graph.nodes:
        value = node.meta.get("val")
        for x in value if isinstance(value, (tuple, list)) else (value,):
            if isinstance(x, torch.Tensor) and x.is_floating_point() and x.itemsize >= 2:
                known = max(known, x.dtype, key=lambda dtype: torch.finfo(dtype).eps)
    return known


def graph_facts(
    graph: fx.GraphModule,
    inputs: Sequence[Any],
    kind: GraphKind,
    metadata: Any,
    draws: bool,
    coarsest: torch.dtype,
    names: Sequence[str] | None = None,
    records_gradients: bool = False,
    offsets_matter: bool = False,
) -> GraphFacts:
    """`metadata` is AOTAutograd's, in which what the graph itself holds comes before its inputs. `names` say where in
    the user's program they come from; for the rest see `assumptions_of`."""
    held = len(list(graph.parameters())) + len(list(graph.buffers()))
    changed, static, reason = frozenset[int](), frozenset[int](), ""
    if metadata is not None:
        written = {i for i, info in enumerate(metadata.input_info) if info.mutates_data or info.mutates_metadata}
        changed = frozenset(i - held for i in written if i >= held)
        static = frozenset(i - held for i in metadata.static_input_indices or () if i >= held)
        if any(i < held for i in written):
            reason = "it changes state that the graph holds"
        elif metadata.tokens:
            reason = "it has side effects"
    else:
        reason = "AOTAutograd failed on it"
    if any(isinstance(x, torch.Tensor) and is_traceable_wrapper_subclass(x) for x in inputs):
        reason = "it takes tensor subclasses"
    assumptions = assumptions_of(
        as_captured(graph, inputs), names, changed, records_gradients=records_gradients, offsets_matter=offsets_matter
    )
    return GraphFacts(
        kind,
        _signature(inputs, static),
        changed,
        static,
        draws,
        coarsest,
        _module_calls(graph),
        reason,
        assumptions,
    )


def _signature(inputs: Sequence[Any], static: frozenset[int]) -> str:
    shown = [_shown(x) for i, x in enumerate(inputs) if i not in static]
    return ", ".join(text for text in shown if text) or "nothing"


def _shown(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        sizes = ", ".join(str(size) for size in value.shape)
        return f"{str(value.dtype).removeprefix('torch.')}[{sizes}]"
    return str(value) if isinstance(value, (int, float, torch.SymInt, torch.SymFloat)) else ""


def _module_calls(graph: fx.GraphModule) -> int:
    """How many modules were called on the way: eager calls each of them again every time."""
    return len({name for node in graph.graph.nodes for name in node.meta.get("nn_module_stack", ())})
