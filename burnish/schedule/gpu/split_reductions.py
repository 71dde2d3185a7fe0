"""Split reductions: those with fewer rows than the GPU has multiprocessors are cut along the row, into partial results.

One loop becomes up to three: `partial` reduces each split of the rows into a buffer of its own, `combine` reduces the
splits and does the row-level work, `rest` needs the results at every element. A rest that still reduces is split again.
Splits and their order depend on sizes only, so results are deterministic.

Splitting pays if a worker's share of one pass is long compared with a kernel launch: a bias gradient over 8192 rows, a
batch norm of 64 channels, a sum over everything. A row of a softmax is not.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace

from burnish.fuel import Fuel
from burnish.ir.body import (
    Apply,
    Axis,
    BodyBuilder,
    Const,
    Instr,
    Load,
    Loop,
    Position,
    Reduced,
    Store,
    const,
    instr_args,
    make_axis,
    prune,
    remap,
    value_symbol,
)
from burnish.ir.dtypes import DType
from burnish.ir.expr import Dim, Expr, floordiv, product
from burnish.schedule.axes import column_axis, normalise
from burnish.schedule.kernels import Buffer, Kernel, LoopKernel, Schedule
from burnish.schedule.phases import Phases

_STRIP = 64  # neighbouring columns one worker takes together
_SPLITS = 8  # per worker: a column's sum waits for memory, so several have loads in flight
_SHORT_COLUMN = 512  # elements that a worker asks for all at once
_SHORTEST = 2048  # elements in a worker's share of a split


def split_reductions(
    schedule: Schedule, fuel: Fuel | None = None, workers: int | None = None, least: int = 1 << 18
) -> Schedule:
    """Cut reductions of fewer than `workers` independent strips where a strip moves at least `least` bytes a pass; a
    quarter of that where it is a single row, for which a worker has fewer threads. A worker is a multiprocessor."""
    fuel, workers = fuel or Fuel(), workers or schedule.gpu.multiprocessors
    buffers = dict(schedule.buffers)
    kernels: list[Kernel] = []
    for kernel in schedule.kernels:
        if isinstance(kernel, LoopKernel):
            kernels += [LoopKernel(loop) for loop in _split(kernel.loop, buffers, workers, least, fuel)]
        else:
            kernels.append(kernel)
    return schedule.with_kernels(kernels, buffers)


def _split(loop: Loop, buffers: dict[str, Buffer], workers: int, least: int, fuel: Fuel) -> list[Loop]:
    if not loop.reduction or loop.sequential or loop.scans:
        return [loop]
    ordered = normalise(loop)
    cut = _choose_cut(ordered, workers, least)
    if cut is None or not fuel.spend(f"split reductions: {', '.join(sorted(s.buffer for s in loop.stores))}"):
        return [loop]
    partial, combine, rest = _Split(ordered, *cut, buffers).loops()
    done = [partial, combine]
    return done if rest is None else [*done, *_split(rest, buffers, workers, least, fuel)]


# --- the decision -----------------------------------------------------------------------------------------------


def _choose_cut(loop: Loop, workers: int, least: int) -> tuple[Axis, int] | None:
    """The axis to cut and into how many splits, if that pays."""
    rows, length = (product([a.size for a in axes]) for axes in (loop.parallel, loop.reduction))
    if not isinstance(rows, int):
        return None
    width = _STRIP if column_axis(loop) is not None else 1
    strips = -(-rows // width)
    elements = min(width, rows) * _static(length)
    enough = least if width > 1 else least // 4
    if strips >= workers or elements * _bytes_per_element(loop) < enough:
        return None
    stores = bool(Phases(loop).element_stores(0))
    if width > 1 and _static(length) <= _SHORT_COLUMN and not stores:
        return None
    axis = max(loop.reduction, key=lambda a: _static(a.size))
    places = any(isinstance(i, Reduced) and i.kind.startswith("arg") for i in loop.body)
    if places and len(loop.reduction) > 1:
        return None  # the first of equal elements would depend on the order of the splits
    splits = _splits(axis.size, min(-(-_SPLITS * workers // strips), elements // _SHORTEST), exact=stores)
    return None if splits < 2 else (axis, splits)


def _static(size: Dim) -> int:
    return size if isinstance(size, int) else 1 << 20


def _bytes_per_element(loop: Loop) -> int:
    level = loop.element_level()
    return sum(i.dtype.itemsize for n, i in enumerate(loop.body) if isinstance(i, Load | Store) and level[n])


def _splits(size: Dim, wanted: int, exact: bool) -> int:
    """A number of splits that divides the axis, near the wanted one; any number if elements past the end can be
    masked."""
    if not isinstance(size, int):
        return 1 if exact else wanted
    most = min(wanted, size)
    dividing = next((n for n in range(most, max(most // 4, 1), -1) if size % n == 0), 1)
    if dividing > 1 or exact or most < 2:
        return dividing
    return -(-size // -(-size // most))  # none of them empty


# --- the rewriting ----------------------------------------------------------------------------------------------


class _Split:
    def __init__(self, loop: Loop, axis: Axis, splits: int, buffers: dict[str, Buffer]) -> None:
        self.loop, self.axis, self.splits, self.buffers = loop, axis, splits, buffers
        self.phases = Phases(loop)
        self.first = self.phases.reductions(0)
        self.rows = [a.size for a in loop.parallel]
        self.row: Dim = 0
        for a in loop.parallel:
            self.row = self.row * a.size + a.expr
        self.length: Dim = floordiv(axis.size + (splits - 1), splits)
        self.split = make_axis("piece", splits)
        self.stored: dict[int, list[str]] = {}  # reduction -> buffers of its partial results

    def loops(self) -> tuple[Loop, Loop, Loop | None]:
        return self._partial(), self._combine(), self._rest()

    def _buffer(self, dtype: DType, shape: list[Dim]) -> str:
        name = f"split{len(self.buffers)}"
        strides = tuple(product(shape[d + 1 :]) for d in range(len(shape)))
        self.buffers[name] = Buffer(name, dtype, tuple(shape), strides, "temp")
        return name

    def _partial(self) -> Loop:
        """Each split's reductions, and the element-level stores that depend on none."""
        step = make_axis(self.axis.name, self.length, True)
        at = self.split.expr * self.length + step.expr
        out = PartialBody(self.loop, {self.axis.name: at})
        exact = self.axis.size == self.length * self.splits
        if not exact:
            out.guard_past(at, self.axis.size)
        for n in self.phases.element_stores(0):
            out.value(n)
        where = self.split.expr * product(self.rows) + self.row
        for n in self.first:
            i = self._reduced(n)
            value = out.masked(i.arg, _identity(i.kind, self.loop.body[i.arg].dtype))
            self.stored[n] = []
            for part in self._parts(i):
                name = self._buffer(part.dtype, [self.splits, *self.rows])
                reduced = out.emit(remap(replace(part, arg=0), {0: value}, out.axes))
                out.emit(Store(name, where, reduced, "set", part.dtype))
                self.stored[n].append(name)
        inner = tuple(step if a is self.axis else a for a in self.loop.reduction)
        return Loop((*self.loop.parallel, self.split, *inner), prune(out.instrs))

    def _parts(self, i: Reduced) -> list[Reduced]:
        """The stored parts of a split: its result, and for an argmax also the value at that position."""
        if not i.kind.startswith("arg"):
            return [i]
        held = self.loop.body[i.arg].dtype.compute
        return [i, Reduced(i.kind.removeprefix("arg"), i.arg, held)]

    def _reduced(self, n: int) -> Reduced:
        i = self.loop.body[n]
        assert isinstance(i, Reduced)
        return i

    def _combine(self) -> Loop:
        """The splits' results reduced, and all row-level work that needs no more than those."""
        along = make_axis("piece", self.splits, True)
        out = PartialBody(self.loop, {})
        where = along.expr * product(self.rows) + self.row
        for n in self.first:
            out.values[n] = self._combined(out, self._reduced(n), self.stored[n], where, along.expr)
        for n, i in enumerate(self.loop.body):
            if isinstance(i, Store) and not self.phases.level[n] and self.phases.ready[n] <= 1:
                out.value(n)
        self.kept: dict[int, str] = {}
        for n in self._frontier():
            i = self.loop.body[n]
            assert not isinstance(i, Store)
            self.kept[n] = self._buffer(i.dtype.compute, list(self.rows))
            out.emit(Store(self.kept[n], self.row, out.value(n), "set", i.dtype.compute))
        return Loop((*self.loop.parallel, along), prune(out.instrs))

    def _combined(self, out: PartialBody, i: Reduced, parts: list[str], where: Dim, along: Expr) -> int:
        if not i.kind.startswith("arg"):
            return out.emit(replace(i, arg=out.emit(Load(parts[0], where, i.dtype))))
        value = out.emit(Load(parts[1], where, self.buffers[parts[1]].dtype or i.dtype))
        split = out.emit(Reduced(i.kind, value, DType.i64, along))
        return out.emit(Load(parts[0], value_symbol(split) * product(self.rows) + self.row, i.dtype))

    def _frontier(self) -> list[int]:
        """Row-level results of the first pass that later passes read."""
        level, ready, body = self.phases.level, self.phases.ready, self.loop.body
        late = [n for n in range(len(body)) if ready[n] > 1 or (level[n] and ready[n] == 1)]
        used = {a for n in late for a in instr_args(body[n])}
        return [n for n in sorted(used) if not level[n] and ready[n] == 1 and not isinstance(body[n], Const)]

    def _rest(self) -> Loop | None:
        """The remaining work, with the first pass's results loaded; a plain map if no reduction is left."""
        body, level, ready = self.loop.body, self.phases.level, self.phases.ready
        roots = [n for n, i in enumerate(body) if isinstance(i, Store) and ready[n] > (0 if level[n] else 1)]
        if not roots:
            return None
        out = PartialBody(self.loop, {})
        for n, name in self.kept.items():
            dtype = self.buffers[name].dtype
            assert dtype is not None
            out.values[n] = out.emit(Load(name, self.row, dtype))
        for n in roots:
            out.value(n)
        instrs = prune(out.instrs)
        reduces = any(isinstance(i, Reduced) for i in instrs)
        return Loop(tuple(replace(a, reduce=a.reduce and reduces) for a in self.loop.axes), instrs)


class PartialBody(BodyBuilder):
    """Parts of a loop's body, re-emitted under new axes as they are asked for."""

    def __init__(self, loop: Loop, axes: Mapping[str, Dim]) -> None:
        super().__init__()
        self.source, self.axes, self.level = loop.body, axes, loop.element_level()
        self.values: dict[int, int] = {}
        self.inside: int | None = None  # a truth value: this point lies within the row

    def guard_past(self, at: Dim, size: Dim) -> None:
        limit = const(size, DType.i64) if isinstance(size, int) else Position(size)
        self.inside = self.emit(Apply("lt", (self.emit(Position(at)), self.emit(limit)), DType.bool))

    def value(self, n: int) -> int:
        for needed in self._missing(n):
            i = remap(self.source[needed], self.values, self.axes)
            self.values[needed] = self.emit(self._guarded(i) if self.level[needed] else i)
        return self.values[n]

    def _missing(self, n: int) -> Iterable[int]:
        """What a value takes and is not here yet, in the source's order."""
        seen: set[int] = set()
        stack = [n]
        while stack:
            v = stack.pop()
            if v not in self.values and v not in seen:
                seen.add(v)
                stack.extend(instr_args(self.source[v]))
        return sorted(seen)

    def _guarded(self, i: Instr) -> Instr:
        if self.inside is None or not isinstance(i, Load):
            return i
        guard = self.inside if i.guard is None else self.emit(Apply("and", (i.guard, self.inside), DType.bool))
        return replace(i, guard=guard)

    def masked(self, n: int, identity: bool | int | float) -> int:
        value = self.value(n)
        if self.inside is None:
            return value
        dtype = self.source[n].dtype.compute
        return self.emit(Apply("where", (self.inside, value, self.emit(const(identity, dtype))), dtype))


def _identity(kind: str, dtype: DType) -> bool | int | float:
    """The identity of a reduction. For an argmax it must only never win: a split is never empty."""
    if kind in ("sum", "any", "prod", "all"):
        one = kind in ("prod", "all")
        return float(one) if dtype.is_float else one if dtype is DType.bool else int(one)
    low = kind in ("max", "argmax")
    if dtype.is_float:
        return -math.inf if low else math.inf
    if dtype is DType.bool:
        return not low
    if dtype is DType.u8:
        return 0 if low else 255
    top = 1 << (8 * dtype.itemsize - 1)
    return -top if low else top - 1
