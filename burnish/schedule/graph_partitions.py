"""Cuts a schedule into schedules that run in sequence: a value that one passes to a later one becomes an argument of
it.

Every partition takes all arguments of the whole at their positions, followed by the carried values. So sizes are read
where they were read before, and a buffer keeps its name.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from burnish.schedule.kernels import Buffer, ExternKernel, Kernel, Operand, ResultBuffer, Schedule


@dataclass(frozen=True)
class Partition:
    """`schedule` returns what it carries out, or, if it is the last one, the results of the whole."""

    schedule: Schedule
    carried_in: tuple[str, ...]
    carried_out: tuple[str, ...]
    reason: str  # why it is separate; empty for those between


def cut(schedule: Schedule, arguments: int, alone: Callable[[Kernel], str]) -> list[Partition]:
    """Kernels for which `alone` gives a reason are cut from those around them."""
    stretches = _stretches(schedule.kernels, alone)
    last_use = _last_uses(schedule, [kernels for kernels, _ in stretches])
    partitions: list[Partition] = []
    carried: list[str] = []
    first = 0  # number of the stretch's first kernel
    for n, (kernels, reason) in enumerate(stretches):
        made = {name for k in kernels for name in k.writes if name in schedule.buffers}
        kept = {*carried, *(m for m in made if schedule.buffers[m].role != "input")}
        out = tuple(sorted(name for name in kept if last_use.get(name, -1) > n))
        is_last = n == len(stretches) - 1
        buffers = _buffers(schedule, kernels, carried, out, arguments, schedule.results if is_last else ())
        results = schedule.results if is_last else [ResultBuffer(_whole(schedule.buffers[name])) for name in out]
        forms = {k - first: form for k, form in schedule.forms.items() if first <= k < first + len(kernels)}
        objects = schedule.objects if is_last else ()
        inner = Schedule(
            buffers, list(kernels), list(results), schedule.constants, gpu=schedule.gpu, forms=forms, objects=objects
        )
        first += len(kernels)
        partitions.append(Partition(inner, tuple(carried), () if is_last else out, reason))
        carried = list(out)
    return partitions


def _stretches(kernels: Sequence[Kernel], alone: Callable[[Kernel], str]) -> list[tuple[list[Kernel], str]]:
    out: list[tuple[list[Kernel], str]] = []
    for kernel in kernels:
        reason = alone(kernel)
        if not out or reason or out[-1][1]:
            out.append(([kernel], reason))
        else:
            out[-1][0].append(kernel)
    return out


def _last_uses(schedule: Schedule, stretches: Sequence[Sequence[Kernel]]) -> dict[str, int]:
    """The last stretch that reads or writes each buffer; the results are read after the last kernel."""
    last = {name: n for n, kernels in enumerate(stretches) for k in kernels for name in (*k.reads, *k.writes)}
    end = len(stretches) - 1
    last |= {r.operand.buffer: end for r in schedule.results if isinstance(r, ResultBuffer)}
    return last


def _buffers(
    schedule: Schedule,
    kernels: Sequence[Kernel],
    carried: Sequence[str],
    out: Sequence[str],
    arguments: int,
    results: Sequence[object],
) -> dict[str, Buffer]:
    used = {name for k in kernels for name in (*k.reads, *(() if isinstance(k, ExternKernel) else k.writes))}
    used |= {name for k in kernels for name in k.writes if name in schedule.buffers}
    used |= {r.operand.buffer for r in results if isinstance(r, ResultBuffer)} | set(out) | set(carried)
    buffers: dict[str, Buffer] = {}
    for name, b in schedule.buffers.items():
        if name in carried:
            buffers[name] = replace(b, role="input", position=arguments + list(carried).index(name))
        elif b.role == "input":
            buffers[name] = b
        elif name in used:
            buffers[name] = replace(b, role="output") if name in out and b.role == "temp" else b
    return buffers


def _whole(b: Buffer) -> Operand:
    return Operand(b.name, 0, b.shape, b.strides, b.dtype)
