"""Fuses column sums into a row kernel that already holds the data: a norm's weight gradient, a bias gradient.

On a GPU a kernel that works on rows (a normalisation's gradient) has neighbours that reduce the same data along the
other axis, and each would read it from memory again. Here the row kernel computes these sums, too. A program processes
several rows in sequence, accumulates a partial sum of each column, and stores its sums (`Store` mode `total`). A small
kernel then adds up the programs' sums. The rows of a program depend on sizes only, so results are deterministic.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from burnish.fuel import Fuel
from burnish.ir.body import (
    Axis,
    BodyBuilder,
    Instr,
    Load,
    Loop,
    Reduced,
    Scanned,
    Store,
    instr_args,
    make_axis,
    rebuild,
)
from burnish.ir.dtypes import DType
from burnish.ir.expr import Dim, product, substitute, symbols
from burnish.schedule.axes import column_axis
from burnish.schedule.fuse import Unified, join, unify
from burnish.schedule.gpu.split_reductions import PartialBody
from burnish.schedule.kernels import Buffer, Kernel, LoopKernel, Schedule, made_by
from burnish.schedule.order import can_pass
from burnish.schedule.phases import Phases
from burnish.schedule.splice import Written, splice

_PROGRAMS = 4  # programs on each multiprocessor that share the rows: all are resident at once
_FEWEST_ROWS = 8  # rows of a program: with fewer, the programs' sums would be as large as the rows
_LENGTHS = range(128, 4097)  # elements of rows that stay in registers, with a sum for every column
_MOST_SUMS = 4


def join_columns(schedule: Schedule, fuel: Fuel | None = None, programs: int | None = None) -> Schedule:
    """Fuse sums over rows into the kernels that work on those rows, if there are enough rows for the programs."""
    return _Joiner(schedule, fuel or Fuel(), programs or _PROGRAMS * schedule.gpu.multiprocessors).run()


@dataclass(frozen=True)
class _Sums:
    """Column sums, and the values of the row kernel's body that they add up."""

    loop: Loop
    columns: Dim  # the position among the columns, over the row kernel's axes
    values: tuple[tuple[int, int], ...]  # a reduction of the loop -> the value of the row kernel


class _Joiner:
    def __init__(self, schedule: Schedule, fuel: Fuel, programs: int) -> None:
        self.schedule, self.fuel, self.programs = schedule, fuel, programs
        self.buffers = dict(schedule.buffers)
        self.kernels: list[Kernel | None] = list(schedule.kernels)

    def run(self) -> Schedule:
        after: dict[int, list[Kernel]] = {}
        for n, kernel in enumerate(self.kernels):
            if isinstance(kernel, LoopKernel) and _works_on_rows(kernel.loop):
                joined = self._joined(n, kernel.loop)
                if joined is not None:
                    self.kernels[n], after[n] = LoopKernel(joined[0]), [LoopKernel(loop) for loop in joined[1]]
        kernels = [k for n, kernel in enumerate(self.kernels) for k in (kernel, *after.get(n, ())) if k is not None]
        return self.schedule.with_kernels(kernels, self.buffers)

    def _joined(self, at: int, rows: Loop) -> tuple[Loop, list[Loop]] | None:
        """The row kernel with the sums that can be fused, and the kernels that finish them."""
        size = product([a.size for a in rows.axes])
        taken: list[_Sums] = []
        step = _rows_of_a_program(rows, self.programs)
        if step is None:
            return None
        for n, kernel in enumerate(self.kernels):
            if not isinstance(kernel, LoopKernel) or not self._shares(at, n, size) or not _sums_columns(kernel.loop):
                continue
            if not _can_move(self.kernels, n, at):
                continue
            found = _ride_along(rows, taken, kernel.loop)
            if found is None or sum(len(s.values) for s in found[1]) > _MOST_SUMS:
                continue
            if not self.fuel.spend(f"columns: {made_by(kernel)}"):
                break
            rows, taken = found
            self.kernels[n] = None
        return _Finish(rows, step, taken, self.buffers).loops() if taken else None

    def _shares(self, at: int, n: int, size: Dim) -> bool:
        rows, sums = self.kernels[at], self.kernels[n]
        assert rows is not None and sums is not None
        shared = (rows.reads | rows.writes) & sums.reads
        return at != n and any(name in self.buffers and self.buffers[name].elements == size for name in shared)


def _works_on_rows(loop: Loop) -> bool:
    if not loop.reduction or not loop.parallel or loop.sequential or not _is_static(loop) or _is_special(loop.body):
        return False
    return product([a.size for a in loop.reduction]) in _LENGTHS and column_axis(loop) is None


def _sums_columns(loop: Loop) -> bool:
    """Whether the loop's only use of its elements is to add them up over rows."""
    if not loop.reduction or not loop.parallel or loop.sequential or not _is_static(loop) or _is_special(loop.body):
        return False
    phases = Phases(loop)
    reductions = [i for i in loop.body if isinstance(i, Reduced)]
    plain = all(i.kind == "sum" and i.dtype is DType.f32 for i in reductions)
    return plain and phases.last == 1 and not phases.element_stores(0) and not phases.element_stores(1)


def _is_static(loop: Loop) -> bool:
    return all(isinstance(a.size, int) for a in loop.axes)


def _is_special(body: Sequence[Instr]) -> bool:
    return any(isinstance(i, Scanned) or (isinstance(i, Store) and i.mode != "set") for i in body)


def _rows_of_a_program(loop: Loop, programs: int) -> int | None:
    """The number of consecutive rows of a program: a divisor of the innermost kept axis."""
    inner, rows = loop.parallel[-1].size, product([a.size for a in loop.parallel])
    assert isinstance(inner, int) and isinstance(rows, int)
    wanted = rows // programs
    fitting = [n for n in range(_FEWEST_ROWS, min(inner, 2 * wanted) + 1) if inner % n == 0]
    return min(fitting, key=lambda n: abs(n - wanted), default=None)


def _can_move(kernels: Sequence[Kernel | None], source: int, target: int) -> bool:
    """Whether a kernel may move to another's position: no kernel between them conflicts with its buffers. The other may
    write its inputs."""
    moved, other = kernels[source], kernels[target]
    assert moved is not None and other is not None
    between = kernels[min(source, target) + 1 : max(source, target)]
    if not can_pass(moved, between) or moved.writes & (other.reads | other.writes):
        return False
    return source > target or not moved.reads & other.writes


def _ride_along(rows: Loop, taken: list[_Sums], sums: Loop) -> tuple[Loop, list[_Sums]] | None:
    """The row kernel's loop extended by the values that `sums` adds up, and every sum in terms of it; None if one's
    rows are not the other's columns, or if an element is not available at the row kernel's point."""
    for unified in unify(_unreduced(rows), _unreduced(sums)):
        if _mentioned(unified.first, rows.reduction) != _mentioned(unified.second, sums.parallel):
            continue
        if len(unified.axes) == len(rows.axes):
            return _body_of_both(rows, taken, sums, unified)
    return None


def _unreduced(loop: Loop) -> Loop:
    return replace(loop, axes=tuple(replace(a, reduce=False) for a in loop.axes))


def _mentioned(env: dict[str, Dim], axes: Iterable[Axis]) -> set[str]:
    return {s.name for a in axes for s in symbols(env[a.name])}


def _body_of_both(rows: Loop, taken: list[_Sums], sums: Loop, u: Unified) -> tuple[Loop, list[_Sums]] | None:
    body = BodyBuilder()
    kept = rebuild(rows.body, u.first, body)
    written = Written(body.instrs)
    stored = lambda load: written.value(load) if load.guard is None else None  # noqa: E731
    values = splice(body, sums.body, u.second, written, stored, _added_up(sums.body))
    if values is None:
        return None
    columns: Dim = 0
    for a in sums.parallel:
        columns = columns * a.size + u.second[a.name]
    found = tuple((n, values[i.arg]) for n, i in enumerate(sums.body) if isinstance(i, Reduced))
    reduced = _mentioned(u.first, rows.reduction)
    axes = tuple(replace(a, reduce=a.name in reduced) for a in u.axes)
    earlier = [_Sums(s.loop, substitute(s.columns, u.first), tuple((n, kept[v]) for n, v in s.values)) for s in taken]
    return Loop(axes, tuple(body.instrs)), [*earlier, _Sums(sums, columns, found)]


def _added_up(body: Sequence[Instr]) -> list[int]:
    """The summed values, and all values they depend on."""
    needed: set[int] = set()
    stack = [i.arg for i in body if isinstance(i, Reduced)]
    while stack:
        n = stack.pop()
        if n not in needed:
            needed.add(n)
            stack.extend(instr_args(body[n]))
    return sorted(needed)


class _Finish:
    """The row kernel with its stores of sums, and the loops that add those up and do the remaining work."""

    def __init__(self, rows: Loop, step: int, taken: list[_Sums], buffers: dict[str, Buffer]) -> None:
        self.rows, self.step, self.taken, self.buffers = rows, step, taken, buffers
        self.inner = rows.parallel[-1]
        assert isinstance(self.inner.size, int)
        self.outer = [*rows.parallel[:-1], make_axis("piece", self.inner.size // step)]
        self.taking = make_axis("step", step)
        self.splits = product([a.size for a in self.outer])

    def loops(self) -> tuple[Loop, list[Loop]]:
        body = BodyBuilder()
        env: dict[str, Dim] = {self.inner.name: self.outer[-1].expr * self.step + self.taking.expr}
        kept = rebuild(self.rows.body, env, body)
        split: Dim = 0
        for a in self.outer:
            split = split * a.size + a.expr
        finished: list[Loop] = []
        for sums in self.taken:
            width = product([a.size for a in sums.loop.parallel])
            parts: dict[int, str] = {}
            for n, value in sums.values:
                name = f"columns{len(self.buffers)}"
                self.buffers[name] = Buffer(name, DType.f32, (self.splits, width), (width, 1), "temp")
                body.emit(Store(name, split * width + sums.columns, kept[value], "total", DType.f32))
                parts[n] = name
            finished.append(self._combined(sums.loop, parts, width))
        return Loop((*self.outer, self.taking, *self.rows.reduction), tuple(body.instrs)), _side_by_side(finished)

    def _combined(self, loop: Loop, parts: dict[int, str], width: Dim) -> Loop:
        along = make_axis("piece", self.splits, True)
        column: Dim = 0
        for a in loop.parallel:
            column = column * a.size + a.expr
        out = PartialBody(loop, {})
        for n, name in parts.items():
            part = out.emit(Load(name, along.expr * width + column, DType.f32))
            out.values[n] = out.emit(Reduced("sum", part, DType.f32))
        for n, i in enumerate(loop.body):
            if isinstance(i, Store):
                out.value(n)
        return Loop((*loop.parallel, along), tuple(out.instrs))


def _side_by_side(loops: list[Loop]) -> list[Loop]:
    """Merge loops over the same space into one launch."""
    first, *others = loops
    out = [first]
    for loop in others:
        joined = join(out[-1], loop)
        if joined is None:
            out.append(loop)
        else:
            out[-1] = joined
    return out
