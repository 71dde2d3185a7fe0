"""One kernel of a schedule by itself: evaluated in torch, and as the C that was generated for it."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch

from burnish.codegen.c.unit import generate, print_kernel
from burnish.observe.log import CompileLog
from burnish.options import Options
from burnish.runtime.build.shared_library import CSource, build_shared, load_native
from burnish.runtime.cache.store import open_cache
from burnish.schedule.evaluate import ScheduleEvaluation
from burnish.schedule.kernels import ExternKernel, Kernel, LoopKernel, Schedule

Memory = dict[str, torch.Tensor]  # buffers as flat tensors


@dataclass(frozen=True)
class KernelRun:
    """A kernel with the buffers it touches, as they are before it runs and as they should be afterwards."""

    number: int
    kernel: Kernel
    before: Memory
    after: Memory


def kernel_runs(
    schedule: Schedule, arguments: Sequence[torch.Tensor | int | None], sizes: Mapping[str, int]
) -> Iterator[KernelRun]:
    """Every kernel in turn, over the buffers that evaluating those before it leaves."""
    evaluation = ScheduleEvaluation(schedule, arguments, sizes)
    for number, kernel in enumerate(schedule.kernels):
        touched = [name for name in kernel.reads | kernel.writes if name in evaluation.memory]
        before = {name: evaluation.memory[name].clone() for name in touched}
        evaluation.run_kernel(kernel)
        yield KernelRun(number, kernel, before, {n: evaluation.memory[n] for n in kernel.writes if n in before})


def run_generated(
    kernel: Kernel, schedule: Schedule, memory: Memory, sizes: Mapping[str, int], options: Options
) -> Memory:
    """The buffers after the kernel's own C ran over copies of `memory`."""
    alone = Schedule(schedule.buffers, [kernel], [], gpu=schedule.gpu)
    unit = generate(alone)
    cache, log = open_cache(options), CompileLog(name="one kernel")
    if unit.uses_library:
        load_native(unit.uses_double, options, cache, log)
    library = build_shared(CSource(unit.text, "one kernel"), options=options, cache=cache, log=log)
    after = {name: tensor.clone() for name, tensor in memory.items()}
    table = (ctypes.c_int64 * max(len(unit.slots), 1))()
    for name, slot in unit.slots.items():
        if name in after:
            table[slot] = after[name].data_ptr()
        elif name in sizes:
            table[slot] = sizes[name]
    entry = library.bn_run_0
    entry.restype = None
    entry(ctypes.c_void_p(ctypes.addressof(table)))
    return after


def source_of(kernel: Kernel, schedule: Schedule, device: torch.device) -> str:
    """The kernel's generated source, or what stands in for it."""
    if isinstance(kernel, ExternKernel):
        return f"a call of {kernel.op.name}"
    if device.type == "cpu":
        return print_kernel(kernel, schedule.buffers).text.replace("@", "kernel")
    if isinstance(kernel, LoopKernel):
        from burnish.codegen.triton.loop import print_loop

        return print_loop(kernel.loop, schedule.gpu).text.replace("@(", "kernel(")
    return str(kernel)


def size_values(
    sources: Mapping[str, tuple[int, str, int]], arguments: Sequence[torch.Tensor | int | None]
) -> dict[str, int]:
    """What each size symbol is in this call."""
    found: dict[str, int] = {}
    for name, (position, kind, dimension) in sources.items():
        given = arguments[position]
        if isinstance(given, int):
            found[name] = given
        elif isinstance(given, torch.Tensor):
            of = {"size": given.shape, "stride": given.stride(), "offset": (given.storage_offset(),)}
            found[name] = int(of[kind][dimension])
    return found
