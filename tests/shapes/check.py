"""A proof against two runs: every tensor of the graph, in a run at the real sizes and in one on padded inputs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch

from burnish.ir.expr import evaluate
from burnish.ir.graph import Graph, Map, Node
from burnish.ir.reference import evaluate_node
from burnish.shapes import padding
from burnish.shapes.analysis import Analysis, Facts
from burnish.shapes.content import Content, Number
from burnish.shapes.state import Region, State
from tests.shapes.cases import padded_to

Values = dict[int, tuple[torch.Tensor, ...]]


def evaluated(graph: Graph, inputs: Sequence[torch.Tensor], sizes: Mapping[str, int]) -> Values:
    """Every node's results."""
    values: Values = {}
    for node in graph.nodes:
        values[node.id] = evaluate_node(node, [values[x.id][0] for x in node.inputs], inputs, sizes, values)
    return values


def unsound(
    graph: Graph,
    padded: Mapping[str, str],
    inputs: Sequence[torch.Tensor],
    real: Mapping[str, int],
    longer: Mapping[str, int],
    fills: Mapping[int, Number],
    finite: bool,
) -> str | None:
    """What a state claims that is not so; None if all claims hold. Unless `finite`, real elements of claims that need
    finite numbers may be NaN, if that can be seen."""
    ctx = Analysis(padded, fills, Facts())
    for node in graph.nodes:
        ctx.states[node.id] = padding.states_of(ctx, node)
    lengths = {real[s]: longer[s] for s in padded}
    more = [padded_to(x, lengths, fills.get(k, 0)) for k, x in enumerate(inputs)]
    try:
        small = evaluated(graph, inputs, {**longer, **real})
    except (RuntimeError, IndexError):
        return None  # eager raises for real sizes
    try:
        large = evaluated(graph, more, {**real, **longer})
    except (RuntimeError, IndexError) as error:
        if all(not s.mixed for states in ctx.states.values() for s in states):
            return f"the padded run raises {type(error).__name__}: {error}"
        return None
    finite = finite and not _overflows(graph, small) and not _overflows(graph, large)
    for node in graph.nodes:
        for k, state in enumerate(ctx.states[node.id]):
            why = _differs(ctx, node, k, state, small[node.id][k], large[node.id][k], real, longer, finite)
            if why is not None:
                return f"%{node.id} ({node.op}, {node.origin}): {why}"
    return None


def _overflows(graph: Graph, values: Values) -> bool:
    """Whether finite numbers have become an infinite one: no claim that needs finite numbers holds then."""
    for node in graph.nodes:
        made = values[node.id][0] if values[node.id] else torch.zeros(())
        operands = [values[x.id][0] for x in node.inputs]
        if isinstance(node.op, Map) and node.op.fn in _INFINITE_AT_POLES:
            continue
        is_infinite = bool(operands) and made.is_floating_point() and bool(made.isinf().any())
        if is_infinite and all(bool(x.double().isfinite().all()) for x in operands):
            return True
    return False


_INFINITE_AT_POLES = frozenset({"div", "reciprocal", "rsqrt", "log", "log2", "log10", "log1p", "lgamma"})


def _differs(
    ctx: Analysis, node: Node, k: int, state: State, small: torch.Tensor, large: torch.Tensor,
    real: Mapping[str, int], longer: Mapping[str, int], finite: bool,
) -> str | None:  # fmt: skip
    if state.mixed:
        return None
    places, regions = _regions(ctx, state, large, small, real, longer)
    for region in ctx.padding.regions(state.axes):
        there = regions == sum(1 << places.index(p) for p in region)
        if not region and _counts(state.needs, True):
            at = _small_index(ctx, state, large, small, real, longer)
            mine, theirs = large[there], small[at][there] if small.dim() else small.reshape(1).expand_as(large[there])
            if not _counts(state.needs, finite):
                if any(n.kind == "unseen" for n in state.needs):
                    continue
                shown = mine.isnan() if mine.is_floating_point() else torch.zeros_like(mine, dtype=torch.bool)
                mine, theirs = mine[~shown], theirs[~shown]  # a NaN in the results, which a call looks for
            if not alike(mine, theirs):
                return "real elements differ"
        content = state.at(region)
        if _counts(content.needs, finite) and (why := _outside(large[there], content)) is not None:
            return f"{sorted(region)} should hold {content}: {why}"
    return None


def alike(x: torch.Tensor, y: torch.Tensor) -> bool:
    """Equal up to another order of sums, and kernels that take lanes and rests in different ways."""
    tolerance = 1e-4 if torch.float32 in (x.dtype, y.dtype) else 1e-9
    return x.shape == y.shape and torch.allclose(x.double(), y.double(), tolerance, tolerance, equal_nan=True)


def _counts(needs: frozenset[object], finite: bool) -> bool:
    kinds = {n.kind for n in needs}  # type: ignore[attr-defined]
    return kinds <= ({"fill", "size", "finite", "unseen"} if finite else {"fill", "size"})


def _outside(values: torch.Tensor, content: Content) -> str | None:
    if values.numel() == 0:
        return None
    if values.is_floating_point():
        if bool(values.isnan().any()):
            if not content.nan:
                return "NaN is there"
            values = values[~values.isnan()]
        if values.numel() == 0:
            return None
    low, high = values.min().item(), values.max().item()
    if low < content.low or high > content.high:
        return f"{low}..{high} is there"
    if content.bits and content.low == 0 and values.is_floating_point():
        signs = {math.copysign(1, v) for v in values.flatten().tolist()}
        if signs != {math.copysign(1, content.low)}:
            return "zeros of another sign are there"
    return None


def _digits(state: State, axis: int, size: int, sizes: Mapping[str, int]) -> list[int]:
    return [evaluate(d, sizes) for d in state.axes[axis] or (size,)]


def _split(index: torch.Tensor, digits: Sequence[int]) -> list[torch.Tensor]:
    found = []
    for d in reversed(digits[1:]):
        found.append(index % d)
        index = index // d
    return [index, *reversed(found)]


def _regions(
    ctx: Analysis, state: State, large: torch.Tensor, small: torch.Tensor, real: Mapping[str, int],
    longer: Mapping[str, int],
) -> tuple[list[tuple[int, int]], torch.Tensor]:  # fmt: skip
    """The padded digits, and which of them an element is in the padding of, as bits."""
    places = list(ctx.padding.places(state.axes))
    bits = torch.zeros(large.shape, dtype=torch.int64)
    for axis in range(large.dim()):
        if state.axes[axis] is None:
            continue
        there = _split(torch.arange(large.shape[axis]), _digits(state, axis, large.shape[axis], longer))
        extents = _digits(state, axis, small.shape[axis], real)
        for d, (digit, extent) in enumerate(zip(there, extents, strict=True)):
            if (axis, d) in places:
                shape = [-1 if a == axis else 1 for a in range(large.dim())]
                bits = bits + ((digit >= extent).long() << places.index((axis, d))).reshape(shape)
    return places, bits


def _small_index(
    ctx: Analysis, state: State, large: torch.Tensor, small: torch.Tensor, real: Mapping[str, int],
    longer: Mapping[str, int],
) -> tuple[torch.Tensor, ...]:  # fmt: skip
    """For each element of the padded run, where it is in the real one (0 if nowhere)."""
    index = []
    for axis in range(large.dim()):
        n = torch.arange(large.shape[axis])
        if state.axes[axis] is None:
            at = n.clamp(max=small.shape[axis] - 1)
        else:
            at = torch.zeros_like(n)
            extents = _digits(state, axis, small.shape[axis], real)
            for digit, extent in zip(_split(n, _digits(state, axis, large.shape[axis], longer)), extents, strict=True):
                at = at * extent + digit.clamp(max=extent - 1)
        index.append(at.reshape([-1 if a == axis else 1 for a in range(large.dim())]))
    return tuple(torch.broadcast_tensors(*index)) if index else ()


__all__ = ["Region", "alike", "evaluated", "unsound"]
