"""An interpreter for AOTAutograd's graphs: runs op by op, passes on each result as soon as it exists, and frees it.

It is used to compare gradients, which together are as large as their model. A single gradient can be large, too (that
of a vocabulary, through a product and a lookup). The nodes that lead only to such a gradient run last and in chunks, by
slicing their operands.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, TypeVar

import torch
from torch import fx

from burnish.runtime.process import give_back_freed_memory

_LARGE = 32 << 20  # bytes of a result above which it is computed in chunks
_CHUNK = 8 << 20
_GIVEN_BACK = 16 << 20  # bytes of a dead value above which its memory is returned to the system

T = TypeVar("T")
aten = torch.ops.aten
# A result's number and its value, or a chunk of it: its dimension and start index.
Part = tuple[int, Any, int, int | None]
# Called with each part, and with the same part of the second run.
Handed = Callable[[int, Any, int, int | None, Any], None]
Operands = dict[int, int]  # the arguments that are sliced, and the dimension of each


class ChunkedGraph:
    """`run` passes on every result of `graph`, and returns nothing."""

    def __init__(self, graph: fx.GraphModule) -> None:
        """Raises NotImplementedError if the graph is not a plain list of operations."""
        self._graph = graph
        self._cut: dict[fx.Node, int] = {}  # nodes that exist in chunks only, and along which dimension
        nodes = list(graph.graph.nodes)
        if any(node.op not in ("placeholder", "get_attr", "call_function", "output") for node in nodes):
            raise NotImplementedError("a graph with modules")
        (returned,) = nodes[-1].args
        self._results: Sequence[Any] = returned if isinstance(returned, (tuple, list)) else (returned,)
        for result in self._results:
            if isinstance(result, fx.Node) and _bytes(result) > _LARGE and len(result.users) == 1:
                self._cut |= _best_cut(result)
        self._inputs = [node for node in nodes if node.op == "placeholder"]
        self._steps = [node for node in nodes if node.op in ("get_attr", "call_function") and node not in self._cut]
        self._handed_after = _by_last(nodes, {k: self._sources(x) for k, x in enumerate(self._results)})
        self._dead_after = _by_last(nodes, self._readers())

    def _sources(self, result: Any) -> set[fx.Node]:
        """The values needed to compute a result, or a chunk of it."""
        if not isinstance(result, fx.Node):
            return set()
        if result not in self._cut:
            return {result}
        return set().union(*map(self._sources, result.all_input_nodes))

    def _readers(self) -> dict[fx.Node, set[fx.Node]]:
        """For every value, the nodes that may still read it. Sliced values are read when they are passed on."""
        readers: dict[fx.Node, set[fx.Node]] = {}
        for node in self._steps:
            for read in (node, *node.all_input_nodes):
                readers.setdefault(read, set()).add(node)
        for result in self._results:
            sources = self._sources(result)
            for read in sources:
                readers.setdefault(read, set()).update(sources)
        return readers

    def run(self, args: Sequence[Any], handed: Handed, beside: AbstractContextManager[Any] | None = None) -> None:
        """With `beside`, everything is computed a second time within that context, and both results are passed on
        together."""
        again = self._parts(args) if beside is not None else None
        for part in self._parts(args):
            other = None
            if beside is not None and again is not None:
                with beside:
                    other = next(again)[1]
            handed(*part, other)

    def _parts(self, args: Sequence[Any]) -> Iterator[Part]:
        values: dict[fx.Node, Any] = dict(zip(self._inputs, args, strict=True))
        yield from self._known_after(None, values)
        for node in self._steps:
            values[node] = self._value(node, values)
            yield from self._known_after(node, values)
            freed = [_host_bytes(values.pop(dead, None)) for dead in self._dead_after.get(node, ())]
            if max(freed, default=0) > _GIVEN_BACK:
                give_back_freed_memory()  # malloc would not reuse the gap for the next value of the same size

    def _value(self, node: fx.Node, values: dict[fx.Node, Any]) -> Any:
        if node.op == "get_attr":
            return functools.reduce(getattr, str(node.target).split("."), self._graph)
        whole = values.__getitem__
        target: Any = node.target
        return target(*fx.map_arg(node.args, whole), **fx.map_arg(node.kwargs, whole))

    def _known_after(self, node: fx.Node | None, values: dict[fx.Node, Any]) -> Iterator[Part]:
        for index in self._handed_after.get(node, ()):
            result = self._results[index]
            dim = self._cut.get(result) if isinstance(result, fx.Node) else None
            if dim is None:
                yield index, values[result] if isinstance(result, fx.Node) else result, 0, None
                continue
            length = result.meta["val"].shape[dim]
            step = max(1, length * _CHUNK // _bytes(result))
            for start in range(0, length, step):
                where = slice(start, min(start + step, length))
                yield index, self._chunk(result, dim, where, values), dim, start

    def _chunk(self, node: Any, dim: int, where: slice, values: dict[fx.Node, Any]) -> Any:
        if node not in self._cut:
            return values[node].narrow(dim, where.start, where.stop - where.start)
        operands = _CUTS[node.target](node, dim)
        assert operands is not None
        args = [
            self._chunk(arg, operands[k], where, values) if k in operands else fx.map_arg(arg, values.__getitem__)
            for k, arg in enumerate(node.args)
        ]
        target: Any = node.target
        return target(*args, **fx.map_arg(node.kwargs, values.__getitem__))


def _by_last(nodes: Sequence[fx.Node], needs: dict[T, set[fx.Node]]) -> dict[fx.Node | None, list[T]]:
    """The inverse map: for each node, the values that need no later node; None has those that need inputs only."""
    order = {node: position for position, node in enumerate(nodes) if node.op != "placeholder"}
    found: dict[fx.Node | None, list[T]] = {}
    for thing, wanted in needs.items():
        last = max((node for node in wanted if node in order), key=order.__getitem__, default=None)
        found.setdefault(last, []).append(thing)
    return found


# -- what can be computed a chunk at a time -----------------------------------------------------------------------


def _best_cut(result: fx.Node) -> dict[fx.Node, int]:
    """The cut along the dimension that keeps the most bytes in chunks."""
    cuts = [_cut(result, dim) for dim in range(len(result.meta["val"].shape))]
    return max(cuts, key=lambda cut: sum(map(_bytes, cut)), default={})


def _cut(node: fx.Node, dim: int) -> dict[fx.Node, int]:
    """`node` and the nodes that only it needs, as far as a chunk of the result needs only chunks of them."""
    operands = _CUTS[node.target](node, dim) if node.op == "call_function" and node.target in _CUTS else None
    if operands is None:
        return {}
    found = {node: dim}
    for k, of_operand in operands.items():
        operand = node.args[k]
        assert isinstance(operand, fx.Node)
        if len(operand.users) == 1 and sum(arg is operand for arg in node.args) == 1:
            found |= _cut(operand, of_operand)
    return found


def _bytes(node: fx.Node) -> int:
    """0 where the size is not known yet."""
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor) or not all(type(size) is int for size in value.shape):
        return 0
    return value.numel() * value.itemsize


def _host_bytes(value: Any) -> int:
    return value.nbytes if isinstance(value, torch.Tensor) and value.device.type == "cpu" else 0


def _shape(node: Any) -> tuple[Any, ...] | None:
    value = node.meta.get("val") if isinstance(node, fx.Node) else None
    return tuple(value.shape) if isinstance(value, torch.Tensor) else None


def _each_element(node: fx.Node, dim: int) -> Operands | None:
    """Tensors of the result's shape are sliced like the result; numbers are used unchanged."""
    tensors = {k: arg for k, arg in enumerate(node.args) if isinstance(arg, fx.Node)}
    return dict.fromkeys(tensors, dim) if all(_shape(arg) == _shape(node) for arg in tensors.values()) else None


def _product(node: fx.Node, dim: int) -> Operands | None:
    return {dim: dim}


def _permuted(node: fx.Node, dim: int) -> Operands | None:
    dims: Any = node.args[1]
    return {0: dims[dim] % len(dims)}


def _turned(node: fx.Node, dim: int) -> Operands | None:
    return {0: 1 - dim} if len(_shape(node) or ()) == 2 else None


def _looked_up(node: fx.Node, dim: int) -> Operands | None:
    """A scatter-add of rows treats every column alike, so it can be sliced by columns."""
    shape = _shape(node.args[0])
    return {0: len(shape) - 1} if dim == 1 and shape else None


_CUTS: dict[Any, Callable[[fx.Node, int], Operands | None]] = {
    aten.mm.default: _product,
    aten.t.default: _turned,
    aten.permute.default: _permuted,
    aten.embedding_dense_backward.default: _looked_up,
    aten.add.Tensor: _each_element,
    aten.sub.Tensor: _each_element,
    aten.mul.Tensor: _each_element,
    aten.div.Tensor: _each_element,
    aten._to_copy.default: _each_element,
    torch.ops.prims.convert_element_type.default: _each_element,
}
