"""A program on an NVIDIA GPU: Triton kernels where the C program has native calls, everything else the same."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import tempfile
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from burnish.codegen.c import ERROR_SLOT
from burnish.codegen.triton import TritonCall, TritonUnit, generate
from burnish.errors import CompileError
from burnish.ir.expr import Expr, render
from burnish.options import Options
from burnish.runtime.program import Program, Renderer, Run, load_rendered
from burnish.schedule.kernels import ExternKernel, LoopKernel, Schedule

_ALIGNED = [
    ["tt.divisibility", 16]
]  # what Triton may assume of every address it is given: ours are, inputs are checked
_BUILDERS = 8  # kernels compiled at a time: most of it is LLVM and ptxas, outside the interpreter's lock


@dataclass
class CudaUnit:
    triton: TritonUnit
    slots: dict[str, int]
    segments: list[list[int]]
    checks: bool

    @property
    def kernels(self) -> int:
        return self.triton.kernels


def generate_cuda(schedule: Schedule) -> CudaUnit:
    unit = generate(schedule)
    if unit.refused:
        raise CompileError("codegen", "; ".join(sorted(set(unit.refused.values()))))
    slots = {"error": ERROR_SLOT}
    segments: list[list[int]] = []
    adjacent = False
    for n, kernel in enumerate(schedule.kernels):
        if isinstance(kernel, ExternKernel):
            adjacent = False
            continue
        if not isinstance(kernel, LoopKernel):
            raise CompileError("codegen", f"{type(kernel).__name__} has no Triton form")
        if not adjacent:
            segments.append([])
        segments[-1].append(n)
        adjacent = True
        call = unit.calls[n]
        for name in (*call.buffers, *call.sizes):
            slots.setdefault(name, len(slots))
    return CudaUnit(unit, slots, segments, unit.checks)


class CudaRenderer(Renderer):
    def __init__(self, program: Program) -> None:
        super().__init__(program)
        assert isinstance(program.unit, CudaUnit)
        self.triton = program.unit

    def _arguments(self) -> None:
        super()._arguments()
        self.line(f"stream = current_stream({self.program.device.index or 0})")

    def _addresses(self) -> None:
        for b in self.schedule.buffers.values():
            if b.role == "input" and b.name in self.unit.slots:
                slot = self.unit.slots[b.name]
                self.line(f"t[{slot}] = {b.name}.data_ptr()")
                self.line(f"if t[{slot}] & 15: raise unaligned({b.name!r})")

    def _raise_if_out_of_range(self) -> None:
        """Nothing yet: looking at the flag would wait for the device on every call."""

    def _run_segment(self, segment: int) -> None:
        for n in self.unit.segments[segment]:
            call = self.triton.triton.calls[n]
            programs = call.launches[0].programs
            if programs == 0:
                continue
            args = [f"t[{self.unit.slots[name]}]" for name in (*call.buffers, *call.sizes)]
            args += [f"t[{ERROR_SLOT}]"] if call.checks else []
            launch = f"launch_{n}({render(programs)}, stream, {', '.join(args)})"
            self.line(f"if {render(programs)}: {launch}" if isinstance(programs, Expr) else launch)


def load_cuda_program(program: Program, options: Options) -> Run:
    assert isinstance(program.unit, CudaUnit)
    module = _module(program.unit.triton.text, options)
    natives: dict[str, Any] = {
        f"launch_{n}": launcher for n, launcher in _launchers(module, program.unit.triton).items()
    }
    natives["current_stream"] = torch._C._cuda_getCurrentRawStream
    natives["unaligned"] = _unaligned
    return load_rendered(program, CudaRenderer(program), natives)


def _unaligned(name: str) -> CompileError:
    return CompileError("run", f"argument {name} does not start at a multiple of 16 bytes")


def _module(text: str, options: Options) -> ModuleType:
    """The kernels as a module in a file, for Triton reads a function's source from one."""
    digest = hashlib.sha256(text.encode()).hexdigest()[:24]
    directory = options.cache_dir / "triton"
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError:
        directory = Path(tempfile.mkdtemp(prefix="burnish-"))
    path = directory / f"kernels_{digest}.py"
    if not path.exists():
        fresh = path.with_suffix(f".{os.getpid()}.tmp")
        fresh.write_text(text)
        os.replace(fresh, path)  # whole or not at all: another process may be reading it
    spec = importlib.util.spec_from_file_location(f"burnish_kernels_{digest}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _launchers(module: ModuleType, unit: TritonUnit) -> Mapping[int, Callable[..., None]]:
    with ThreadPoolExecutor(_BUILDERS) as pool:
        distinct = {(c.function, c.launches[0]): c for c in unit.calls.values() if c.launches}
        built = {key: pool.submit(_compile, module, call) for key, call in distinct.items()}
    return {n: _launcher(built[c.function, c.launches[0]].result()) for n, c in unit.calls.items() if c.launches}


@dataclass(frozen=True)
class _Built:
    kernel: Any
    constants: tuple[Any, ...]


def _compile(module: ModuleType, call: TritonCall) -> _Built:
    import triton
    import triton.language as tl
    from triton.compiler import ASTSource

    function = getattr(module, call.function)
    constants: dict[str, Any] = {"INDEX": tl.int64} if call.reach else {}
    constants |= dict(call.launches[0].blocks)
    names = function.arg_names
    plain = [n for n in names if n not in constants]
    signature = dict(zip(plain, call.types, strict=True)) | dict.fromkeys(constants, "constexpr")
    attrs = {(names.index(n),): _ALIGNED for n in plain if signature[n].startswith("*")}
    source = ASTSource(
        function, {n: signature[n] for n in names}, {(names.index(n),): v for n, v in constants.items()}, attrs
    )
    launch = call.launches[0]
    kernel = triton.compile(source, options={"num_warps": launch.warps, "num_stages": launch.stages})
    return _Built(kernel, tuple(constants[n] for n in names if n in constants))


def _launcher(built: _Built) -> Callable[..., None]:
    kernel, constants = built.kernel, built.constants
    run = kernel.run
    function, metadata = kernel.function, kernel.packed_metadata

    def launch(programs: int, stream: int, *args: int) -> None:
        run(programs, 1, 1, stream, function, metadata, None, None, None, *args, *constants)

    return launch
