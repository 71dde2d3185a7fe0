"""A program on an NVIDIA GPU: Triton kernels where the C program has native calls, everything else the same.

A call's workspace belongs to its stream and is not used on another one.
"""

from __future__ import annotations

import ctypes
import functools
import threading
import time
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from burnish.codegen.c.compiled_unit import ERROR_SLOT
from burnish.codegen.triton.launch import Launch as TritonLaunch
from burnish.codegen.triton.module import TritonCall, TritonUnit, generate
from burnish.ir.expr import Dim, evaluate
from burnish.observe.log import CompileLog
from burnish.options import Options
from burnish.runtime.cuda.launch import Kernel as LoadedKernel
from burnish.runtime.cuda.launch import Launch, Launcher, Loading, launcher_for
from burnish.runtime.host.addresses import still_at
from burnish.runtime.host.extension import Host, host_library, prepare_host
from burnish.runtime.program import Program, Renderer, Run, Workspace, WorkspacePool, load_rendered
from burnish.runtime.triton.build import builder_for
from burnish.runtime.triton.compile import KernelSource
from burnish.schedule.evaluate import ScheduleEvaluation
from burnish.schedule.kernels import ExternKernel, Kernel, Operand, ResultBuffer, Schedule
from burnish.torch_private.cuda import cuda_getCurrentRawStream, cuda_isCurrentStreamCapturing

KERNEL_ALIGNMENT = 16  # of every address that a kernel is given: it is compiled for that (compile.py)
_INT32 = 2**31 - 1
_WORTH_FREEING = 1 << 26  # bytes of arguments that are done with before the program is
_FEW = 4  # up to here, asking each parameter for its address is as quick as comparing them all


_has_device = torch.cuda.is_available()
is_capturing: Callable[[], bool] = cuda_isCurrentStreamCapturing if _has_device else lambda: False


@dataclass
class CudaUnit:
    triton: TritonUnit
    slots: dict[str, int]
    segments: list[list[int]]
    checks: bool

    @property
    def kernels(self) -> int:
        return self.triton.kernels


def generate_cuda(schedule: Schedule, overlapped: bool = False, unwritten: frozenset[str] | None = None) -> CudaUnit:
    """`unwritten` is told where the schedule is a part of a program."""
    unit = generate(schedule, overlapped=overlapped, unwritten=unwritten, begins=unwritten is None)
    slots = {"error": ERROR_SLOT}
    segments: list[list[int]] = []
    adjacent = False
    for n, kernel in enumerate(schedule.kernels):
        if isinstance(kernel, ExternKernel) or n in unit.refused:
            adjacent = False
            continue
        if not adjacent:
            segments.append([])
        segments[-1].append(n)
        adjacent = True
        call = unit.calls[n]
        for name in (*call.buffers, *call.sizes):
            slots.setdefault(name, len(slots))
    return CudaUnit(unit, slots, segments, unit.checks)


# -- memory of one call -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class LoadedUnit:
    """The unit's kernels on the device: `kernels` waits until they are there. Those whose sizes are known only now have
    indices of 32 bits; `wide` gives the one with 64, which is built when a call first needs it."""

    program: Program
    launcher: Launcher
    kernels: Callable[[], Mapping[int, LoadedKernel]]
    flag: torch.Tensor | None  # set by a kernel that met an index out of range
    wide: Callable[[int], LoadedKernel]

    def launches(self, sizes: Mapping[str, int]) -> list[list[Launch]]:
        """Each segment's launches with their sizes put in; those with nothing to do are left out."""
        unit = self.program.unit
        assert isinstance(unit, CudaUnit)
        found = [[n for n in segment if self._has_work(n, sizes)] for segment in unit.segments]
        first = next((n for segment in found for n in segment), None)
        # A kernel that was not built as a program's first would prefetch data that another program may still be
        # writing.
        waiting = None if first == unit.triton.first else first
        return [[self._launch(n, sizes, n == waiting) for n in segment] for segment in found]

    def _has_work(self, n: int, sizes: Mapping[str, int]) -> bool:
        return all(evaluate(d, sizes) for d in _grid(self._call(n)))

    def _launch(self, n: int, sizes: Mapping[str, int], waits: bool) -> Launch:
        call, slots = self._call(n), self.program.unit.slots
        x, y, z = (evaluate(d, sizes) for d in _grid(call))
        names = (*call.buffers, *call.sizes, *(("error",) if call.checks else ()))
        is_far = any(evaluate(r, sizes) > _INT32 for r in call.reach)
        kernel = self.wide(n) if is_far else self.kernels()[n]
        return Launch(kernel, (x, y, z), tuple(slots[name] for name in names), waits)

    def _call(self, n: int) -> TritonCall:
        unit = self.program.unit
        assert isinstance(unit, CudaUnit)
        return unit.triton.calls[n]


def _grid(call: TritonCall) -> tuple[Dim, Dim, Dim]:
    x, y, z = (*call.launch.grid, 1, 1)[:3]
    return x, y, z


class CudaWorkspace(Workspace):
    def __init__(self, loaded: LoadedUnit, sizes: Mapping[str, int], views: Sequence[Operand]) -> None:
        super().__init__(loaded.program, sizes, views)
        unit, device = loaded.program.unit, loaded.program.device
        assert isinstance(unit, CudaUnit)
        if loaded.flag is not None:
            self.table[ERROR_SLOT] = loaded.flag.data_ptr()
        self.have_stayed: Callable[[list[Any]], bool] = lambda args: False  # parameters, where the table has them
        self.copies: list[torch.Tensor] = []  # of parameters that are not aligned
        self.direct: Any = None  # its launches as runtime/cuda/direct_launch.py calls them
        segments = loaded.launches(sizes)
        each = [[-(-launch.scratch // 256) * 256 for launch in segment] for segment in segments]
        self.scratch = torch.empty(sum(map(sum, each)), dtype=torch.uint8, device=device)
        free = self.scratch.data_ptr()
        self.segments: list[Any] = []
        for segment, needs in zip(segments, each, strict=True):
            starts = []
            for size in needs:
                starts.append(free if size else 0)
                free += size
            self.segments.append(loaded.launcher.bake(segment, self.table, sizes["stream"], starts))


# -- the program's text -------------------------------------------------------------------------------------------


class CudaRenderer(Renderer):
    """`static` are the arguments that are parameters and buffers: the same ones in most calls."""

    clears_at_once = False  # not before the parameters' addresses are compared

    def __init__(self, program: Program, static: frozenset[int]) -> None:
        super().__init__(program)
        self.keys = ("stream", *self.keys)
        written = {name for k in self.schedule.kernels for name in k.writes}
        aliased = {r.alias_of for r in self.schedule.results if isinstance(r, ResultBuffer)}
        inputs = [b for b in self.schedule.buffers.values() if b.role == "input" and b.name in self.unit.slots]
        self.written = {b.position for b in inputs if b.name in written}
        self.given_back = self.written | {b.position for b in inputs if b.position in aliased}
        held = {b.position: self.unit.slots[b.name] for b in inputs if b.position in static - self.given_back}
        self.held = held if len(held) > _FEW else {}  # argument -> slot, compared all at once
        self.asked = {b.position: self.unit.slots[b.name] for b in inputs if b.position not in self.held}
        self.freed = self._arguments_to_free(static)  # step -> arguments that nothing reads after it
        self.keeps_list = False  # until the first of those goes: what fails before can be done over

    def _arguments_to_free(self, static: frozenset[int]) -> dict[int, list[str]]:
        """Free a forward's saved tensors as its backward proceeds, if they have no other holder and are large enough. A
        graph's result that is an argument must not be freed."""
        returned = self.schedule.result_buffers
        out: dict[int, list[str]] = {}
        size = 0
        for name, n in self._last_steps().items():
            b = self.schedule.buffers[name]
            ours = b.role == "input" and b.position not in static | self.given_back and name not in returned
            if ours and n < len(self.program.steps) - 1:
                out.setdefault(n, []).append(name)
                size += b.extent * b.dtype.itemsize if b.dtype and isinstance(b.extent, int) else 0
        return out if size >= _WORTH_FREEING else {}

    def _last_uses(self) -> dict[int, list[str]]:
        found = super()._last_uses()
        return {n: [*found.get(n, ()), *self.freed.get(n, ())] for n in sorted({*found, *self.freed})}

    def _free(self, names: Sequence[str]) -> None:
        if self.keeps_list and any(self.schedule.buffers[name].role == "input" for name in names):
            self.keeps_list = False
            self.line("args.clear()")
        super()._free(names)

    def _arguments(self) -> None:
        super()._arguments()
        self.keeps_list = bool(self.freed)
        self.line(f"stream = current_stream({self.program.device.index or 0})")

    def _addresses(self) -> None:
        if self.unit.checks:
            self.line("check_range()")
        if self.held:
            self.line("if not workspace.have_stayed(args): take_addresses(workspace, args)")
        if not self.keeps_list:
            self.line("args.clear()")
        for k, slot in self.asked.items():
            name = self.arguments[k]
            if k in self.given_back:
                self.line(f"given{k} = {name}")
            self.line(f"t[{slot}] = address = {name}.data_ptr()")
            self.line(f"if address & {KERNEL_ALIGNMENT - 1}: {name} = aligned({name}); t[{slot}] = {name}.data_ptr()")

    def _raise_mistakes(self) -> None:
        """The next call checks the flag, because checking now would synchronise."""

    def _run_segment(self, segment: int) -> None:
        self.line(f"code = launch(workspace.segments[{segment}])")
        self.line("if code: raise launch_error(code)")

    def _finish(self) -> None:
        for k in sorted(self.written):
            name = self.arguments[k]
            self.line(f"if given{k} is not {name}: given{k}.copy_({name})")
        for k in sorted(self.given_back):
            self.line(f"{self.arguments[k]} = given{k}")


def load_cuda_program(
    program: Program,
    options: Options,
    log: CompileLog,
    static: frozenset[int] = frozenset(),
    launcher: Launcher | None = None,
) -> CudaRun:
    """Its kernels may still be building: the first run waits for them, or a call of `ready`. `launcher` is the
    device's, unless another is given."""
    assert isinstance(program.unit, CudaUnit)
    prepare_host(options)
    launcher = launcher or launcher_for(program.device.index or 0, options, log)
    load = functools.partial(_Kernels, program.unit.triton, launcher, program.device, options, log)
    kernels = load()
    # The flag is memory of the host that kernels, too, can reach: they write it only for a bad index, and reading it
    # does not synchronise.
    flag = torch.zeros(1, dtype=torch.int64).pin_memory() if program.unit.checks else None
    wide = functools.cache(lambda n: load(index="int64", only=n)()[n])
    run = assemble(LoadedUnit(program, launcher, kernels, flag, wide), cuda_getCurrentRawStream, log, static)
    run.host = functools.partial(host_library, options, log)
    return run


def assemble(
    loaded: LoadedUnit, current_stream: Callable[[int], int], log: CompileLog, static: frozenset[int] = frozenset()
) -> CudaRun:
    """The program's function over kernels that are on the device."""
    program = loaded.program
    assert isinstance(program.unit, CudaUnit)
    renderer = CudaRenderer(program, static)
    check = _range_check(loaded.flag)
    natives: dict[str, Any] = {
        "launch": loaded.launcher.launch,
        "launch_error": loaded.launcher.error,
        "current_stream": current_stream,
        "take_addresses": _address_taker(renderer.held, log),
        "aligned": _aligner(log),
        "check_range": check,
        "evaluate_kernel": _evaluator(program.device),
    }
    for why in program.unit.triton.refused.values():
        log.noticed(f"kernel run in torch: {why}")
    function = load_rendered(program, renderer, natives)
    views = renderer.views

    def new_pool() -> WorkspacePool:
        return WorkspacePool(lambda sizes: CudaWorkspace(loaded, sizes, views), renderer.keys)

    run = CudaRun(function, new_pool, check, loaded.launcher, consumes=bool(renderer.freed))
    run.ready = loaded.kernels
    return run


class CudaRun:
    """A program's function; `private` gives the same over workspaces of its own, for a graph to capture. One that
    `consumes` leaves the list of its arguments as it is until it begins to free them."""

    _boxed_call = True

    def __init__(
        self,
        function: Run,
        new_pool: Callable[[], WorkspacePool],
        check: Callable[[], None],
        launcher: Launcher,
        consumes: bool = False,
    ) -> None:
        self.launcher = launcher
        self.consumes = consumes
        self._new_pool = new_pool
        self.host: Callable[[], Host | None] = lambda: None  # what replays a graph of it without torch
        self.ready: Callable[[], object] = lambda: None  # waits for what a call would have to wait for
        self.check = check
        self._function: Any = function
        self.run = self.private()

    def private(self) -> Run:
        namespace = {**self._function.__globals__, "pool": self._new_pool()}
        run: Run = types.FunctionType(self._function.__code__, namespace, "run")
        return run

    def __call__(self, args: list[Any]) -> tuple[Any, ...]:
        if is_capturing():  # the caller captures a graph of this program: it needs its own workspaces
            return self.private()(args)
        return self.run(args)

    def release(self) -> None:
        """Free the memory kept for later calls."""
        self.run.__globals__["pool"].clear()


def _range_check(flag: torch.Tensor | None) -> Callable[[], None]:
    """Raises for an index that a kernel of an earlier call found out of range."""
    if flag is None:
        return lambda: None
    raised = ctypes.c_int64.from_address(flag.data_ptr())

    def check() -> None:
        if raised.value:
            raised.value = 0
            error = IndexError("index out of range in a compiled gather or scatter of an earlier call")
            error.of_earlier_call = True  # type: ignore[attr-defined]  # nothing is wrong with this one
            raise error

    check.flag = flag  # type: ignore[attr-defined]  # its memory is read for as long as this can be called
    return check


def _aligner(log: CompileLog) -> Callable[[torch.Tensor], torch.Tensor]:
    """Copies an unaligned argument to aligned memory, with the same strides, gaps and overlaps included."""

    def aligned(x: torch.Tensor) -> torch.Tensor:
        log.noticed("argument copied: its memory does not start at a multiple of 16 bytes")
        extent = 1 + sum((d - 1) * s for d, s in zip(x.shape, x.stride(), strict=True)) if x.numel() else 0
        flat = x.detach().as_strided((extent,), (1,), x.storage_offset()).clone()
        return flat.as_strided(x.shape, x.stride())

    return aligned


def _address_taker(held: Mapping[int, int], log: CompileLog) -> Callable[[CudaWorkspace, list[Any]], None]:
    """Writes the parameters' addresses into the table, when one is not where it was."""
    aligned, positions = _aligner(log), list(held)

    def take(workspace: CudaWorkspace, args: list[Any]) -> None:
        workspace.copies = []
        addresses = [0] * len(args)
        for k, slot in held.items():
            address = addresses[k] = args[k].data_ptr()
            if address % KERNEL_ALIGNMENT:
                workspace.copies.append(aligned(args[k]))
                addresses[k] = 0  # marks it as moved: copied again in the next call, because its value may change
                address = workspace.copies[-1].data_ptr()
            workspace.table[slot] = address
        workspace.have_stayed = still_at(addresses, positions)

    return take


def _evaluator(device: torch.device) -> Callable[..., None]:
    def run(kernel: Kernel, memory: Mapping[str, torch.Tensor], sizes: Mapping[str, int]) -> None:
        with torch.device(device):
            alone = ScheduleEvaluation(Schedule({}, [], []), (), sizes)
            alone.memory = dict(memory)
            alone.run_kernel(kernel)

    return run


# -- building -----------------------------------------------------------------------------------------------------


class _Kernels:
    """A unit's kernels, on their way from the moment this is made; calling it waits for them. A failed build is tried
    again by the next call."""

    def __init__(
        self,
        unit: TritonUnit,
        launcher: Launcher,
        device: torch.device,
        options: Options,
        log: CompileLog,
        *,
        index: str = "int32",
        only: int | None = None,
    ) -> None:
        self._calls = {n: c for n, c in unit.calls.items() if only in (None, n)}
        capability = _capability(device)
        self._sources = {
            (c.function, c.launch): kernel_source(unit, c, c.launch, capability, index) for c in self._calls.values()
        }
        self._begin = lambda: launcher.begin(list(self._sources.values()), builder_for(options), log)
        self._log = log
        self._lock = threading.Lock()
        self._loading: Loading | None = self._begin()
        self._loaded: dict[int, LoadedKernel] | None = None

    def __call__(self) -> Mapping[int, LoadedKernel]:
        with self._lock:
            if self._loaded is None:
                self._loaded = self._wait()
            return self._loaded

    def _wait(self) -> dict[int, LoadedKernel]:
        start = time.perf_counter()
        loading, self._loading = self._loading or self._begin(), None
        try:
            loaded = dict(zip(self._sources, loading(), strict=True))
        finally:
            self._log.charge("build", time.perf_counter() - start)
        return {n: loaded[c.function, c.launch] for n, c in self._calls.items()}


def kernel_source(
    unit: TritonUnit, call: TritonCall, launch: TritonLaunch, capability: int, index: str = "int32"
) -> KernelSource:
    """One way to run one kernel of a unit. `index` is the type of indices where sizes decide it."""
    constants: dict[str, int | str] = {"INDEX": index} if call.reach else {}
    return KernelSource(
        unit.alone(call.function),
        unit.symbol(call.function),
        call.types,
        constants | dict(launch.blocks),
        launch.warps,
        launch.stages,
        unit.overlapped,
        capability,
    )


def overlaps(device: torch.device) -> bool:
    """Whether a kernel can be launched ahead of the end of the one before (Hopper and later)."""
    return _capability(device) >= 90


def _capability(device: torch.device) -> int:
    major, minor = torch.cuda.get_device_capability(device)
    return 10 * major + minor
