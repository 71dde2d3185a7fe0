"""Views, ranges, lookups and writes at positions: what an index map makes of padding.

Such an operation keeps real elements real if each digit of its source's index is an expression of the result's digits
alone: the same element then, whatever the padded sizes are. An index that mentions a padded size (the last element, a
flip) is another one in the padded run.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from burnish.ir.expr import Dim, Div, Expr, Mod, Sym, floordiv, is_less, is_nonneg, least, mod, of, substitute, symbols
from burnish.ir.graph import Concat, Full, Gather, Iota, Node, Scatter, View
from burnish.shapes.analysis import Analysis
from burnish.shapes.content import Content, Need, anything, exact, join
from burnish.shapes.state import (
    REAL,
    Digits,
    Place,
    Region,
    State,
    beyond,
    digit_name,
    digit_symbols,
    digits_of,
    value_of,
)

_LARGEST_POSITION = 1 << 40  # of any memory there is


@dataclass(frozen=True)
class Plan:
    """How the digits of a result address those of a source. `fine` are the digits that the index is written in, `axes`
    what they are joined to, `at` the index of each digit of the source. `reads` has the regions of the source that each
    region of the result reads from."""

    fine: tuple[Digits | None, ...]
    axes: tuple[Digits | None, ...]
    at: tuple[tuple[Dim, ...] | None, ...]
    joined: dict[Region, Region]  # a region of `fine` as one of `axes`
    reads: dict[Region, tuple[Region, ...]]


def plan_of(
    ctx: Analysis,
    shape: Sequence[Dim],
    axes: Sequence[Sym],
    index: Sequence[Dim],
    source: Sequence[Digits | None],
    given: Sequence[Digits | None] | None = None,
) -> Plan | None:
    """None where an index depends on a padded size. `given` are digits that the result's axes have for another
    reason."""
    key = (tuple(shape), tuple(axes), tuple(index), tuple(source), None if given is None else tuple(given))
    if key not in ctx.plans:
        ctx.plans[key] = _planned(ctx, shape, axes, index, source, given)
    found: Plan | None = ctx.plans[key]
    return found


def _planned(
    ctx: Analysis,
    shape: Sequence[Dim],
    axes: Sequence[Sym],
    index: Sequence[Dim],
    source: Sequence[Digits | None],
    given: Sequence[Digits | None] | None,
) -> Plan | None:
    used = {s.name for i, digits in zip(index, source, strict=True) if digits is not None for s in symbols(i)}
    for fine in _ways(ctx, shape, axes, index, source, given, used):
        at = _addressed(axes, fine, index, source)
        if not any(ctx.padding.is_padded(i) for digits in at if digits is not None for i in digits):
            return _with_regions(ctx, fine, at, source)
    return None


def _ways(
    ctx: Analysis,
    shape: Sequence[Dim],
    axes: Sequence[Sym],
    index: Sequence[Dim],
    source: Sequence[Digits | None],
    given: Sequence[Digits | None] | None,
    used: set[str],
) -> Iterable[tuple[Digits | None, ...]]:
    """Digits to try for the result: one for each axis, and what the index divides an axis into."""
    plain: list[Digits | None] = []
    cut: list[Digits | None] = []
    for i, (extent, axis) in enumerate(zip(shape, axes, strict=True)):
        forced = given[i] if given is not None else None
        if forced is not None:
            plain.append(forced)
            cut.append(forced)
        elif axis.name not in used or extent == 1:
            plain.append(None)
            cut.append(None)
        else:
            plain.append((extent,))
            cut.append(_cut(ctx, extent, _cuts(axis, index, source)) if ctx.padding.is_padded(extent) else (extent,))
    yield tuple(plain)
    if cut != plain:
        yield tuple(cut)


def _addressed(
    axes: Sequence[Sym], fine: Sequence[Digits | None], index: Sequence[Dim], source: Sequence[Digits | None]
) -> tuple[tuple[Dim, ...] | None, ...]:
    env: dict[str, Dim] = {
        axis.name: 0 if digits is None else value_of(digits, digit_symbols(a, digits))
        for a, (axis, digits) in enumerate(zip(axes, fine, strict=True))
    }
    return tuple(
        None if digits is None else digits_of(substitute(i, env), digits)
        for i, digits in zip(index, source, strict=True)
    )


def _cuts(axis: Sym, index: Sequence[Dim], source: Sequence[Digits | None]) -> list[Dim]:
    """The numbers that an index divides an axis by."""
    found: list[Dim] = []
    for i, digits in zip(index, source, strict=True):
        if isinstance(i, int) or digits is None:
            continue
        scale: Dim | None = 1 if _is(i, axis) else None
        for atom in (a for mono in i.terms for a in mono):
            if isinstance(atom, Div) and _is(atom.num, axis):
                scale = atom.den
                found.append(atom.den)
            elif isinstance(atom, Mod):
                inner = _lone(atom.num)
                if _is(atom.num, axis):
                    scale = 1
                    found.append(atom.den)
                elif isinstance(inner, Div) and _is(inner.num, axis):
                    scale = inner.den
                    found += [inner.den, inner.den * atom.den]
        if scale is not None:
            for extent in reversed(digits[1:]):
                scale = scale * extent
                found.append(scale)
    return found


def _lone(x: Expr) -> object:
    """The one atom that an expression is."""
    if len(x.terms) != 1:
        return None
    ((mono, coefficient),) = x.terms.items()
    return mono[0] if len(mono) == 1 and coefficient == 1 else None


def _is(x: Dim, axis: Sym) -> bool:
    return isinstance(x, Expr) and isinstance(atom := _lone(x), Sym) and atom.name == axis.name


def _cut(ctx: Analysis, extent: Dim, cuts: Sequence[Dim]) -> Digits:
    """An axis in digits, so that each cut is a product of the last ones."""
    digits: list[Dim] = []
    below: Dim = 1
    for place in sorted(set(cuts), key=_size_key):
        if place != below and mod(place, below) == 0 and mod(extent, place) == 0:
            digits.append(floordiv(place, below))
            below = place
    digits.append(floordiv(extent, below))
    return tuple(reversed(digits))


def _size_key(x: Dim) -> tuple[int, int]:
    if isinstance(x, int):
        return 0, x
    mono, coefficient = next(iter(x.terms.items()))
    return len(mono), coefficient


# --- regions ----------------------------------------------------------------------------------------------------


def _with_regions(
    ctx: Analysis, fine: Sequence[Digits | None], at: Sequence[tuple[Dim, ...] | None], source: Sequence[Digits | None]
) -> Plan:
    axes = tuple(None if digits is None else ctx.padding.canonical(digits) for digits in fine)
    regions = ctx.padding.regions(fine)
    names = _places_joined(ctx, fine)
    joined = {r: frozenset(names[p] for p in r) for r in regions}
    reads = {r: tuple(_source_regions(ctx, r, fine, at, source)) for r in regions}
    return Plan(tuple(fine), axes, tuple(at), joined, reads)


def _places_joined(ctx: Analysis, fine: Sequence[Digits | None]) -> dict[Place, Place]:
    """Where a padded digit is after digits that are not padded have joined those before them."""
    found: dict[Place, Place] = {}
    for a, digits in enumerate(fine):
        at = 0
        for d, extent in enumerate(digits or ()):
            if d and ctx.padding.is_padded(extent):
                at += 1
            if ctx.padding.is_padded(extent):
                found[(a, d)] = (a, at)
    return found


def _source_regions(
    ctx: Analysis,
    region: Region,
    fine: Sequence[Digits | None],
    at: Sequence[tuple[Dim, ...] | None],
    source: Sequence[Digits | None],
) -> Iterable[Region]:
    """Where in its source a region of a result may read."""
    known: list[Place] = []
    open_: list[Place] = []
    for axis, digit in ctx.padding.places(source):
        place, digits = at[axis], source[axis]
        assert place is not None and digits is not None
        where = _reached(place[digit], digits[digit], fine, region)
        if where is None:
            open_.append((axis, digit))
        elif where:
            known.append((axis, digit))
    for n in range(len(open_) + 1):
        for some in itertools.combinations(open_, n):
            yield frozenset((*known, *some))


def _reached(index: Dim, extent: Dim, fine: Sequence[Digits | None], region: Region) -> bool | None:
    """Whether an index is in the padding where digits of the region are; None where that is not known. The program is
    right for real sizes: an index of real digits is real."""
    moved = {digit_name(*place) for place in region}
    names = {s.name for s in symbols(index)}
    looked_up = any(n.startswith("%") for n in names)
    if not names & moved and not looked_up:
        return False
    if looked_up:
        return None if region else False
    return True if is_nonneg(beyond(index, fine, region) - extent) else None


# --- views ------------------------------------------------------------------------------------------------------


def view(ctx: Analysis, node: Node) -> tuple[State, ...]:
    op, x, source = node.op, ctx.state(node.inputs[0]), node.inputs[0]
    assert isinstance(op, View)
    if op.fill is not None:
        return (surrounded(ctx, node, op, source),)
    if (spoilt := ctx.spoilt(node, [x])) is not None:
        return (spoilt,)
    plan = plan_of(ctx, node.shape, op.axes, op.index, x.axes)
    if plan is None:
        return (ctx.refused(node, _why_not(ctx, op.axes, op.index, x.axes)),)
    contents = {plan.joined[r]: join(x.at(s) for s in found) for r, found in plan.reads.items()}
    return (ctx.made(node, plan.axes, contents, [x], position=_moved(x, plan)),)


def surrounded(ctx: Analysis, node: Node, op: View, source: Node) -> State:
    """A view that has a number where its index is outside of the source."""
    x = ctx.state(source)
    if (spoilt := ctx.spoilt(node, [x])) is not None:
        return spoilt
    # Constant along a dimension is not constant beyond its end.
    x = replace(x, axes=ctx.full_axes(source, 0, x.axes), contents=ctx.everywhere(source, x))
    plan = plan_of(ctx, node.shape, op.axes, op.index, x.axes)
    if plan is None:
        return ctx.refused(node, _why_not(ctx, op.axes, op.index, x.axes))
    return _filled(ctx, node, op, plan, x, source)


def _moved(x: State, plan: Plan) -> Dim | None:
    """The value of a view of positions."""
    if x.position is None or plan.fine != plan.axes:
        return None
    env: dict[str, Dim] = {
        digit_name(a, d): e for a, digits in enumerate(plan.at) if digits is not None for d, e in enumerate(digits)
    }
    return substitute(x.position, env)


def _filled(ctx: Analysis, node: Node, op: View, plan: Plan, x: State, source: Node) -> State:
    """A view that has a number where its index is outside of the source. What is outside of a padded dimension's real
    part must then be that number in the padding, too."""
    assert op.fill is not None
    fill = exact(op.fill, node.dtype)
    needs: set[Need] = set()
    for axis, digits in enumerate(x.axes):
        at = plan.at[axis]
        if digits is None or at is None or not any(map(ctx.padding.is_padded, digits)):
            continue
        if len(digits) > 1:
            return ctx.refused(node, "surrounds a dimension that is padded within")
        if is_less(at[0], digits[0]):
            continue
        for region in (r for r in x.contents if (axis, 0) in r):
            content = x.at(region)
            if not (content.bits and content.holds(op.fill)):
                return ctx.refused(
                    node,
                    f"reads {op.fill} beyond the end of the dimension {ctx.padding.label(digits[0])}, "
                    f"where padding holds {content}",
                )
            needs |= content.needs
    contents = {plan.joined[r]: join((fill, *(x.at(s) for s in found))) for r, found in plan.reads.items()}
    return ctx.made(node, plan.axes, contents, [x], frozenset(needs))


def _why_not(ctx: Analysis, axes: Sequence[Sym], index: Sequence[Dim], source: Sequence[Digits | None]) -> str:
    for i, digits in zip(index, source, strict=True):
        if digits is None or not ctx.padding.is_padded(i):
            continue
        label = ctx.padding.label(i)
        if len(digits) > 1 or any(isinstance(a, Div | Mod) for mono in getattr(i, "terms", {}) for a in mono):
            return f"joins or splits dimensions so that padding of {label} lies between real elements"
        return f"counts from the end of the dimension {label}, which padding moves"
    if (found := next((d for d in source if d is not None and len(d) > 1), None)) is not None:
        return f"rearranges a dimension that was joined from {ctx.padding.label(value_of(found, found))}"
    return "reads at positions that depend on a padded size"


# --- numbers that are made --------------------------------------------------------------------------------------


def full(ctx: Analysis, node: Node) -> tuple[State, ...]:
    op = node.op
    assert isinstance(op, Full)
    axes = (None,) * len(node.shape)
    if not isinstance(op.value, Expr):
        content = exact(op.value, node.dtype)
        place = op.value if type(op.value) is int else None
        return (ctx.made(node, axes, {REAL: content}, position=place),)
    if ctx.padding.is_padded(op.value):
        label = ctx.padding.label(op.value)
        return (ctx.refused(node, f"uses the size of the dimension {label} as a number, which padding changes"),)
    content = _span(op.value) if not node.dtype.is_float else Content(float(least(op.value) or 0), 1e13)
    return (ctx.made(node, axes, {REAL: content}, position=None if node.dtype.is_float else op.value),)


def iota(ctx: Analysis, node: Node) -> tuple[State, ...]:
    op = node.op
    assert isinstance(op, Iota)
    plan = plan_of(ctx, node.shape, op.axes, (op.expr,), ((_LARGEST_POSITION,),))
    if plan is None:
        label = ctx.padding.label(op.expr)
        return (ctx.refused(node, f"counts positions from the end of the dimension {label}, which padding moves"),)
    (at,) = plan.at
    assert at is not None
    contents = {plan.joined[r]: _span(beyond(at[0], plan.fine, r)) for r in plan.reads}
    return (ctx.made(node, plan.axes, contents, position=at[0] if plan.fine == plan.axes else None),)


def _span(x: Dim) -> Content:
    """The numbers that an expression may be."""
    low, most = least(x), least(-x)
    return Content(-_LARGEST_POSITION if low is None else low, _LARGEST_POSITION if most is None else -most)


# --- lookups ----------------------------------------------------------------------------------------------------


def gather(ctx: Analysis, node: Node) -> tuple[State, ...]:
    op = node.op
    assert isinstance(op, Gather)
    x, *places = (ctx.state(n) for n in node.inputs)
    if (spoilt := ctx.spoilt(node, [x, *places])) is not None:
        return (spoilt,)
    given = _digits_of_indices(ctx, places)
    index = _with_positions(op, places)
    plan = None if given is None else plan_of(ctx, node.shape, op.axes, index, x.axes, given)
    if plan is None:
        return (ctx.refused(node, _why_not(ctx, op.axes, op.index, x.axes)),)
    needs: set[Need] = set()
    for k, place in enumerate(places):
        if (why := _leaves(ctx, op.index, node.inputs[0].shape, k, place, needs)) is not None:
            return (ctx.refused(node, why),)
    contents = {plan.joined[r]: join(x.at(s) for s in found) for r, found in plan.reads.items()}
    return (ctx.made(node, plan.axes, contents, [x, *places], frozenset(needs)),)


def _with_positions(op: Gather | Scatter, places: Sequence[State]) -> tuple[Dim, ...]:
    """The index with the positions in it that are known as expressions."""
    names: dict[str, Dim] = {digit_name(a, 0): of(axis) for a, axis in enumerate(op.axes)}
    env: dict[str, Dim] = {}
    for k, place in enumerate(places):
        if place.position is not None and all(digits is None or len(digits) == 1 for digits in place.axes):
            env[f"%{k}"] = substitute(place.position, names)
    return tuple(substitute(i, env) for i in op.index)


def _digits_of_indices(ctx: Analysis, places: Sequence[State]) -> tuple[Digits | None, ...] | None:
    joined = ctx.padding.joined([p.axes for p in places])
    if joined is None:
        return None
    return tuple(a if a is not None and any(map(ctx.padding.is_padded, a)) else None for a in joined)


def _leaves(
    ctx: Analysis, index: Sequence[Dim], shape: Sequence[Dim], k: int, place: State, needs: set[Need]
) -> str | None:
    """Why positions in the padding may be outside of what they look up: eager raises there, or reads what is not its
    own."""
    padded = [place.at(r) for r in place.contents if r]
    if not padded:
        return None
    if not place.given:
        needs.add(Need("size", "the program takes the padded sizes: its tables are long enough"))
        return None
    for i, size in zip(index, shape, strict=True):
        names = {s.name for s in symbols(i)}
        if f"%{k}" not in names:
            continue
        known = least(size) or 0
        for content in padded:
            inside = names == {f"%{k}"} and not content.nan and content.low >= 0 and content.high < known
            if not inside or not _is_bare(i):
                return f"looks up positions of the padding, which hold {content}, in a dimension of {size}"
            needs |= content.needs
    return None


def _is_bare(index: Dim) -> bool:
    return isinstance(index, Expr) and _lone(index) is not None


# --- writes -----------------------------------------------------------------------------------------------------


def scatter(ctx: Analysis, node: Node) -> tuple[State, ...]:
    op = node.op
    assert isinstance(op, Scatter)
    base, source, *places = (ctx.state(n) for n in node.inputs)
    operands = [base, source, *places]
    if (spoilt := ctx.spoilt(node, operands)) is not None:
        return (spoilt,)
    written = node.inputs[1]
    given = ctx.padding.joined([source.axes, *(p.axes for p in places)])
    target = tuple((d,) if a is None else a for a, d in zip(base.axes, node.shape, strict=True))
    if given is None or any(a is not None and len(a) > 1 and any(map(ctx.padding.is_padded, a)) for a in given):
        return (ctx.refused(node, "writes a dimension that was joined from padded ones"),)
    plan = plan_of(ctx, written.shape, op.axes, _with_positions(op, places), target, tuple((d,) for d in written.shape))
    if plan is None:
        return (ctx.refused(node, _why_not(ctx, op.axes, op.index, target)),)
    needs: set[Need] = set()
    for k, place in enumerate(places):
        if (why := _leaves(ctx, op.index, node.shape, k, place, needs)) is not None:
            return (ctx.refused(node, why),)
    for region, reached in plan.reads.items():
        if not region or REAL not in reached:
            continue
        content = source.within(region)
        if not (op.mode == "add" and content.holds(0)):
            return (ctx.refused(node, f"writes padding, which holds {content}, where real elements may be"),)
        needs |= content.needs
    whole = join((source.whole, base.whole))
    if op.mode in ("add", "prod"):
        whole = anything(node.dtype)
    contents = dict.fromkeys(ctx.padding.regions(target), whole)
    return (ctx.made(node, target, contents, operands, frozenset(needs)),)


# --- joining ----------------------------------------------------------------------------------------------------


def concat(ctx: Analysis, node: Node) -> tuple[State, ...]:
    op = node.op
    assert isinstance(op, Concat)
    parts = [ctx.state(n) for n in node.inputs]
    if (spoilt := ctx.spoilt(node, parts)) is not None:
        return (spoilt,)
    along = [n.shape[op.axis] for n in node.inputs]
    if any(map(ctx.padding.is_padded, along[:-1])):
        label = ctx.padding.label(next(d for d in along if ctx.padding.is_padded(d)))
        return (ctx.refused(node, f"puts something after the padded dimension {label}"),)
    if (last := parts[-1].axes[op.axis]) is not None and len(last) > 1 and ctx.padding.is_padded(along[-1]):
        return (ctx.refused(node, "lengthens a dimension that is padded within"),)
    without = [(*s.axes[: op.axis], None, *s.axes[op.axis + 1 :]) for s in parts]
    joined = ctx.padding.joined(without)
    if joined is None:
        return (ctx.refused(node, "joins tensors whose padding lies in different places"),)
    axes = (*joined[: op.axis], (node.shape[op.axis],), *joined[op.axis + 1 :])
    contents: dict[Region, Content] = {}
    for region in ctx.padding.regions(axes):
        inside = any(a == op.axis for a, _ in region)
        contents[region] = join(s.within(region) for s in (parts[-1:] if inside else parts))
    return (ctx.made(node, axes, contents, parts),)
