"""Orders a loop's axes by memory strides. Every printer does this first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from burnish.ir.body import (
    Axis,
    Checked,
    Instr,
    Load,
    Loop,
    Position,
    Reduced,
    Store,
    instr_args,
    instr_index,
    make_axis,
    never_meet,
    remap,
    value_refs,
)
from burnish.ir.expr import Dim, Expr, coefficient, is_nonneg, mentions, steps_over, substitute


def normalise(loop: Loop) -> Loop:
    """Order axes by memory strides, then merge neighbours that every access traverses contiguously."""
    axes = _memory_order(loop)
    loop = replace(loop, axes=axes)
    if loop.scans:
        return loop
    k = 0
    while k + 1 < len(loop.axes):
        merged = _merge_axes(loop, k)
        if merged is None:
            k += 1
        else:
            loop = merged
    return loop


def _memory_order(loop: Loop) -> tuple[Axis, ...]:
    """Axes from the slowest to the fastest, by the strides of the loop's largest accesses."""

    def weight(axis: Axis) -> tuple[int, int]:
        best = 0
        for i in loop.body:
            if isinstance(i, Store | Load):
                c = coefficient(instr_index(i), axis.name)
                size = 1 << 40 if isinstance(c, Expr) else abs(c) if c is not None else 1 << 20
                scale = 4 if isinstance(i, Store) else 1
                best += scale * (min(size, 1 << 20).bit_length())
        return (-best, loop.axes.index(axis))

    if loop.scans:
        return (*loop.parallel, *loop.reduction)
    return (*sorted(loop.parallel, key=weight), *sorted(loop.reduction, key=weight))


def _merge_axes(loop: Loop, k: int) -> Loop | None:
    outer, inner = loop.axes[k], loop.axes[k + 1]
    if outer.reduce != inner.reduce:
        return None
    for i in loop.body:
        indices = [instr_index(i)] + ([i.at] if isinstance(i, Reduced) else [])
        for index in indices:
            if not mentions(index, {outer.name, inner.name}):
                continue
            a, b = coefficient(index, outer.name), coefficient(index, inner.name)
            if a is None or b is None or a != b * inner.size:
                return None
    joined = make_axis(inner.name, outer.size * inner.size, inner.reduce)
    env: dict[str, Dim] = {outer.name: 0, inner.name: joined.expr}
    identity = {n: n for n in range(len(loop.body))}
    body = tuple(remap(i, identity, env) for i in loop.body)
    return replace(loop, axes=(*loop.axes[:k], joined, *loop.axes[k + 2 :]), body=body)


def column_axis(loop: Loop) -> Axis | None:
    """The kept axis that is contiguous in more loads than any reduced axis, if there is one. Loads that do not vary
    with both kinds of axes (or with all axes, if some load does) are small and do not count."""
    score: dict[str, int] = {a.name: 0 for a in loop.axes}
    level = loop.element_level()
    kept_names, reduced_names = ({a.name for a in axes} for axes in (loop.parallel, loop.reduction))
    accesses = [i for n, i in enumerate(loop.body) if isinstance(i, Load | Store) and level[n]]
    large = [i for i in accesses if mentions(i.index, kept_names) and mentions(i.index, reduced_names)] or accesses
    most = max((_points(i, loop) for i in large), default=0)
    for i in (i for i in large if _points(i, loop) == most):
        for a in loop.axes:
            if coefficient(i.index, a.name) == 1:
                score[a.name] += 1
    kept = [a for a in loop.parallel if score[a.name] > 0]
    reduced = max((score[a.name] for a in loop.reduction), default=0)
    best = max(kept, key=lambda a: score[a.name], default=None)
    return best if best is not None and score[best.name] > reduced else None


def _points(i: Load | Store, loop: Loop) -> int:
    """The number of axes with which an access varies."""
    return sum(mentions(i.index, {a.name}) for a in loop.axes)


def row_order(loop: Loop) -> tuple[Axis, ...]:
    """The reduced axes, with the contiguous one innermost."""

    def contiguous(a: Axis) -> int:
        return sum(1 for i in loop.body if isinstance(i, Load | Store) and coefficient(i.index, a.name) == 1)

    return tuple(sorted(loop.reduction, key=contiguous))


def counts_up(place: Dim, order: Sequence[Axis]) -> bool:
    """Whether `place` grows from each point to the next, where the last axis of `order` runs fastest."""
    steps = [(step, a.size) for a in reversed(order) if (step := coefficient(place, a.name)) is not None]
    return len(steps) == len(order) and steps_over(steps)


def hits_each_once(offset: Dim, axes: Sequence[Axis], body: Sequence[Instr]) -> bool:
    """Whether an offset with indirect parts is different at every point: the axes' own parts never collide, and the
    indirect part is the same for all points (a cache's position), or fits between them (each sequence's own
    position)."""
    offset = substitute(offset, {f"%{v}": at for v in value_refs(offset) if (at := _known(body, v)) is not None})
    names = {a.name for a in axes}
    varies: list[bool] = []
    for i in body:
        varies.append(mentions(instr_index(i), names) or any(varies[a] for a in instr_args(i)))
    between = [(v, body[v]) for v in value_refs(offset) if varies[v]]
    looked_up = [make_axis(f"%{v}", i.size) for v, i in between if isinstance(i, Checked)]
    if len(looked_up) != len(between):
        return False  # it may be anything
    return all(mentions(offset, {a.name}) for a in axes) and never_meet([offset], [*axes, *looked_up])


def _known(body: Sequence[Instr], value: int) -> Dim | None:
    """The indirect part, if it is an index that cannot be out of bounds (a range over all sequences)."""
    looked_up = body[value]
    source = body[looked_up.arg] if isinstance(looked_up, Checked) else None
    if not isinstance(looked_up, Checked) or not isinstance(source, Position):
        return None
    return source.expr if is_nonneg(source.expr) and is_nonneg(looked_up.size - 1 - source.expr) else None
