"""A few kernels of a schedule as a separate schedule, for a measurement."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from burnish.ir.expr import Dim
from burnish.schedule.form import Form
from burnish.schedule.kernels import Buffer, ExternKernel, LoopKernel, Operand, ResultBuffer, Schedule

_MOST_READERS = 3


@dataclass(frozen=True)
class Trial:
    """Something to be timed. Its arguments are its buffers of the role "input", by position; `unwritten` are those that
    no kernel of the whole program writes (parameters, which come from memory and not from the cache)."""

    schedule: Schedule
    unwritten: frozenset[str]

    @property
    def arguments(self) -> list[Buffer]:
        return sorted((b for b in self.schedule.buffers.values() if b.role == "input"), key=lambda b: b.position)


def excerpt(schedule: Schedule, numbers: Sequence[int], form: Form | None = None) -> Schedule:
    """The kernels of these numbers, in order. What they read of others becomes an argument, what others read of them a
    result. `form` is the first one's."""
    kernels = [schedule.kernels[n] for n in numbers]
    written: set[str] = set()
    read: list[str] = []
    for kernel in kernels:
        read += sorted(name for name in kernel.reads if name not in written)
        written |= kernel.writes & schedule.buffers.keys()
    read += sorted(name for name in written if schedule.buffers[name].role == "input")
    taken = {id(k) for k in kernels}
    wanted = schedule.result_buffers
    wanted |= {name for k in schedule.kernels if id(k) not in taken for name in k.reads}
    buffers: dict[str, Buffer] = {}
    for name in dict.fromkeys([*read, *sorted(written)]):
        b = schedule.buffers[name]
        if name in read and b.role != "constant":
            b = replace(b, role="input", position=sum(x.role == "input" for x in buffers.values()))
        elif name in written and b.role in ("temp", "output"):
            b = replace(b, role="output" if name in wanted else "temp")
        buffers[name] = b
    results: list[ResultBuffer | Dim | None] = [
        ResultBuffer(Operand(name, 0, buffers[name].shape, buffers[name].strides, buffers[name].dtype))
        for name in sorted(written & wanted)
    ]
    constants = {name: schedule.constants[name] for name in buffers if name in schedule.constants}
    return Schedule(buffers, kernels, results, constants, gpu=schedule.gpu, forms={} if form is None else {0: form})


def with_readers(schedule: Schedule, numbers: Sequence[int]) -> list[int]:
    """Kernels, and the loops that read what they make: with whom they may fuse."""
    made = {name for n in numbers for name in schedule.kernels[n].writes}
    later = range(max(numbers) + 1, len(schedule.kernels))
    readers = [n for n in later if isinstance(k := schedule.kernels[n], LoopKernel) and k.reads & made]
    return sorted({*numbers, *readers[:_MOST_READERS]})


def is_static(schedule: Schedule) -> bool:
    """Whether all of its sizes are known, so that it can be run alone."""
    sized = all(isinstance(d, int) for b in schedule.buffers.values() for d in (*b.shape, *b.strides))
    typed = all(b.dtype is not None for b in schedule.buffers.values())
    windows = [o for k in schedule.kernels if isinstance(k, ExternKernel) for o in k.inputs]
    return sized and typed and all(isinstance(o.offset, int) for o in windows)
