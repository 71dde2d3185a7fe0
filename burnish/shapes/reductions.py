"""Reductions, running sums, products of matrices and attention: where padding meets real elements.

A reduction over a padded dimension is the same in both runs if the padding holds what changes nothing: zeros in a sum,
nothing above the real maximum. A product of two tensors holds zeros there if one of them does and the other is finite.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence

from burnish.ir.dtypes import DType
from burnish.ir.expr import Dim
from burnish.ir.graph import Contract, Map, Node, Pick, Reduce, Scan
from burnish.shapes.analysis import Analysis
from burnish.shapes.arithmetic import applied
from burnish.shapes.content import (
    FINITE,
    FINITE_NUMBERS,
    LARGEST,
    MASKED,
    TRUTH,
    UNKNOWN,
    Content,
    Need,
    anything,
    join,
)
from burnish.shapes.elementwise import row_maximum
from burnish.shapes.state import REAL, Place, Region, State

_WORDS = {
    "sum": "sums over",
    "prod": "multiplies over",
    "max": "takes the greatest over",
    "min": "takes the least over",
    "any": "asks for any over",
    "all": "asks for all over",
    "argmax": "looks for the greatest over",
    "argmin": "looks for the least over",
}


def reduction(ctx: Analysis, node: Node) -> tuple[State, ...]:
    op, x = node.op, ctx.state(node.inputs[0])
    assert isinstance(op, Reduce)
    if (spoilt := ctx.spoilt(node, [x])) is not None:
        return (spoilt,)
    return (reduced(ctx, node, x, op.kind, op.axes),)


def reduced(ctx: Analysis, node: Node, x: State, kind: str, over: Sequence[int]) -> State:
    """`kind` over dimensions of a state; `node` has the result's type."""
    source = node.inputs[0]
    x = _spread(ctx, x, source.shape, over, kind)
    places = [p for p in ctx.padding.places(x.axes) if p[0] in over]
    needs: set[Need] = set()
    for within in subsets(places):
        content = x.at(within)
        if kind == "max" and not content.nan and content.high <= MASKED and content.high > x.at(REAL).low:
            hides = f"{content.high:.4g}, which hides its padding"
            needs.add(Need("unmasked", f"every real row has a number above {hides}"))
        elif not _changes_nothing(kind, content, x.at(REAL)):
            axis, digit = min(within)
            extent = (x.axes[axis] or ())[digit]
            return ctx.refused(
                node, f"{_WORDS[kind]} the padded dimension {ctx.padding.label(extent)}, whose padding holds {content}"
            )
        needs |= content.needs
    if kind.startswith("arg") and places and (len(over) > 1 or any(len(x.axes[a] or ()) > 1 for a in over)):
        return ctx.refused(node, "counts positions over several dimensions, some of them padded")
    kept = [a for a in range(len(source.shape)) if a not in over]
    axes = [x.axes[a] for a in kept]
    contents: dict[Region, Content] = {}
    for region in ctx.padding.regions(axes):
        outer = frozenset((kept[a], d) for a, d in region)
        inside = [x.at(outer)] + ([x.at(outer | w) for w in subsets(places)] if region else [])
        contents[region] = _total(ctx, node, kind, over, outer, inside)
    return ctx.made(node, axes, contents, [x], frozenset(needs))


def _spread(ctx: Analysis, x: State, shape: Sequence[Dim], over: Sequence[int], kind: str) -> State:
    """The same state with digits where it is constant along a padded dimension that is reduced: how many there are
    matters to a sum, and not to a maximum."""
    missing = [a for a in over if x.axes[a] is None and ctx.padding.is_padded(shape[a])]
    if not missing or kind in ("max", "min", "any", "all"):
        return x
    axes = tuple((shape[a],) if a in missing else digits for a, digits in enumerate(x.axes))
    contents = {r: x.within(frozenset(p for p in r if p[0] not in missing)) for r in ctx.padding.regions(axes)}
    return State(axes, contents, x.needs, position=None, given=x.given)


def subsets(places: Sequence[Place]) -> Iterable[Region]:
    """All that are not empty."""
    for n in range(1, len(places) + 1):
        yield from map(frozenset, itertools.combinations(places, n))


def _changes_nothing(kind: str, padding: Content, real: Content) -> bool:
    match kind:
        case "sum":
            return padding.holds(0)
        case "prod":
            return padding.holds(1)
        case "any":
            return padding.holds(0)
        case "all":
            return padding.holds(1)
        case "max" | "argmax":
            return not padding.nan and padding.high <= real.low
        case "min" | "argmin":
            return not padding.nan and padding.low >= real.high
    return False


def _total(
    ctx: Analysis, node: Node, kind: str, over: Sequence[int], outer: Region, inside: Sequence[Content]
) -> Content:
    content = join(inside)
    match kind:
        case "max" | "min":
            return content
        case "any" | "all":
            return content if content.is_exact else TRUTH.relying(*content.needs)
        case "argmax" | "argmin":
            return Content(0, 1 << 40)
        case "sum" if node.dtype.is_float:
            return _sum_of_floats(ctx, node, over, outer, content)
        case "sum":
            is_count = content.low >= 0 and content.high < 1 << 20
            return Content(0, 1 << 62, needs=content.needs) if is_count else anything(node.dtype)
    return FINITE_NUMBERS.relying(*content.needs) if content.is_finite and node.dtype.is_float else anything(node.dtype)


def _sum_of_floats(ctx: Analysis, node: Node, over: Sequence[int], outer: Region, content: Content) -> Content:
    if content.holds(0):
        return Content(0.0, 0.0, needs=content.needs)
    if content.nan or content.low == -math.inf:
        return UNKNOWN
    if content.high == math.inf:
        return Content(0.0 if content.low >= 0 else -math.inf, math.inf, needs=content.needs | {FINITE})
    low = 0.0 if content.low >= 0 else -LARGEST
    high = 0.0 if content.high <= 0 else LARGEST
    if _holds_a_one(node.inputs[0], over) and low == 0:
        low = 1.0
    return Content(low, high, needs=content.needs | {FINITE})


def _holds_a_one(x: Node, over: Sequence[int]) -> bool:
    """exp(x - max(x)), reduced over the dimensions of the maximum: where that is, it is 1."""
    if not isinstance(x.op, Map) or x.op.fn != "exp":
        return False
    found = row_maximum(x.inputs[0])
    return found is not None and tuple(found[1]) == tuple(over)


# --- scans ------------------------------------------------------------------------------------------------------


def scan(ctx: Analysis, node: Node) -> tuple[State, ...]:
    op, x = node.op, ctx.state(node.inputs[0])
    assert isinstance(op, Scan)
    if (spoilt := ctx.spoilt(node, [x])) is not None:
        return (spoilt,)
    extent = node.shape[op.axis]
    digits = x.axes[op.axis] or (extent,)
    if len(digits) > 1 and ctx.padding.is_padded(extent):
        return (ctx.refused(node, "runs over a dimension that is padded within"),)
    axes = (*x.axes[: op.axis], digits, *x.axes[op.axis + 1 :])
    contents: dict[Region, Content] = {}
    for region in ctx.padding.regions(axes):
        before = join((x.within(region), x.within(frozenset(p for p in region if p[0] != op.axis))))
        if op.kind in ("max", "min"):
            contents[region] = before
        elif node.dtype.is_float and before.is_finite:
            contents[region] = FINITE_NUMBERS.relying(*before.needs)
        elif op.kind == "sum" and not node.dtype.is_float and before.low >= 0 and before.high < 1 << 20:
            contents[region] = Content(0, 1 << 62, needs=before.needs)
        else:
            contents[region] = anything(node.dtype)
    return (ctx.made(node, axes, contents, [x]),)


# --- products ---------------------------------------------------------------------------------------------------


def contract(ctx: Analysis, node: Node) -> tuple[State, ...]:
    assert isinstance(node.op, Contract)
    a, b = map(ctx.state, node.inputs)
    return (product(ctx, node, a, b, *(x.shape for x in node.inputs)),)


def product(ctx: Analysis, node: Node, a: State, b: State, a_shape: Sequence[Dim], b_shape: Sequence[Dim]) -> State:
    """sum_k a[*batch, m, k] * b[*batch, k, n]"""
    if (spoilt := ctx.spoilt(node, [a, b])) is not None:
        return spoilt
    rank = len(a_shape)
    batch = ctx.padding.joined([a.axes[:-2], b.axes[:-2]])
    inner = ctx.padding.joined([(a.axes[-1],), (b.axes[-2],)])
    if batch is None or inner is None:
        return ctx.refused(node, "multiplies tensors whose padding lies in different places")
    k = inner[0]
    if k is None and ctx.padding.is_padded(a_shape[-1]):
        k = (a_shape[-1],)
    # The axes of one multiplication: batch, m, n, k.
    axes = (*batch, a.axes[-2], b.axes[-1], k)
    a_to = {**{i: i for i in range(rank - 2)}, rank - 2: rank - 2, rank: rank - 1}
    b_to = {**{i: i for i in range(rank - 2)}, rank - 1: rank - 1, rank: rank - 2}
    if ctx.padding.too_many(axes):
        return ctx.refused(node, "has more padded dimensions than are followed")
    types = tuple(x.dtype for x in node.inputs[:2]) if node.inputs[0].type.dtype is not None else (node.dtype,) * 2
    multiplied = {
        r: applied("mul", (a.within(r, a_to), b.within(r, b_to)), types, node.dtype) for r in ctx.padding.regions(axes)
    }
    inside = list(subsets([p for p in ctx.padding.places(axes) if p[0] == rank]))  # regions in the padding of k
    for region in inside:
        if not multiplied[region].holds(0):
            left, right = a.within(region, a_to), b.within(region, b_to)
            label = ctx.padding.label(a_shape[-1])
            return ctx.refused(
                node,
                f"sums products over the padded dimension {label}, whose padding holds {left} and {right}",
            )
    needs = frozenset[Need]().union(*(multiplied[region].needs for region in inside))
    contents = {
        region: _sum_of(
            join([multiplied[region]] + ([multiplied[region | w] for w in inside] if region else [])),
            node.types[0].dtype,
        )
        for region in ctx.padding.regions(axes[:-1])
    }
    return ctx.made(node, axes[:-1], contents, [a, b], needs)


def _sum_of(products: Content, dtype: DType | None) -> Content:
    """The sums of any number of these products."""
    if products.holds(0):
        return Content(0.0, 0.0, needs=products.needs)
    if products.is_finite and dtype is not None:
        return FINITE_NUMBERS.relying(*products.needs)
    return anything(dtype)


def pick(ctx: Analysis, node: Node) -> tuple[State, ...]:
    assert isinstance(node.op, Pick)
    return (ctx.states[node.inputs[0].id][node.op.position],)
