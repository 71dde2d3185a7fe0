"""Element-wise operations: real elements depend on real elements, and padding on padding."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from burnish.ir.dtypes import DType
from burnish.ir.expr import Dim, Expr, is_nonneg
from burnish.ir.graph import Map, Node, Reduce, View, axis_exprs
from burnish.shapes.analysis import Analysis
from burnish.shapes.arithmetic import applied, raises_at_zero
from burnish.shapes.content import FINITE, LARGEST, MASKED, UNMASKED, VANISHES, Content, Need, exact
from burnish.shapes.state import REAL, Digits, Region, State, beyond, digit_symbols

_LOWEST = -1e4  # of which every float type can hold the number
_COMPARISONS = frozenset({"eq", "ne", "lt", "le", "gt", "ge"})


def elementwise(ctx: Analysis, node: Node) -> tuple[State, ...]:
    op = node.op
    assert isinstance(op, Map)
    operands = [ctx.state(x) for x in node.inputs]
    if op.fn == "where":
        operands = _read_by_where(operands)
    if (spoilt := ctx.spoilt(node, operands)) is not None:
        return (spoilt,)
    axes = ctx.padding.joined([s.axes for s in operands])
    if axes is None:
        return (ctx.refused(node, "combines tensors whose padding lies in different places"),)
    if raises_at_zero(op.fn, node.dtype) and (why := _divides_by_zero(operands)) is not None:
        return (ctx.refused(node, why),)
    contents = {region: _content(ctx, node, operands, axes, region) for region in ctx.padding.regions(axes)}
    return (ctx.made(node, axes, contents, operands, position=_position(op.fn, node, operands)),)


def _read_by_where(operands: Sequence[State]) -> list[State]:
    """Without a branch that no real element takes: what it holds there does not matter."""
    cond, yes, no = operands
    known = cond.at(REAL) if not cond.mixed else None
    if known is None or not known.is_exact:
        return [cond, yes, no]
    needs = frozenset(known.needs)
    cond = replace(cond, needs=cond.needs | needs)
    nothing = State(tuple(None for _ in cond.axes))
    if known.low:
        return [cond, yes, nothing if no.mixed else no]
    return [cond, nothing if yes.mixed else yes, no]


def _divides_by_zero(operands: Sequence[State]) -> str | None:
    divisor = operands[1]
    if not any(s.given for s in operands):
        return None
    for region, content in divisor.contents.items():
        if region and not (content.low > 0 or content.high < 0):
            return f"divides whole numbers by those of the padding, which hold {content}: eager raises at zero"
    return None


def _content(
    ctx: Analysis, node: Node, operands: Sequence[State], axes: Sequence[Digits | None], region: Region
) -> Content:
    op = node.op
    assert isinstance(op, Map)
    args = tuple(s.within(region) for s in operands)
    if op.fn in _COMPARISONS:
        decided = _decided(ctx, node, operands, axes, region)
        if decided is not None:
            return decided
    if op.fn == "sub" and node.dtype.is_float and is_below_its_maximum(node):
        return _below_maximum(ctx, node, region)
    made = applied(op.fn, args, tuple(x.dtype for x in node.inputs), node.dtype)
    if op.fn == "mul" and node.inputs[0] is node.inputs[1] and made.low < 0 and node.dtype.is_float:
        return replace(made, low=0.0)
    return made


# --- positions --------------------------------------------------------------------------------------------------


def _position(fn: str, node: Node, operands: Sequence[State]) -> Dim | None:
    """The value as an expression of positions."""
    if node.dtype not in (DType.i64, DType.i32):
        return None
    if fn == "where":
        cond, yes, no = operands
        if not all(c.holds(1) for c in cond.contents.values()) and not all(c.holds(0) for c in cond.contents.values()):
            return None
        return yes.position if cond.at(REAL).low else no.position
    places = [s.position for s in operands]
    if any(p is None for p in places):
        return None
    first, last = places[0], places[-1]
    assert first is not None and last is not None
    match fn:
        case "cast":
            return first if node.inputs[0].dtype in (DType.i64, DType.i32) else None
        case "add":
            return _small(first + last)
        case "sub":
            return _small(first - last)
        case "neg":
            return _small(-1 * first)
        case "mul" if isinstance(first, int) or isinstance(last, int):
            return _small(first * last)
    return None


def _small(x: Dim) -> Dim | None:
    """Values wrap around, index expressions do not."""
    numbers = (x,) if isinstance(x, int) else x.terms.values()
    return x if all(abs(n) < 1 << 20 for n in numbers) else None


def _decided(
    ctx: Analysis, node: Node, operands: Sequence[State], axes: Sequence[Digits | None], region: Region
) -> Content | None:
    """A comparison of positions, whose order follows from which of them are in the padding; or of positions with
    lengths, which do not reach into it."""
    assert isinstance(node.op, Map)
    fn, (a, b) = node.op.fn, operands
    if fn in ("gt", "ge"):
        fn, a, b = ("lt" if fn == "gt" else "le"), b, a
        x, y = node.inputs[1], node.inputs[0]
    else:
        x, y = node.inputs
    if not region:
        return None
    if a.position is not None and b.position is not None:
        return _ordered(fn, beyond(a.position, axes, region), beyond(b.position, axes, region))
    if fn in ("lt", "le"):
        return _against_lengths(ctx, fn, (x, a), (y, b), region)
    return None


def _ordered(fn: str, a: Dim, b: Dim) -> Content | None:
    less, more = is_nonneg(b - a - 1), is_nonneg(a - b - 1)
    match fn:
        case "lt":
            known = True if less else False if is_nonneg(a - b) else None
        case "le":
            known = True if is_nonneg(b - a) else False if more else None
        case "eq":
            known = False if less or more else None
        case _:
            known = True if less or more else None
    return None if known is None else exact(known, DType.bool)


def _against_lengths(
    ctx: Analysis, fn: str, left: tuple[Node, State], right: tuple[Node, State], region: Region
) -> Content | None:
    """A position p in the padding is at least the real size. `p < length` is then false, if no length is greater than
    that size; so are `length > p` and, for the last index instead of a length, `p <= last`."""
    (_, place), (node, lengths) = left, right
    position = ctx.input_of(node)
    if place.position is None or position is None or fn != "lt" or position in ctx.facts.static:
        return None
    found = _lone_digit(place, region)
    if found is None or any((axis, digit) in region for axis, digit in ctx.padding.places(lengths.axes)):
        return None
    label = ctx.padding.label(found)
    text = f"{ctx.facts.name(position)} holds no number above the real size of the dimension {label}"
    return exact(False, DType.bool).relying(Need("bounded", text))


def _lone_digit(state: State, region: Region) -> Dim | None:
    """The extent of the digit that a position is, if the region has it in the padding."""
    for axis, digit in region:
        digits = state.axes[axis]
        if digits is None or not isinstance(state.position, Expr):
            continue
        rest = state.position - digit_symbols(axis, digits)[digit]
        if isinstance(rest, int) and rest >= 0:
            return digits[digit]
    return None


# --- scores minus their greatest --------------------------------------------------------------------------------


def is_below_its_maximum(node: Node) -> bool:
    """x - max(x), along whichever dimensions."""
    return row_maximum(node) is not None


def row_maximum(node: Node) -> tuple[Node, tuple[int, ...]] | None:
    """Of x - max(x): x, and the dimensions of the maximum."""
    if not isinstance(node.op, Map) or node.op.fn != "sub":
        return None
    x, top = node.inputs
    found = reduced_along(top, "max")
    if found is None or found.inputs[0] is not x:
        return None
    assert isinstance(found.op, Reduce)
    return x, found.op.axes


def reduced_along(top: Node, kind: str) -> Node | None:
    """The reduction whose results a node has beside each element that went into them."""
    if not isinstance(top.op, View) or top.op.fill is not None:
        return None
    (made,) = top.inputs
    if not isinstance(made.op, Reduce) or made.op.kind != kind or made.inputs[0].shape != top.shape:
        return None
    over = made.op.axes
    kept = tuple(e for d, e in enumerate(axis_exprs(top.op.axes)) if d not in over)
    same = all(i == e or (size == 1 and i == 0) for i, e, size in zip(top.op.index, kept, made.shape, strict=True))
    return made if same else None


def _below_maximum(ctx: Analysis, node: Node, region: Region) -> Content:
    """Never positive. A row of nothing but masked scores would be NaN."""
    found = row_maximum(node)
    assert found is not None
    source, over = found
    scores = ctx.state(source)
    x = scores.within(region)
    row = frozenset(p for p in region if p[0] not in over)
    least = scores.within(row).low  # of the row's real part
    parts = [scores.within(r) for r in _parts(ctx, scores, row, over)]
    most = max(p.high for p in parts)
    if any(p.nan for p in parts) or most == math.inf:
        return Content(-math.inf, math.inf, True)
    alike = not row or _masked_alike(ctx, source, row)
    if least == -math.inf and not alike:
        return Content(-math.inf, 0.0, True, needs=x.needs)
    needs = x.needs | ({UNMASKED} if least == -math.inf else frozenset[Need]())
    if x.high <= MASKED / 2 and alike:
        return Content(-math.inf, VANISHES, needs=needs | {UNMASKED})
    if x.low == -math.inf:
        return Content(-math.inf, 0.0, needs=needs)
    low = max(float(x.low) - float(most), -LARGEST)
    return Content(min(low, 0.0), 0.0, needs=needs if low > _LOWEST else needs | {FINITE})


def _parts(ctx: Analysis, scores: State, row: Region, over: Sequence[int]) -> list[Region]:
    """The regions of a row: real along what is reduced, and not."""
    return [r for r in scores.contents if {p for p in r if p[0] not in over} <= row]


def _masked_alike(ctx: Analysis, scores: Node, row: Region) -> bool:
    """Whether a row in the padding has the mask of real rows: the mask has no dimension that the row is padding in."""
    state = ctx.state(scores)
    if -math.inf not in (state.at(REAL).low, state.within(row).low):
        return True
    if not any(state.axes[axis] is not None for axis, _ in row):
        return True
    if not isinstance(scores.op, Map):
        return False
    if scores.op.fn == "where":
        cond = ctx.state(scores.inputs[0])
        if any(cond.axes[axis] is not None for axis, _ in row):
            return False
        return all(_masked_alike(ctx, x, row) for x in scores.inputs[1:])
    return scores.op.fn in ("add", "cast") and all(_masked_alike(ctx, x, row) for x in scores.inputs)
