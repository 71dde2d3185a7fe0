"""The backward programs of one graph: one for each set of missing gradients.

A loss may use only some results, for instance `model(x).loss` and not the logits. Eager's backward then visits only the
nodes that the loss depends on. A backward that gets zeros for the other results does more work, and may compute
something else: zero times an infinite derivative is NaN, and a custom function's backward may map zeros to non-zeros.
So nodes that depend only on missing gradients are removed from the traced graph, and the rest is compiled, once for
each set of missing gradients.

    gradients ──► Replay.plain, which says what is missing ──► Backwards ──► the program made for that
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from burnish.capture.autograd.own_memory import give_own_memory
from burnish.capture.autograd.tangents import can_leave_out, made_of, other_term, sizes_in, tangents_of

Boxed = Callable[[list[Any]], Sequence[Any]]
LeftOut = frozenset[int]  # tangents of a graph, by their positions among them
Zeros = tuple[tuple[int, str], ...]  # positions, and devices


class NoSuchPart(Exception):
    """There is no backward graph without these tangents, and none can be made."""


class _Call(threading.local):
    left_out: LeftOut = frozenset()


_call = _Call()


@contextlib.contextmanager
def leaving_out(tangents: LeftOut) -> Iterator[None]:
    """While open, backwards in this thread do not get these tangents."""
    before, _call.left_out = _call.left_out, tangents
    try:
        yield
    finally:
        _call.left_out = before


def left_out_now() -> LeftOut:
    return _call.left_out


@dataclass(frozen=True)
class Part:
    """A backward graph for calls in which some gradients are missing: the inputs that it takes of the whole graph's,
    and the missing ones among them that must be zeros (because nodes that use them could not be removed)."""

    left_out: LeftOut
    graph: fx.GraphModule
    inputs: tuple[int, ...]
    zeros: Zeros = ()


class Backwards:
    """A boxed callable that takes the whole graph's arguments, with a placeholder of the same form for each missing
    gradient. `whole` returns the graph for the arguments of a call; `make` makes a program for a part of it."""

    _boxed_call = True

    def __init__(self, whole: Callable[[Sequence[Any]], fx.GraphModule], make: Callable[[Part], Boxed]) -> None:
        self._whole = whole
        self._make = make
        self._made: dict[LeftOut, Boxed] = {}
        self._making = threading.RLock()

    def have(self, left_out: LeftOut, inputs: tuple[int, ...], zeros: Zeros, program: Boxed) -> None:
        self._made[left_out] = _taking(inputs, zeros, program)

    def has(self, left_out: LeftOut) -> bool:
        return left_out in self._made

    def __call__(self, args: list[Any]) -> Sequence[Any]:
        if _call.left_out not in self._made:
            self.prepare(args)
        return self._made[_call.left_out](args)

    def prepare(self, args: Sequence[Any]) -> None:
        """Make a program for the tangents that this thread's call leaves out. Raises NoSuchPart if there is no such
        graph."""
        with self._making:
            left_out = _call.left_out
            if left_out not in self._made:
                part = part_of(self._whole(args), left_out)
                self.have(left_out, part.inputs, part.zeros, self._make(part))


def _taking(inputs: tuple[int, ...], zeros: Zeros, program: Boxed) -> Boxed:
    """Adapt a program that takes some inputs to one that takes all."""

    def run(args: list[Any]) -> Sequence[Any]:
        for k, device in zeros:
            args[k] = torch.zeros_like(args[k], device=device)
        if len(args) != len(inputs):
            args[:] = [args[k] for k in inputs]
        return program(args)

    return run


def part_of(whole: fx.GraphModule, left_out: LeftOut) -> Part:
    taken = whole.graph.find_nodes(op="placeholder")
    if not left_out:
        return Part(left_out, whole, tuple(range(len(taken))))
    graph = without(whole, left_out)
    if graph is None:
        missing = {node for k, node in enumerate(tangents_of(whole.graph)) if k in left_out}
        zeros = tuple((k, str(node.meta["val"].device)) for k, node in enumerate(taken) if node in missing)
        return Part(left_out, whole, tuple(range(len(taken))), zeros)
    left = graph.graph.find_nodes(op="placeholder")
    used = tuple(k for k, node in enumerate(left) if node.users)
    for node in left:
        if not node.users:
            graph.graph.erase_node(node)
    give_own_memory(graph.graph)  # of sums that have lost a term, two may be one
    graph.recompile()
    return Part(left_out, graph, used)


def without(backward: fx.GraphModule, left_out: LeftOut) -> fx.GraphModule | None:
    """The graph for calls in which these tangents are missing; it still takes them as inputs. As in autograd, a value
    that depends only on missing gradients is missing: it is left out of sums, is zeros where it is combined with other
    values, and is None as a result. Returns None if there is no such graph."""
    made = made_of(backward.graph)
    if not can_leave_out(backward.graph, made):
        return None
    part = _Part({node for node, tangents in made.items() if tangents <= left_out}, sizes_in(backward.graph))
    for node in backward.graph.nodes:
        part.take(node)
    module = fx.GraphModule(backward, part.graph)
    module.graph.eliminate_dead_code()
    return module


class _Part:
    """The remainder of a graph, built node by node."""

    def __init__(self, nothing: set[fx.Node], sizes: Mapping[str, tuple[fx.Node, int | None]]) -> None:
        self.graph = fx.Graph()
        self._nothing = nothing
        self._sizes = sizes
        self._copies: dict[fx.Node, fx.Node] = {}

    def take(self, node: fx.Node) -> None:
        if node.op == "output":
            (results,) = node.args
            assert isinstance(results, tuple | list)
            self.graph.output(tuple(self._result(x) for x in results))
        elif node.op == "placeholder" or node not in self._nothing:
            self._copies[node] = self._left_of(node)

    def _left_of(self, node: fx.Node) -> fx.Node:
        lost = [x for x in node.all_input_nodes if x in self._nothing]
        if not lost:
            return self.graph.node_copy(node, self._copies.__getitem__)
        if (term := other_term(node, self._nothing)) is not None:
            return self._copies[term]
        zeros = {x: self._zeros(x) for x in lost}
        return self.graph.node_copy(node, lambda x: zeros.get(x) or self._copies[x])

    def _result(self, value: Any) -> Any:
        if not isinstance(value, fx.Node):
            return value
        return None if value in self._nothing else self._copies[value]

    def _zeros(self, node: fx.Node) -> fx.Node:
        value = node.meta["val"]
        settings: dict[str, Any] = {"dtype": value.dtype, "device": value.device, "pin_memory": False}
        sizes = [d if type(d) is int else self._size(d) for d in value.shape]
        made = self.graph.call_function(torch.ops.aten.full.default, (sizes, 0), settings)
        with value.fake_mode if hasattr(value, "fake_mode") else contextlib.nullcontext():
            made.meta["val"] = torch.full(value.shape, 0, dtype=value.dtype, device=value.device)
        return made

    def _size(self, size: Any) -> fx.Node:
        node, dim = self._sizes[str(size)]
        if dim is None:
            return self._copies[node]
        made = self.graph.call_function(torch.ops.aten.sym_size.int, (self._copies[node], dim))
        made.meta["val"] = size
        return made
