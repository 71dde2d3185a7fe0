"""Splicing: the body of the kernel that stores a value goes where another kernel loads it.

Every pass that moves one kernel's work into another needs "the value stored at this index". Either the new body has
already computed it, because the producer precedes the reader at the same points (`Written`), or it is recomputed at
each position that is read (`Producer`). `splice` then writes the reader, and `Readers` lists the buffer's other
readers.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass

from burnish.ir.body import Axis, BodyBuilder, Instr, Load, Loop, Store, remap
from burnish.ir.expr import Dim, coefficient, floordiv, mentions, mod, substitute, symbols
from burnish.schedule.kernels import Kernel, LoopKernel, Schedule
from burnish.schedule.order import can_repeat


def splice(
    body: BodyBuilder,
    reader: Sequence[Instr],
    axes: Mapping[str, Dim],
    buffers: Container[str],
    stored: Callable[[Load], int | None],
    numbers: Iterable[int] | None = None,
) -> dict[int, int] | None:
    """Write the reader's instructions (those of `numbers`, if given) at `axes`, its own in terms of the body's. Loads
    of `buffers` are replaced by the values that `stored` returns. Returns the reader's values; None if one is not
    available."""
    values: dict[int, int] = {}
    for n in range(len(reader)) if numbers is None else numbers:
        moved = remap(reader[n], values, axes)
        if isinstance(moved, Load) and moved.buffer in buffers:
            found = stored(moved)
            if found is None:
                return None
            values[n] = found
        else:
            values[n] = body.emit(moved)
    return values


class Written:
    """The values and offsets of a body's stores."""

    def __init__(self, body: Sequence[Instr]) -> None:
        self._stores: dict[str, list[Store]] = {}
        for i in body:
            if isinstance(i, Store):
                self._stores.setdefault(i.buffer, []).append(i)

    def __contains__(self, buffer: object) -> bool:
        return buffer in self._stores

    def value(self, load: Load) -> int | None:
        """The value of a (guarded) load, if the only store to its buffer has just written it."""
        (store, *others) = self._stores[load.buffer]
        return store.value if store.index == load.index and store.mode == "set" and not others else None


# --- values that are recomputed ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Producer:
    """A loop that fills a temporary, or a part of it, at points that can be computed from the offset."""

    at: int  # among the kernels
    loop: Loop
    store: Store

    def value(self, body: BodyBuilder, index: Dim, reduced: Mapping[str, Dim] | None = None) -> int | None:
        """The value that the loop stores at this offset, recomputed; `reduced` are the points of its rows."""
        point = self._point(index)
        if point is None:
            return None
        numbers = [n for n, i in enumerate(self.loop.body) if not isinstance(i, Store)]
        values = splice(body, self.loop.body, {**point, **(reduced or {})}, (), lambda load: None, numbers)
        return None if values is None else values[self.store.value]

    def _point(self, index: Dim) -> dict[str, Dim] | None:
        """The point of the loop that stores at this place."""
        rest = index - substitute(self.store.index, {a.name: 0 for a in self.loop.axes})
        steps: list[tuple[int, Axis]] = []
        for axis in self.loop.parallel:
            step = coefficient(self.store.index, axis.name)
            if not isinstance(step, int) or step <= 0:
                return None
            steps.append((step, axis))
        steps.sort(key=lambda s: -s[0])
        found: dict[str, Dim] = {}
        for n, (step, axis) in enumerate(steps):
            reach: Dim = sum((s * (a.size - 1) for s, a in steps[n + 1 :]), start=0)
            if not isinstance(reach, int) or step <= reach:
                return None
            found[axis.name], rest = floordiv(rest, step), mod(rest, step)
        return found if rest == 0 else None


def sets_each_once(loop: Loop) -> bool:
    """Whether a loop sets one element for each of its kept points."""
    (store, *others) = loop.stores
    across = mentions(store.index, {a.name for a in loop.reduction})
    looked_up = any(s.name.startswith("%") for s in symbols(store.index))
    return not (others or loop.sequential or loop.scans or across or looked_up or store.mode != "set")


# --- readers ----------------------------------------------------------------------------------------------------


class Readers:
    """The readers of each buffer, in a schedule whose kernels a pass replaces one by one. None stands for a removed
    kernel."""

    def __init__(self, schedule: Schedule, kernels: Sequence[Kernel | None]) -> None:
        self._buffers, self._kernels = schedule.buffers, kernels
        self._results = schedule.result_buffers

    def __call__(self, buffer: str) -> list[int]:
        """The numbers of the kernels that read it."""
        return [n for n, kernel in enumerate(self._kernels) if kernel is not None and buffer in kernel.reads]

    def are_all(self, buffer: str) -> bool:
        """Whether only kernels read the buffer."""
        return buffer not in self._results and self._buffers[buffer].role == "temp"

    def can_compute(self, producer: int, last: int) -> bool:
        """Whether a kernel's computation can move to the position of a later one."""
        kernel = self._kernels[producer]
        return kernel is not None and can_repeat(kernel, self._kernels[producer + 1 : last])

    def producers(self, buffer: str, reader: int) -> list[Producer]:
        """The loops that fill a temporary that only this kernel reads, in order; none if it must be stored."""
        if not self.are_all(buffer) or any(n != reader for n in self(buffer)):
            return []
        found = []
        for n, kernel in enumerate(self._kernels):
            if kernel is None or buffer not in kernel.writes:
                continue
            if n > reader or not isinstance(kernel, LoopKernel) or not sets_each_once(kernel.loop):
                return []
            if not self.can_compute(n, reader):
                return []
            found.append(Producer(n, kernel.loop, kernel.loop.stores[0]))
        return found
