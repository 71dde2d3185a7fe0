"""Traces a target once for all sizes of a kind of call: the graph that a proof is about, and the guards under which it
is what the target computes.

Nothing is compiled here. The entrance of the tracer has a backend that keeps the graph and runs it in eager, so the
call that is traced is served, too. Unrelated sizes are not merged where they happen to be equal in that call.
"""

from __future__ import annotations

import dataclasses
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import fx

from burnish.bucketed.escapes import escape
from burnish.bucketed.form import Call, Padded, Reader
from burnish.bucketed.results import Cut, Results, results_of
from burnish.bucketed.validation import padding_error
from burnish.capture.dynamo import Backend
from burnish.capture.entry.entrance import Entrance
from burnish.capture.entry.unguarded import is_broken
from burnish.capture.graphs.eager_forms import eager_graph
from burnish.capture.graphs.eager_semantics import call_powers_of_negatives, drop_idle_dropouts
from burnish.observe.log import CompileLog
from burnish.options import Options
from burnish.shapes.strategy import Axis, Fill

_MOST_TRACES = 64  # of one target
Symbol = Any  # of sympy
Dims = tuple[Any, ...]  # the sizes of a tensor: ints, expressions, or None for those that are not known


class Unprovable(Exception):
    """Why padding was not proven to be safe."""


@dataclass(frozen=True)
class Proven:
    """A padding that changes no result but by adding to it. `needs` are the facts that the proof relies on."""

    needs: tuple[str, ...] = ()
    finite: bool = False  # results must be finite: an infinity of the padding, times zero, would be a NaN in them


class Prover(Protocol):
    def __call__(self, graph: fx.GraphModule, examples: Sequence[Any], padded: Sequence[Padded]) -> Proven:
        """Raises Unprovable."""


@dataclass
class Traced:
    """A graph with symbolic sizes. `inputs[k]` is the position among the graph's inputs of the call's tensor k."""

    inputs: tuple[int | None, ...]
    dims: tuple[Dims, ...]  # of the call's tensors; None for a dimension that the graph does not read
    outputs: tuple[tuple[Dims, Dims] | None, ...]  # sizes and strides of its results
    sizes: tuple[Dims, ...]  # of all of the graph's inputs; a number's own expression
    padded: tuple[Padded, ...]
    run: Callable[..., Any]
    refusal: str = ""
    proven: Proven | None = None
    results: Results | None = None

    def symbols(self, call: Call) -> dict[Symbol, int]:
        values: dict[Symbol, int] = {}
        for dims, shape in zip(self.dims, call.shapes, strict=True):
            for expression, size in zip(dims, shape, strict=True):
                if expression is not None and not isinstance(expression, int):
                    values[expression] = size
        return values

    def varies(self, tensor: int, dim: int) -> bool:
        expression = self.dims[tensor][dim]
        return expression is not None and not isinstance(expression, int)

    def cuts(self, values: Mapping[Symbol, int]) -> list[Cut]:
        """Sizes and strides that eager gives the results, for these sizes (`symbols`)."""
        known = (output or ((), ()) for output in self.outputs)
        return [(_numbers(sizes, values), _numbers(strides, values)) for sizes, strides in known]


def _numbers(expressions: Dims, values: Mapping[Symbol, int]) -> tuple[int, ...]:
    return tuple(e if isinstance(e, int) else int(e.xreplace(values)) for e in expressions)


class Tracer:
    """`fitting` finds the graph for a call among those traced so far, `trace` traces another."""

    def __init__(
        self,
        target: Callable[..., Any],
        options: Options,
        name: str,
        reader: Reader,
        prover: Prover,
        axes: Sequence[Axis],
        fills: Mapping[str, Fill],
    ) -> None:
        settings = dataclasses.replace(
            options,
            dynamic=True,
            gate=False,
            verify="off",
            sample=0.0,
            background=False,
            budget=None,
            warm_start=False,
            dump_dir=None,
            fault=None,
        )
        self._reader = reader
        self._prover = prover
        self._axes = tuple(axes)
        self._fills = fills
        self._now = threading.local()
        self._known: dict[int, tuple[Any, Traced]] = {}  # by the id of the compiled code, which is kept
        self.log = CompileLog(name=f"{name} (traced for a proof)")
        self.entrance = Entrance(
            target,
            settings,
            self.log,
            backend=_weak_backend(self),
            raced=False,
            recompiles=_MOST_TRACES,
            for_proof=True,
        )
        self.traces = 0

    def fitting(self, call: Call) -> Traced | None:
        """The traced graph whose guards pass for a call. Nothing is traced."""
        entry = self.entrance.fitting(call.args, call.kwargs)
        if entry is None:
            return None
        known = self._known.get(id(entry.code))
        return known[1] if known is not None and known[0] is entry.code else None

    def trace(self, call: Call) -> tuple[Any, Traced]:
        """Make the call, tracing it. Returns its result, and the graph, which may have a refusal."""
        self.traces += 1
        self._now.call, self._now.ran = call, []
        try:
            result = self.entrance.call(*call.args, **call.kwargs)
            ran = self._now.ran
        finally:
            self._now.call, self._now.ran = None, []
        return result, self._noted(call, result, ran)

    def _noted(self, call: Call, result: Any, ran: list[tuple[Traced, Sequence[Any], Sequence[Any]]]) -> Traced:
        entry = self.entrance.fitting(call.args, call.kwargs)
        if entry is None or len(ran) != 1 or is_broken(entry.code):
            breaks = self.log.graph_breaks
            why = f"a graph break at {breaks[-1]}" if breaks else "it is not one graph"
            traced = Traced((), (), (), (), (), _nothing, why)
        else:
            traced, inputs, outputs = ran[0]
            if traced.results is None and not traced.refusal:
                found = results_of(result, outputs)
                if not isinstance(found, str):
                    found = escape(entry.code) or found
                if isinstance(found, str):
                    traced.refusal = found
                else:
                    traced.results = found
                    traced.refusal = self._checked(traced, call, inputs, outputs) if traced.padded else ""
        if entry is not None:
            self._known[id(entry.code)] = entry.code, traced
        return traced

    def _checked(self, traced: Traced, call: Call, inputs: Sequence[Any], outputs: Sequence[Any]) -> str:
        """Why the results of this call are not what the trace says."""
        if traced.proven is not None and traced.proven.finite:
            for x in outputs:
                if x.device.type != "cpu":
                    return "results on a GPU are not checked for a NaN from the padding"
                if not x.is_floating_point():
                    return f"a NaN from the padding could not be seen in a result of type {str(x.dtype)[6:]}"
        for position, x in zip(traced.inputs, call.tensors, strict=True):
            if position is not None and inputs[position] is not x:
                return "an argument is not an input of the graph"
        memory = {x.untyped_storage().data_ptr() for x in inputs if isinstance(x, torch.Tensor) and x.numel()}
        for x, cut in zip(outputs, traced.cuts(traced.symbols(call)), strict=True):
            if x.numel() and x.untyped_storage().data_ptr() in memory:
                return "a result shares memory with an argument"
            if tuple(x.shape) != cut[0]:
                return "a result does not have the traced sizes"
        with torch.no_grad():
            wrong = padding_error(traced.run, inputs, traced.padded, traced.sizes, traced.cuts)
        return f"a padded run gives other results: {wrong}" if wrong else ""

    def restart(self) -> None:
        """The original has changed."""
        self.entrance.restart()
        self._known.clear()

    # -- the backend ------------------------------------------------------------------------------------------

    def _backend(self, graph: fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        drop_idle_dropouts(graph)
        call_powers_of_negatives(graph)
        run = eager_graph(graph)
        traced, now = self._graph(graph, run), self._now
        if not traced.refusal:
            traced.padded = tuple(self._padded(traced))
        if traced.padded:
            try:
                traced.proven = self._prover(graph, example_inputs, traced.padded)
            except Unprovable as why:
                traced.refusal = str(why)

        def call(*args: Any) -> Any:
            outputs = run(*args)
            ran = getattr(now, "ran", None)
            if ran is not None:
                ran.append((traced, args, outputs))
            return outputs

        return call

    def _graph(self, graph: fx.GraphModule, run: Callable[..., Any]) -> Traced:
        call: Call = self._now.call
        sources = self.entrance.sources(call.args, call.kwargs)
        placeholders = graph.graph.find_nodes(op="placeholder")
        named = {_source(node): k for k, node in enumerate(placeholders)}
        inputs = tuple(named.get(sources.get(place, "")) for place in call.places)
        dims = tuple(
            (None,) * x.dim() if k is None else _sizes(_example(placeholders[k]))
            for k, x in zip(inputs, call.tensors, strict=True)
        )
        (output,) = graph.graph.find_nodes(op="output")
        flat = output.args[0] if isinstance(output.args[0], (tuple, list)) else output.args
        outputs = tuple(_output(x) for x in flat)
        sizes = tuple(_sizes(_example(node)) for node in placeholders)
        traced = Traced(inputs, dims, outputs, sizes, (), run)
        known = set(traced.symbols(call))
        for each, requires_grad in zip(outputs, map(_requires_grad, flat), strict=True):
            if requires_grad:
                traced.refusal = "results require gradients"
            elif each is None:
                traced.refusal = "a result is a number, which may depend on sizes"
            elif any(not isinstance(e, int) and not e.free_symbols <= known for part in each for e in part):
                traced.refusal = "the size of a result depends on more than the sizes of the arguments"
        return traced

    def _padded(self, traced: Traced) -> list[Padded]:
        call: Call = self._now.call
        found = []
        for k, (position, place) in enumerate(zip(traced.inputs, call.places, strict=True)):
            name = self._reader.name(place)
            dims = {
                axis.dim: axis.name
                for axis in self._axes
                if axis.is_of(name, call.tensors[k].dim()) and traced.varies(k, axis.dim)
            }
            if position is not None and dims:
                found.append(Padded(position, name, dims, self._fills.get(name, 0)))
        return found


def _weak_backend(tracer: Tracer) -> Backend:
    """Dynamo keeps every backend, which must not keep the model alive."""
    reference = weakref.ref(tracer)

    def backend(graph: fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        alive = reference()
        assert alive is not None  # it makes the call
        return alive._backend(graph, example_inputs)

    return backend


def _nothing(*args: Any) -> tuple[Any, ...]:
    return ()


def _sizes(example: Any) -> Dims:
    if isinstance(example, torch.Tensor):
        return _expressions(example.shape)
    return (_plain(example),) if isinstance(example, (int, torch.SymInt)) else ()


def _source(node: fx.Node) -> str:
    source = getattr(node.meta.get("grapharg"), "source", None)
    name = getattr(source, "name", "")
    return str(name() if callable(name) else name)


def _example(node: fx.Node) -> Any:
    return node.meta.get("example_value")


def _output(node: Any) -> tuple[Dims, Dims] | None:
    value = node.meta.get("example_value") if isinstance(node, fx.Node) else None
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
        return None
    return _expressions(value.shape), _expressions(value.stride())


def _requires_grad(node: Any) -> bool:
    return isinstance(node, fx.Node) and getattr(_example(node), "requires_grad", False)


def _expressions(sizes: Sequence[Any]) -> Dims:
    return tuple(_plain(size) for size in sizes)


def _plain(size: Any) -> Any:
    if isinstance(size, int):
        return size
    expression = size.node.expr
    return int(expression) if expression.is_number else expression
