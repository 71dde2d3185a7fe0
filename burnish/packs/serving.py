"""A variant's graph as a function: the pack's program and libraries, behind the same gate as a compiled graph."""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import hashlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from burnish.capture.boxed_programs import counting_versions, unboxed
from burnish.capture.entry.graph_inputs import SOURCES
from burnish.capture.graphs.dispatch_state import leaving_contexts
from burnish.capture.restore.graph_source import GraphText, runnable
from burnish.capture.variants import new_variant
from burnish.observe.log import CompileLog
from burnish.options import Options
from burnish.packs.container import RUNTIME, RUNTIME_F64, library_for
from burnish.packs.data import PackedVariant
from burnish.runtime.build.library_loading import load_library
from burnish.runtime.cache import stored_program
from burnish.runtime.cache.data import NotData
from burnish.runtime.cpu.blas import connect
from burnish.runtime.program import Program, Run, load_program
from burnish.schedule.kernels import ExternKernel
from burnish.trust.record import GateStats
from burnish.trust.stored_verdicts import ClassPart, Part, Verdicts
from burnish.trust.variant import Compile

_loaded: dict[str, ctypes.CDLL] = {}  # by checksum: two packs' runtimes are one
_guard = threading.Lock()


class PackedVerdict(Verdicts):
    """The gate's verdict where the variant was packed. A comparison holds wherever the same machine code runs, a race
    on one kind of processor. Nothing is stored."""

    def __init__(self, found: GateStats | None, same_processor: bool) -> None:
        self._found = found
        self._same_processor = same_processor

    def passed(self, part: Part | ClassPart, *, compared: bool, raced: bool) -> GateStats | None:
        found = self._found
        if found is None or part != "graph" or (compared and found.compiled_error is None):
            return None
        if raced and (not self._same_processor or found.ratio is None):
            return None
        return dataclasses.replace(found, seconds=0.0, source="remembered", note="judged where it was packed")

    def of_backward(self, program: bytes) -> Verdicts:
        return self

    def keep(self, part: Part | ClassPart, stats: GateStats) -> None:
        pass

    def forget(self) -> None:
        self._found = None


def load_runtime(members: Mapping[str, bytes], level: str) -> None:
    """The C runtime, which the programs' libraries call."""
    for name in (RUNTIME, RUNTIME_F64):  # the second calls the first
        data = members.get(library_for(level, name))
        if data is not None:
            library = _library(data, name, exported=True)
            if name == RUNTIME:
                connect(library)


def _library(data: bytes, name: str, *, exported: bool) -> ctypes.CDLL:
    """Raises CannotLoad."""
    digest = hashlib.sha256(data).hexdigest()
    with _guard:
        if digest not in _loaded:
            _loaded[digest] = load_library(data, name, exported=exported)
        return _loaded[digest]


def graph_function(
    variant: PackedVariant,
    members: Mapping[str, bytes],
    level: str,
    verdicts: Verdicts,
    options: Options,
    log: CompileLog,
) -> Callable[..., Any]:
    """`level` is that of the machine code to use. Raises NotData or CannotLoad."""
    start = time.perf_counter()
    run = counting_versions(_program(variant, members, level, log), variant.written)
    made = new_variant(
        options,
        log,
        variant.facts,
        _eager(variant.eager),
        {"burnish": unboxed(run)},
        direct=run,
        compile=Compile(seconds=time.perf_counter() - start),
        verdicts=verdicts,
        loaded=True,
    )
    setattr(made.call, SOURCES, variant.sources)
    return made.call


def _program(variant: PackedVariant, members: Mapping[str, bytes], level: str, log: CompileLog) -> Run:
    stored = stored_program.unpacked(members[variant.program], "cpu")
    name = library_for(level, variant.library)
    library = _library(members[name], name, exported=False) if variant.library else None
    with _as_data("program"):
        program = stored.program
        _require_table(program)
        run = load_program(program, library)
    for kernel in program.schedule.kernels:
        if isinstance(kernel, ExternKernel):
            log.aten_call(kernel.op.name)
    log.program(run)
    log.kernels(variant.kernels)
    log.fusion(stored.fusion)
    return run


def _require_table(program: Program) -> None:
    """Machine code reads addresses and sizes from a table: each entry belongs to something that is put there."""
    unit, known = program.unit, {"error", *program.schedule.buffers, *program.sources}
    if sorted(unit.slots.values()) != list(range(len(unit.slots))) or not unit.slots.keys() <= known:
        raise NotData("a table of other entries")


@contextlib.contextmanager
def _as_data(kind: str) -> Iterator[None]:
    """Parts of a file, each of the right type, may contradict each other in more ways than can be listed."""
    try:
        yield
    except Exception as error:
        raise NotData(f"no {kind}: {type(error).__name__}: {error}") from error


def _eager(text: GraphText) -> Callable[..., Any]:
    with _as_data("graph"):
        run = runnable(text)
    return leaving_contexts(run) if text.enters else run
