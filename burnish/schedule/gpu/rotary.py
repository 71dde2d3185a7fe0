"""Rotary embedding on a GPU, fused into the product whose result it rotates.

A rotary embedding combines element d of a head with element d + D/2. As loops over elements, the product that computes
the head and the rotation that reads it at two places cannot be fused: each point would need another point's sum. Over
half the elements they can: a point then computes two rows of the product and two elements of the rotation, and reads
only its own results. Conditions on the position become constants.
"""

from __future__ import annotations

from collections.abc import Mapping

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
    Store,
    const,
    make_axis,
    prune,
    remap,
)
from burnish.ir.dtypes import DType
from burnish.ir.expr import Dim, coefficient, is_nonneg, substitute
from burnish.schedule.fuse import Unified, unify
from burnish.schedule.gpu.vector_loops import is_vector_product
from burnish.schedule.kernels import Kernel, LoopKernel, Schedule, made_by
from burnish.schedule.splice import Readers, splice


def join_rotary(schedule: Schedule, fuel: Fuel | None = None) -> Schedule:
    """Fuse a vector product with the only loop that reads its result, if that loop combines two halves of the
    result."""
    fuel = fuel or Fuel()
    kernels: list[Kernel | None] = list(schedule.kernels)
    readers_of = Readers(schedule, kernels)
    for n, kernel in enumerate(schedule.kernels):
        if not isinstance(kernel, LoopKernel) or not is_vector_product(kernel.loop) or len(kernel.loop.stores) != 1:
            continue
        (made,) = kernel.writes
        readers = readers_of(made)
        if len(readers) != 1 or not readers_of.are_all(made) or not readers_of.can_compute(n, readers[0]):
            continue
        reader = kernels[readers[0]]
        if not isinstance(reader, LoopKernel):
            continue
        joined = _joined(kernel.loop, reader.loop)
        if joined is not None and fuel.spend(f"rotary: {made} + {made_by(reader)}"):
            kernels[n], kernels[readers[0]] = None, LoopKernel(joined)
    return schedule.with_kernels([k for k in kernels if k is not None])


def _joined(product: Loop, reader: Loop) -> Loop | None:
    if reader.reduction or reader.sequential or product.sequential:
        return None
    for unified in unify(product, reader):
        joined = _joined_under(product, reader, unified)
        if joined is not None:
            return joined
    return None


def _joined_under(product: Loop, reader: Loop, unified: Unified) -> Loop | None:
    (store,) = product.stores
    here = substitute(store.index, unified.first)
    axis = _halved_axis(here, reader, unified, store.buffer)
    if axis is None:
        return None
    assert isinstance(axis.size, int)
    short = make_axis(axis.name, axis.size // 2)
    body = _Folding()
    for half in (0, 1):
        body.made_by(product, _at(unified.first, axis, short, half))
    for half in (0, 1):
        if splice(body, reader.body, _at(unified.second, axis, short, half), (store.buffer,), body.stored) is None:
            return None
    loop = Loop(tuple(short if a.name == axis.name else a for a in unified.axes), prune(body.instrs))
    return loop if loop.hazard() is None else None


def _halved_axis(here: Dim, reader: Loop, unified: Unified, buffer: str) -> Axis | None:
    """The axis along which the reader's offset differs from the product's store by half the axis' length."""
    looks = [substitute(i.index, unified.second) for i in reader.loads if i.buffer == buffer]
    steps = {abs(d) for look in looks if isinstance(d := look - here, int) and d != 0}
    if len(steps) != 1 or not all(isinstance(look - here, int) for look in looks):
        return None
    (step,) = steps
    for axis in unified.axes:
        if not axis.reduce and axis.size == 2 * step and coefficient(here, axis.name) == 1:
            return axis
    return None


def _at(place: Mapping[str, Dim], axis: Axis, short: Axis, half: int) -> dict[str, Dim]:
    assert isinstance(short.size, int)
    moved = short.expr + half * short.size
    return {name: substitute(e, {axis.name: moved}) for name, e in place.items()}


class _Folding(BodyBuilder):
    """A body whose conditions on positions are folded to constants where possible."""

    def __init__(self) -> None:
        super().__init__()
        self.made: dict[Dim, int] = {}  # what the product would have stored, by its place

    def made_by(self, loop: Loop, axes: Mapping[str, Dim]) -> None:
        values: dict[int, int] = {}
        for n, i in enumerate(loop.body):
            moved = remap(i, values, axes)
            if isinstance(moved, Store):
                self.made[moved.index] = moved.value
            else:
                values[n] = super().emit(moved)

    def emit(self, instr: Instr) -> int:
        known = self._folded(instr)
        return known if isinstance(known, int) else super().emit(known)

    def stored(self, load: Load) -> int | None:
        """The value that the product stores at the load's offset, if it certainly does."""
        known = self._folded(load)
        if not isinstance(known, Load):
            return known if isinstance(known, int) else super().emit(known)
        return self.made.get(known.index) if known.guard is None else None

    def _folded(self, i: Instr) -> Instr | int:
        """The instruction, a simpler one, or the value it is."""
        match i:
            case Load(_, _, dtype, guard, fill) if guard is not None and (sure := self._decided(guard)) is not None:
                return Load(i.buffer, i.index, dtype) if sure else const(fill, dtype.compute)
            case Apply("ge" | "lt" as fn, (first, second), _):
                at, limit = self.instrs[first], self.instrs[second]
                if isinstance(at, Position) and isinstance(limit, Const) and isinstance(limit.value, int):
                    beyond = self._beyond(at.expr, limit.value)
                    if beyond is not None:
                        return const(beyond == (fn == "ge"), DType.bool)
            case Apply("and", (first, second), _):
                for one, other in ((first, second), (second, first)):
                    sure = self._decided(one)
                    if sure is not None:
                        return other if sure else one
            case Apply("where", (condition, yes, no), _) if (sure := self._decided(condition)) is not None:
                return yes if sure else no
        return i

    def _decided(self, value: int) -> bool | None:
        i = self.instrs[value]
        return i.value if isinstance(i, Const) and isinstance(i.value, bool) else None

    @staticmethod
    def _beyond(at: Dim, limit: int) -> bool | None:
        if is_nonneg(at - limit):
            return True
        return False if is_nonneg(limit - 1 - at) else None
