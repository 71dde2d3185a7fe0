"""A model's graph with some sizes as symbols, to prove that they may be padded (burnish/shapes/padding.py). Nothing is
compiled, and nothing of the model runs."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx

from burnish.assumptions import bare_symbol
from burnish.capture.entry.diagnosis import CONTROL_FLOW
from burnish.capture.entry.unguarded import input_sources
from burnish.capture.graphs.decompositions import decomposition_table
from burnish.errors import CompileError
from burnish.ir.expr import Dim, Sym, of
from burnish.ir.graph import Node
from burnish.lower.captured import Captured
from burnish.lower.importer import import_graph
from burnish.shapes.analysis import Facts
from burnish.shapes.content import Number
from burnish.shapes.padding import Proof, prove
from burnish.shapes.same_sizes import unify
from burnish.torch_private import dynamo
from burnish.torch_private.aot import aot_module_simplified
from burnish.torch_private.dispatch import disable_current_modes

Key = str | int  # an argument: its keyword, or its place
_STATIC = re.compile(r"\._(parameters|buffers)\[")
_ARGUMENT = re.compile(r"^L\['(\w+)'\](?:\['?(\w+)'?\])?$")
_LINE = re.compile(r'File "([^"]+)", line (\d+)')


@dataclass(frozen=True)
class ProofGraph:
    """A captured graph and its facts. `symbols` has the symbol of each dimension that was asked for, `positions` the
    graph's input that an argument became. `problem` says why there is no graph, or which size is not a symbol."""

    captured: Captured | None = None
    facts: Facts = field(default_factory=Facts)
    symbols: Mapping[str, str] = field(default_factory=dict)
    positions: Mapping[Key, int] = field(default_factory=dict)
    problem: str = ""

    def prove(self, names: Sequence[str] | None = None, fills: Mapping[Key, Number] | None = None) -> Proof:
        """Whether the dimensions of these names (all, if none are given) may be padded. `fills` are by argument."""
        if self.captured is None:
            raise CompileError("capture", self.problem)
        padded = {self.symbols[name]: name for name in (self.symbols if names is None else names)}
        by_position = {self.positions[key]: value for key, value in (fills or {}).items() if key in self.positions}
        return prove(self.captured.graph, padded, by_position, self.facts)


class _Enough(Exception):
    """Leaves AOTAutograd, or the traced call: the graph is here."""


def captured_for_proof(
    fn: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    dims: Mapping[str, Mapping[Key, int]],
) -> ProofGraph:
    """Trace a call once. `dims` names each dimension that varies, with the arguments that have it: {"sequence":
    {"input_ids": 1, "attention_mask": 1}}; they must have the same size there in each call. A call that records
    gradients gives the graph of forward and backward in one: its results are the call's and then the gradients."""
    keyed: dict[Key, Any] = dict(enumerate(args))
    keyed.update(kwargs or {})
    marked = {key: _marked(value, [d[key] for d in dims.values() if key in d]) for key, value in keyed.items()}
    keeper = _Keeper()
    call = [marked[n] for n in range(len(args))]
    dynamo.reset()
    try:
        dynamo.optimize(backend=keeper.backend, nopython=True)(fn)(*call, **{k: marked[k] for k in kwargs or {}})
    except _Enough:
        pass
    except Exception as error:
        return ProofGraph(problem=_first_line(error))
    finally:
        dynamo.reset()
    if keeper.graph is None:
        return ProofGraph(problem="the call has no operation on tensors")
    return _described(keeper, keeper.graph, marked, dims)


def graph_for_proof(graph: fx.GraphModule, examples: Sequence[Any]) -> ProofGraph:
    """The same for a graph that a backend gets from Dynamo, within the backend. Its inputs are those of the graph."""
    keeper = _Keeper()
    try:
        keeper.backend(graph, examples)
    except CONTROL_FLOW:
        raise  # Dynamo traces the frame again
    except Exception as error:
        return ProofGraph(problem=_first_line(error))
    if keeper.graph is None:
        return ProofGraph(problem="the call has no operation on tensors")
    return _described(keeper, keeper.graph, {}, {})


def _marked(value: Any, dims: Sequence[int]) -> Any:
    """Another tensor of the same elements, with sizes that are traced as symbols."""
    if not isinstance(value, torch.Tensor) or not dims:
        return value
    fresh = value.detach().requires_grad_(value.requires_grad)
    for dim in dims:
        dynamo.mark_dynamic(fresh, dim)
    return fresh


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else ''}"


class _Keeper:
    """A backend that keeps the first graph."""

    def __init__(self) -> None:
        self.graph: fx.GraphModule | None = None
        self.examples: list[Any] = []
        self.sources: list[str] = []

    def backend(self, graph: fx.GraphModule, examples: Sequence[Any]) -> Callable[..., Any]:
        self.examples = list(examples)
        self.sources = list(input_sources(graph) or [""] * len(self.examples))
        keep: Any = self._keep
        with contextlib.suppress(_Enough):
            aot_module_simplified(
                graph,
                examples,
                fw_compiler=keep,
                bw_compiler=keep,
                inference_compiler=keep,
                partition_fn=keep,
                decompositions=decomposition_table(),
                keep_inference_input_mutations=True,
            )

        def leave(*args: Any) -> Any:
            raise _Enough

        return leave

    def _keep(self, graph: fx.GraphModule, inputs: Sequence[Any], **options: Any) -> Any:
        """The graph of an inference; of a training step, the joint one, which is not partitioned."""
        self.graph = graph
        raise _Enough


def _described(
    keeper: _Keeper, graph: fx.GraphModule, marked: Mapping[Key, Any], dims: Mapping[str, Mapping[Key, int]]
) -> ProofGraph:
    try:
        with disable_current_modes():
            captured = import_graph(graph)
    except CompileError as error:
        return ProofGraph(problem=str(error))
    positions = {
        key: place
        for key, value in marked.items()
        if isinstance(value, torch.Tensor)
        for place, example in enumerate(keeper.examples)
        if example is value
    }
    symbols: dict[str, Sym] = {}
    same: dict[str, Dim] = {}
    for name, places in dims.items():
        for key, dim in places.items():
            if (position := positions.get(key)) is None:
                continue  # an argument that nothing reads
            found = symbol_of(captured, position, dim)
            if found is None:
                return ProofGraph(captured, problem=f"the dimension {name} of argument {key} is no symbol")
            if symbols.setdefault(name, found) != found:
                same[found.name] = of(symbols[name])
    if len({s.name for s in symbols.values()} - same.keys()) < len(symbols):
        return ProofGraph(captured, problem=f"{' and '.join(symbols)} are one size in the model, or in the example")
    unify(captured.graph, same)
    facts = Facts(_names(keeper), _static(keeper), _ranges(keeper), _lines(captured))
    return ProofGraph(captured, facts, {name: s.name for name, s in symbols.items()}, positions)


def symbol_of(captured: Captured, position: int, dim: int) -> Sym | None:
    """The symbol that a dimension of an input is; None if it is a number."""
    node = captured.graph.inputs[position]
    return bare_symbol(node.shape[dim]) if isinstance(node, Node) else None


def _names(keeper: _Keeper) -> dict[int, str]:
    found: dict[int, str] = {}
    for position, source in enumerate(keeper.sources):
        if (argument := _ARGUMENT.match(source)) is not None:
            found[position] = argument.group(2) or argument.group(1)
    return found


def _static(keeper: _Keeper) -> frozenset[int]:
    return frozenset(n for n, source in enumerate(keeper.sources) if _STATIC.search(source))


def _ranges(keeper: _Keeper) -> dict[int, tuple[Number, Number]]:
    """Of the whole numbers that modules hold, such as positions."""
    found: dict[int, tuple[Number, Number]] = {}
    for position in _static(keeper):
        held = keeper.examples[position]
        if isinstance(held, torch.Tensor) and not held.is_floating_point() and not held.is_complex() and held.numel():
            found[position] = (held.min().item(), held.max().item())
    return found


def _lines(captured: Captured) -> dict[int, str]:
    """The line of the user's code that each node was made for: a call's nodes are those since the call before."""
    lines: dict[int, str] = {}
    last = -1
    for call, value in captured.values.items():
        made = [n.id for n in _nodes(value)]
        trace = _LINE.findall(call.meta.get("stack_trace") or "")
        if made and max(made) > last:
            if trace:
                path, number = trace[-1]
                text = f"{'/'.join(path.split('/')[-2:])}:{number}"
                lines |= dict.fromkeys(range(last + 1, max(made) + 1), text)
            last = max(made)
    return lines


def _nodes(value: Any) -> list[Node]:
    if isinstance(value, Node):
        return [value]
    return [n for v in value for n in _nodes(v)] if isinstance(value, list | tuple) else []
