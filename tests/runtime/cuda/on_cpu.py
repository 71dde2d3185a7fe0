"""CUDA's programs without a device: kernels on the "device" are the reference's, on addresses out of the table."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from burnish.errors import CompileError
from burnish.ir.expr import evaluate
from burnish.observe.log import CompileLog
from burnish.runtime.cuda.launch import Kernel, Launch, Loading
from burnish.runtime.cuda.program import CudaRun, CudaUnit, LoadedUnit, assemble, generate_cuda
from burnish.runtime.program import Program, build_program
from burnish.schedule.evaluate import ScheduleEvaluation
from burnish.schedule.graph_partitions import cut
from burnish.schedule.kernels import ExternKernel, Schedule
from tests.programs import capture, schedules


@dataclass
class CpuLauncher:
    """Runs each launch when it is told to, with what the table says then."""

    program: Program
    sizes: dict[str, int] = field(default_factory=dict)
    launched: list[tuple[int, tuple[int, int, int]]] = field(default_factory=list)
    streams: list[int] = field(default_factory=list)
    names: list[str] = field(default_factory=list)

    def begin(self, sources: Any, builder: Any, log: CompileLog) -> Loading:
        raise AssertionError("nothing is compiled here")

    def bake(self, launches: Sequence[Launch], table: Any, stream: int, scratch: Sequence[int]) -> Any:
        return [(launch, table, stream) for launch in launches]

    def launch(self, baked: Any) -> int:
        for launch, table, stream in baked:
            self.launched.append((launch.kernel.handle, launch.grid))
            self.names.append(launch.kernel.name)
            self.streams.append(stream)
            self._run(launch, table)
        return 0

    def error(self, code: int) -> CompileError:
        return CompileError("run", f"code {code}")

    def apart(self) -> CpuLauncher:
        return self

    def close(self) -> None:
        pass

    def _run(self, launch: Launch, table: Any) -> None:
        unit, n = self.program.unit, launch.kernel.handle
        assert isinstance(unit, CudaUnit)
        call = unit.triton.calls[n]
        sizes = {name: table[unit.slots[name]] for name in self.program.sources if name in unit.slots}
        alone = ScheduleEvaluation(Schedule({}, [], []), (), sizes)
        alone.memory = {name: self._memory(name, table[unit.slots[name]], sizes) for name in call.buffers}
        try:
            alone.run_kernel(self.program.schedule.kernels[n])
        except IndexError:  # as a kernel says it
            ctypes.c_int64.from_address(table[unit.slots["error"]]).value = 1

    def _memory(self, name: str, address: int, sizes: dict[str, int]) -> torch.Tensor:
        b = self.program.schedule.buffers[name]
        assert b.dtype is not None
        extent = evaluate(b.extent, sizes)
        if extent == 0:
            return torch.empty(0, dtype=b.dtype.torch)
        assert address % 16 == 0, f"{name} at {address} is not aligned"
        raw = (ctypes.c_char * (extent * b.dtype.itemsize)).from_address(address)
        return torch.frombuffer(raw, dtype=b.dtype.torch)


@dataclass
class OnCpu:
    """One graph of a function as a CUDA program."""

    run: CudaRun
    launcher: CpuLauncher
    program: Program
    inputs: list[Any]
    log: CompileLog
    stream: list[int]
    loaded: LoadedUnit


def cuda_program(
    fn: Callable[..., Any],
    *inputs: torch.Tensor,
    dynamic: bool = False,
    static: frozenset[int] = frozenset(),
    refuse: bool = False,
) -> OnCpu:
    """`refuse`: as if no kernel could be printed."""
    (entry,) = capture(fn, *inputs, dynamic=dynamic, device="cuda")
    _, schedule = schedules(entry.captured)
    return assembled(schedule, entry.captured.symbols.sources, entry.inputs, static, refuse)


def partitions_on_cpu(fn: Callable[..., Any], *inputs: torch.Tensor) -> list[CudaRun]:
    """The function's one graph, cut around its ATen calls."""
    (entry,) = capture(fn, *inputs, device="cuda")
    _, schedule = schedules(entry.captured)
    sources = entry.captured.symbols.sources
    partitions = cut(schedule, len(entry.inputs), lambda k: "ATen" if isinstance(k, ExternKernel) else "")
    return [assembled(p.schedule, sources, [*entry.inputs, *p.carried_in]).run for p in partitions]


def assembled(
    schedule: Schedule,
    sources: Mapping[str, tuple[int, str, int]],
    inputs: list[Any],
    static: frozenset[int] = frozenset(),
    refuse: bool = False,
    overlapped: bool = False,
) -> OnCpu:
    unit = generate_cuda(schedule, overlapped)
    if refuse:
        unit.triton.refused.update(dict.fromkeys(unit.triton.calls, "told to"))
        unit.segments.clear()
    program = build_program(schedule, unit, sources, len(inputs))
    launcher, log = CpuLauncher(program), CompileLog()
    kernels = {n: Kernel(f"k{n}", n, 4, 0) for n in unit.triton.calls}
    flag = torch.zeros(1, dtype=torch.int64) if unit.checks else None
    stream = [1]
    loaded = LoadedUnit(program, launcher, lambda: kernels, flag, lambda n: Kernel(f"wide{n}", n, 4, 0))
    run = assemble(loaded, lambda device: stream[0], log, static)
    return OnCpu(run, launcher, program, inputs, log, stream, loaded)


def unaligned(x: torch.Tensor) -> torch.Tensor:
    """The same values at an address that no kernel may be given."""
    flat = torch.empty(x.numel() + 8, dtype=x.dtype)
    start = next(k for k in range(8) if flat[k:].data_ptr() % 16)
    return flat[start : start + x.numel()].view(x.shape).copy_(x)
