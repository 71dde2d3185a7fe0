"""Facts about a captured graph for the gate: which inputs it writes, whether it draws random numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from burnish.capture.graphs.assume import as_captured, assumptions_of
from burnish.capture.graphs.called import operation_name
from burnish.capture.graphs.written_memory import writes
from burnish.torch_private.dispatch import is_traceable_wrapper_subclass
from burnish.trust.exactness import BITWISE, DEPENDS_ON_TYPE, EXACT, EXACT_IN_INTEGERS, ROUNDED
from burnish.trust.gate import GraphFacts
from burnish.trust.record import GraphKind


def draws_random_numbers(node: fx.Node) -> bool:
    """Attention is tagged as random because of its dropout; without dropout it draws nothing."""
    if torch.Tag.nondeterministic_seeded not in getattr(node.target, "tags", ()):
        return False
    names = [argument.name for argument in node.target._schema.arguments]  # type: ignore[union-attr]
    if "dropout_p" not in names:
        return True
    position = names.index("dropout_p")
    dropout = node.args[position] if position < len(node.args) else node.kwargs.get("dropout_p", 0.0)
    return not (isinstance(dropout, (int, float)) and dropout == 0)


def coarsest_type(graph: fx.GraphModule, known: torch.dtype) -> torch.dtype:
    """The least exact floating-point type among `known` and the graph's values."""
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
    """`metadata` is AOTAutograd's, in which the graph's own tensors come before its inputs. `names` are the inputs'
    sources in the user's program; for the rest see `assumptions_of`."""
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
        exactness=result_exactness(graph),
        depends_on_type=depends_on_type(graph),
        process_wide=any("_enter_dual_level" in operation_name(node) for node in graph.graph.nodes),
        differentiates=any("_grad_increment_nesting" in operation_name(node) for node in graph.graph.nodes),
        sizes=_sizes(graph, inputs),
    )


# -- how exact its results are ------------------------------------------------------------------------------------


def depends_on_type(graph: fx.GraphModule) -> bool:
    """Whether the graph's meaning, not just its precision, would change in float64."""
    return any(operation_name(node) in DEPENDS_ON_TYPE or _views_bits(node) for node in graph.graph.nodes)


def result_exactness(graph: fx.GraphModule) -> tuple[int, ...]:
    """For each returned tensor, whether it has exactly one right value. Empty for graphs that write into tensors,
    because a node's value may change later."""
    found: dict[fx.Node, int] = {}
    for node in graph.graph.nodes:
        if writes(node):
            return ()
        if node.op == "output":
            flat = node.args[0] if isinstance(node.args[0], (tuple, list)) else node.args
            return tuple(found[x] for x in flat if isinstance(x, fx.Node) and isinstance(_example(x), torch.Tensor))
        found[node] = min([_own_exactness(node), *(found[x] for x in node.all_input_nodes)])
    return ()


def _own_exactness(node: fx.Node) -> int:
    """The exactness of a node's operation on exact operands."""
    if node.op in ("placeholder", "get_attr"):
        return BITWISE
    if isinstance(_example(node), (int, torch.SymInt, torch.SymBool)):
        return BITWISE  # a size
    values = [_example(x) for x in (node, *node.all_input_nodes)]
    tensors = [v for v in values if isinstance(v, torch.Tensor)]
    if any(v.is_complex() for v in tensors):
        return ROUNDED
    name = operation_name(node)
    if name == "round" and len(node.args) + len(node.kwargs) > 1:
        return ROUNDED  # to decimals
    if name in EXACT:
        return EXACT[name] if tensors or name == "getitem" else ROUNDED
    whole = bool(tensors) and not any(v.is_floating_point() for v in tensors)
    return BITWISE if whole and name in EXACT_IN_INTEGERS else ROUNDED


def _example(node: fx.Node) -> Any:
    return node.meta.get("example_value", node.meta.get("val"))


def _views_bits(node: fx.Node) -> bool:
    named = operation_name(node) in ("view", "view_dtype")
    return named and any(isinstance(x, torch.dtype) for x in (*node.args, *node.kwargs.values()))


def _sizes(graph: fx.GraphModule, inputs: Sequence[Any]) -> tuple[int, ...]:
    """Positions of symbols on which the size of any tensor in the graph depends."""
    symbols = {i: x.node.expr for i, x in enumerate(inputs) if isinstance(x, torch.SymInt)}
    if not symbols:
        return ()
    values = [node.meta.get("example_value") for node in graph.graph.nodes]
    tensors = [x for x in (*values, *inputs) if isinstance(x, torch.Tensor)]
    every: list[Any] = [size for tensor in tensors for size in tensor.shape]
    sizes = [size.node.expr for size in every if isinstance(size, torch.SymInt)]
    free = {symbol for size in sizes for symbol in size.free_symbols}
    return tuple(i for i, expression in symbols.items() if expression in free)


def _signature(inputs: Sequence[Any], static: frozenset[int]) -> str:
    shown = [_shown(x) for i, x in enumerate(inputs) if i not in static]
    return ", ".join(text for text in shown if text) or "nothing"


def _shown(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        sizes = ", ".join(str(size) for size in value.shape)
        return f"{str(value.dtype).removeprefix('torch.')}[{sizes}]"
    return str(value) if isinstance(value, (int, float, torch.SymInt, torch.SymFloat)) else ""


def _module_calls(graph: fx.GraphModule) -> int:
    """The number of module calls in the graph: eager makes them in every call."""
    return len({name for node in graph.graph.nodes for name in node.meta.get("nn_module_stack", ())})
