"""Programs in the cache: a second process with the same graph does not lower, schedule or generate code.

The stored form is the `Program` as data, without the compiled kernels, of which only the source is stored.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import platform
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch.fx import GraphModule

from burnish.codegen.c.compiled_unit import CUnit
from burnish.device import Gpu
from burnish.ir.dtypes import DType
from burnish.ir.expr import Div, Extreme, Mod, Sym
from burnish.ir.graph import Extern, Ref
from burnish.observe.log import CompileLog
from burnish.options import Options
from burnish.processor import this_cpu
from burnish.runtime.build.shared_library import source_hash
from burnish.runtime.cache.data import Codec, NotData
from burnish.runtime.cache.graph_text import Unprintable, graph_text
from burnish.runtime.cache.store import CacheKey, open_cache
from burnish.runtime.graph_plan import obstacles
from burnish.runtime.program import Program, Unit, build_program
from burnish.schedule.kernels import Buffer, ExternKernel, Kernel, LoopKernel, Operand, ResultBuffer, Schedule

KIND = "program"
# Options on which a program does not depend; all others, future ones included, are part of the key.
_IMMATERIAL = frozenset(
    ("background", "budget", "cache", "cache_dir", "cache_limit_bytes", "cache_sign", "cache_verify_key", "cc",
     "compiler_seconds", "dump_dir", "dynamic", "events", "fault", "fullgraph", "gate", "graph_limit", "latency", "log",
     "sample", "verify", "verify_ir", "warm_start")
)  # fmt: skip


@dataclass(frozen=True)
class Compiled:
    """A kernel of which only its source is left."""

    reads: frozenset[str]
    writes: frozenset[str]


@dataclass(frozen=True)
class StoredProgram:
    """The arguments of `build_program`, and the data for the log."""

    schedule: Schedule
    unit: Unit
    sources: dict[str, tuple[int, str, int]]
    arguments: int
    device: torch.device
    fusion: str

    @property
    def program(self) -> Program:
        """Raises NotData where its parts, each what it should be, make none."""
        try:
            return build_program(self.schedule, self.unit, self.sources, self.arguments, self.device)
        except Exception as error:
            raise NotData(f"no program: {type(error).__name__}: {error}") from error


class NotStored(Exception):
    """Why a program does not go to the cache."""


def is_wanted(options: Options, log: CompileLog) -> bool:
    """False if the compiler's stages are inspected or limited: then it must run."""
    looks = log.recorder is not None or options.dump_dir is not None or options.verify_ir
    return options.warm_start and not looks and options.fuel is None and options.fault is None


def option_factor(options: Options) -> str:
    kept = [field.name for field in dataclasses.fields(options) if field.name not in _IMMATERIAL]
    return ", ".join(f"{name}={getattr(options, name)}" for name in kept)


def machine_factors(device: torch.device) -> tuple[tuple[str, str], ...]:
    factors = [("torch", str(torch.__version__)), ("python", platform.python_version()), ("cpu", this_cpu().identity)]
    factors.append(("threads", str(torch.get_num_threads())))
    if device.type == "cuda":
        found = torch.cuda.get_device_properties(device)
        factors.append(("gpu", f"{found.name} {found.major}.{found.minor}, {found.multi_processor_count}"))
    return tuple(factors)


def program_key(
    gm: GraphModule, kind: str, options: Options, static: frozenset[int], returned: int | None, name: str
) -> CacheKey | None:
    """None for a graph whose text differs between processes."""
    try:
        text = graph_text(gm)
    except Unprintable:
        return None
    return CacheKey(
        (
            ("name", f"{name or 'a graph'} ({kind})"),
            ("graph", hashlib.sha256(text.encode()).hexdigest()),
            ("kind", kind),
            ("static inputs", ",".join(map(str, sorted(static)))),
            ("returned", str(returned)),
            ("options", option_factor(options)),
            ("burnish", source_hash()),
            *machine_factors(device_of(gm)),
        )
    )


def device_of(gm: GraphModule) -> torch.device:
    values = (node.meta.get("val") for node in gm.graph.nodes)
    devices = {value.device for value in values if isinstance(value, torch.Tensor)}
    return next((device for device in devices if device.type != "cpu"), torch.device("cpu"))


# -- reading and writing ------------------------------------------------------------------------------------------


def load(key: CacheKey, options: Options, log: CompileLog) -> bytes | None:
    """Load the program stored under the key; a miss logs the reason."""
    cache = open_cache(options)
    data = cache.get(KIND, key)
    log.cache(data is not None, "" if data is not None else cache.miss_reason(KIND, key))
    return data


def discard(key: CacheKey, why: str, options: Options, log: CompileLog) -> None:
    """Its checksum is right but its content is not: it was written by other code with the same version."""
    open_cache(options).discard(KIND, key)
    log.cache(False, f"{key.name}: its entry cannot be read ({why})")


def store(key: CacheKey, data: bytes, options: Options) -> None:
    open_cache(options).put(KIND, key, data)


def packed(program: Program, fusion: str) -> bytes:
    """Raises NotStored."""
    if program.device.type == "cuda" and (why := next(iter(obstacles(program).values()), "")):
        raise NotStored(why)  # then it may be cut into pieces, for which its kernels are needed
    kernels = [k if isinstance(k, ExternKernel) else _without_body(k) for k in program.schedule.kernels]
    schedule = dataclasses.replace(program.schedule, kernels=kernels, notes=[], forms={})  # the source has them, too
    found = StoredProgram(schedule, program.unit, dict(program.sources), program.arguments, program.device, fusion)
    try:
        return _codec(program.device.type).dumps(found)
    except NotData as error:
        raise NotStored(f"it holds {error}") from error


def unpacked(data: bytes, device: str) -> StoredProgram:
    """Raises NotData."""
    found = _codec(device).loads(data)
    if not isinstance(found, StoredProgram):
        raise NotData("no program")
    if not dataclasses.is_dataclass(found.unit):
        raise NotData("parts that make no program")
    if found.device.type != device:
        raise NotData(f"no program for {device}")
    return found


def without_text(found: StoredProgram) -> bytes:
    """The program without its kernels' source, for where their machine code is at hand."""
    assert isinstance(found.unit, CUnit)
    return _codec(found.device.type).dumps(dataclasses.replace(found, unit=dataclasses.replace(found.unit, text="")))


def _without_body(kernel: Kernel) -> Kernel:
    return cast(Kernel, Compiled(kernel.reads, kernel.writes))


@functools.cache
def _codec(device: str) -> Codec:
    classes: list[type[Any]] = [
        StoredProgram, Compiled, Schedule, Gpu, Buffer, Operand, ResultBuffer, ExternKernel, Extern, Ref, DType, Sym,
        Div, Mod, Extreme, CUnit,
    ]  # fmt: skip
    if device == "cuda":
        from burnish.codegen.triton.launch import Launch
        from burnish.codegen.triton.module import TritonCall, TritonUnit
        from burnish.runtime.cuda.program import CudaUnit  # a CPU never imports Triton

        classes += [CudaUnit, TritonUnit, TritonCall, Launch]
    return Codec(classes, stand_ins=((Compiled, LoopKernel),))
