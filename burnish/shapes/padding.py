"""Padding proven safe: whether the inputs of a graph may be padded along dimensions of variable size.

The caller pads inputs at the end of such dimensions (real size s, padded size S >= s), runs the program at size S and
cuts its results back to s. `prove` says whether that gives what a run at size s gives (up to the order of sums), which
dimensions of the results to cut, and which facts it relied on; or which operation mixes padding into real elements.

It is one walk over the graph as it was imported, in order. Each node gets a `State` (burnish/shapes/state.py) from the
transfer function of its operation. What no transfer function knows is refused.

Operations whose results nobody reads are not in an imported graph. Eager runs them: where it serves the padded call,
one of them may raise (whole numbers divided by the padding's zeros).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from burnish.ir.dtypes import DType
from burnish.ir.expr import Dim, Div, Expr, Sym, evaluate, mentions, symbols
from burnish.ir.graph import (
    Attend,
    Concat,
    Constant,
    Contract,
    Convolve,
    Extern,
    Full,
    Gather,
    Graph,
    Input,
    Iota,
    Map,
    Node,
    Op,
    Pick,
    Reduce,
    Scan,
    Scatter,
    View,
)
from burnish.shapes.analysis import Analysis, Facts
from burnish.shapes.aten_calls import draws, extern
from burnish.shapes.attention import attend
from burnish.shapes.content import Content, Need, Number, exact, of_tensor, real
from burnish.shapes.elementwise import elementwise
from burnish.shapes.reductions import contract, pick, reduction, scan
from burnish.shapes.state import REAL, Refusal, Region, State
from burnish.shapes.views import concat, full, gather, iota, scatter, view
from burnish.shapes.visibility import visible


@dataclass(frozen=True)
class PaddedInput:
    """An input that the caller pads: these of its dimensions, up to the padded size, with `fill`."""

    position: int
    dims: tuple[int, ...]
    fill: Number

    def __str__(self) -> str:
        dims = ", ".join(map(str, self.dims))
        return f"input {self.position} is padded with {self.fill} along {dims}"


@dataclass(frozen=True)
class PaddedOutput:
    """A result that the caller cuts: dimension and its size, as an expression of the padded symbols."""

    position: int
    dims: tuple[tuple[int, Dim], ...]

    def sizes(self, real_sizes: Mapping[str, int]) -> dict[int, int]:
        """What each dimension is cut to."""
        return {dim: evaluate(size, real_sizes) for dim, size in self.dims}

    def __str__(self) -> str:
        return f"output {self.position} is cut to " + ", ".join(f"{size} along {dim}" for dim, size in self.dims)


@dataclass(frozen=True)
class Proof:
    """Whether padding is safe. `refusals` say why not; `needs` are what the caller must guarantee if it is."""

    safe: bool
    inputs: tuple[PaddedInput, ...] = ()
    outputs: tuple[PaddedOutput, ...] = ()
    refusals: tuple[Refusal, ...] = ()
    needs: tuple[Need, ...] = ()

    def __str__(self) -> str:
        lines = ["padding is safe" if self.safe else "padding is refused"]
        lines += [f"  {r}" for r in self.refusals]
        if self.safe:
            lines += [f"  {o}" for o in self.outputs]
            lines += [f"  needs: {n}" for n in self.needs]
        return "\n".join(lines)


def prove(
    graph: Graph,
    padded: Mapping[str, str],
    fills: Mapping[int, Number] | None = None,
    facts: Facts | None = None,
) -> Proof:
    """`padded` has the symbols of the dimensions that are padded, each with a name for messages; `fills` the number
    that each input is padded with, where it is not 0 (False)."""
    facts = facts or Facts()
    ctx = Analysis(padded, dict(fills or {}), facts)
    for node in graph.nodes:
        ctx.states[node.id] = states_of(ctx, node)
    inputs = tuple(_padded_inputs(ctx, graph))
    outputs, refusals, needs = _judged(ctx, graph)
    if refusals:
        return Proof(False, inputs, (), tuple(dict.fromkeys(refusals)))
    fill = [Need("fill", f"{facts.name(p.position)} is padded with {p.fill}") for p in inputs]
    fill += _least_sizes(ctx, graph) if inputs else []
    return Proof(True, inputs, outputs, (), (*fill, *sorted(needs, key=lambda n: (n.kind, n.text))))


def states_of(ctx: Analysis, node: Node) -> tuple[State, ...]:
    """Of a node's results; those of what comes before are known."""
    return visible(ctx, node, _TRANSFER[type(node.op)])


def _padded_inputs(ctx: Analysis, graph: Graph) -> list[PaddedInput]:
    found = []
    for node in graph.inputs:
        if not isinstance(node, Node) or not isinstance(node.op, Input):
            continue
        dims = tuple(d for d, size in enumerate(node.shape) if ctx.padding.is_padded(size))
        if dims:
            found.append(PaddedInput(node.op.position, dims, _fill(ctx, node)))
    return found


def _least_sizes(ctx: Analysis, graph: Graph) -> list[Need]:
    """Tracing may take a size for greater than one, which would broadcast."""
    shapes = [d for x in graph.inputs if isinstance(x, Node) for d in x.shape]
    least = {s.name: s.lo for d in shapes for s in symbols(d) if s.name in ctx.padding.names}
    return [
        Need("size", f"the dimension {ctx.padding.labels[n]} is at least {max(lo, 1)} long") for n, lo in least.items()
    ]


def _fill(ctx: Analysis, node: Node) -> Number:
    assert isinstance(node.op, Input)
    return ctx.fills.get(node.op.position, False if node.type.dtype is DType.bool else 0)


def _judged(ctx: Analysis, graph: Graph) -> tuple[tuple[PaddedOutput, ...], list[Refusal], set[Need]]:
    refusals: list[Refusal] = []
    needs: set[Need] = set()
    outputs: list[PaddedOutput] = []
    for position, out in enumerate(graph.outputs):
        if isinstance(out, Node):
            state = ctx.state(out)
            refusals += state.mixed or _not_sliced(ctx, out, state, position)
            needs |= state.needs
            dims = tuple((d, size) for d, size in enumerate(out.shape) if ctx.padding.is_padded(size))
            if dims:
                outputs.append(PaddedOutput(position, dims))
        elif out is not None and ctx.padding.is_padded(out):
            label = ctx.padding.label(out)
            refusals.append(Refusal("return", "", f"returns the size of the dimension {label} as a number"))
    for target, value in graph.mutations:
        state = ctx.state(value)
        padded = any(map(ctx.padding.is_padded, target.shape))
        mixed = state.mixed or ((Refusal("copy_", "", "writes an input that is padded"),) if padded else ())
        refusals += mixed
        needs |= state.needs
    for node in graph.effects:
        refusals += _effects(ctx, node)
    return tuple(outputs), refusals, needs


def _effects(ctx: Analysis, node: Node) -> tuple[Refusal, ...]:
    """A draw that changes the stream of random numbers, or a check of values that padding takes part in."""
    states = ctx.states[node.id]
    mixed = tuple(r for s in states for r in s.mixed)
    if isinstance(node.op, Extern) and draws(node.op):
        return mixed if any("random" in r.reason for r in mixed) else ()
    operands = [ctx.state(x) for x in node.inputs]
    touched = any(s.mixed or ctx.padding.places(s.axes) for s in operands)
    line = ctx.facts.lines.get(node.id, "")
    return (*mixed, *((Refusal(node.origin, line, "checks values of the padding, too"),) if touched else ()))


def _not_sliced(ctx: Analysis, out: Node, state: State, position: int) -> tuple[Refusal, ...]:
    for dim, size in enumerate(out.shape):
        if not ctx.padding.is_padded(size):
            continue
        axis = state.axes[dim]
        label = ctx.padding.label(size)
        if axis is not None and len(axis) > 1:
            reason = f"returns dimension {dim} of result {position}, which has padding of {label} between real elements"
            return (Refusal(out.origin or "return", ctx.facts.lines.get(out.id, ""), reason),)
        if not grows(size, ctx.padding.names):
            reason = f"returns dimension {dim} of result {position}, whose size {size} may shrink as {label} grows"
            return (Refusal(out.origin or "return", "", reason),)
    return ()


def grows(size: Dim, names: frozenset[str]) -> bool:
    """Whether a size is not known to shrink where a symbol grows: padding is then at the end."""
    if not isinstance(size, Expr):
        return True
    for mono, coefficient in size.terms.items():
        varies = [a for a in mono if mentions(Expr({(a,): 1}), names)]
        if varies and coefficient < 0:
            return False
        for atom in varies:
            if isinstance(atom, Sym):
                continue
            if not isinstance(atom, Div) or mentions(atom.den, names) or not grows(atom.num, names):
                return False
    return True


# --- inputs -----------------------------------------------------------------------------------------------------


def _input(ctx: Analysis, node: Node) -> tuple[State, ...]:
    op = node.op
    assert isinstance(op, Input)
    axes = ctx.axes_as(node)
    static = op.position in ctx.facts.static
    content = real(node.type.dtype)
    if op.position in ctx.facts.ranges:
        low, high = ctx.facts.ranges[op.position]
        content = Content(low, high, needs=content.needs)
    contents: dict[Region, Content] = {REAL: content}
    if node.type.dtype is not None:
        filled = exact(_fill(ctx, node), node.type.dtype)
        contents |= {region: filled for region in ctx.padding.regions(axes) if region}
    elif any(map(ctx.padding.is_padded, node.shape)):
        return (ctx.refused(node, "is a padded input of a type that is not followed"),)
    return (State(axes, contents, given=not static),)


def _constant(ctx: Analysis, node: Node) -> tuple[State, ...]:
    op = node.op
    assert isinstance(op, Constant)
    content = of_tensor(op.tensor, node.type.dtype)
    return (ctx.made(node, ctx.axes_as(node), {REAL: content}),)


def _convolve(ctx: Analysis, node: Node) -> tuple[State, ...]:
    """Only images of fixed size become this operation; how many there are may vary."""
    x, k = map(ctx.state, node.inputs)
    if (spoilt := ctx.spoilt(node, [x, k])) is not None:
        return (spoilt,)
    if any(map(ctx.padding.is_padded, (*node.inputs[0].shape[1:], *node.inputs[1].shape))):
        return (ctx.refused(node, "convolves over a padded dimension"),)
    axes = (x.axes[0], *((d,) for d in node.shape[1:]))
    return (ctx.made(node, axes, ctx.unknown(node, axes), [x, k]),)


_TRANSFER: dict[type[Op], Callable[[Analysis, Node], tuple[State, ...]]] = {
    Input: _input,
    Constant: _constant,
    Full: full,
    Iota: iota,
    Map: elementwise,
    View: view,
    Gather: gather,
    Reduce: reduction,
    Scan: scan,
    Concat: concat,
    Scatter: scatter,
    Contract: contract,
    Convolve: _convolve,
    Attend: attend,
    Extern: extern,
    Pick: pick,
}
