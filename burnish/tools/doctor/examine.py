"""The whole examination: all checks in parallel, each with a time limit, and the resulting tier."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from burnish.errors import BadOptionValue
from burnish.options import Options
from burnish.tools.doctor.environment import check_environment
from burnish.tools.doctor.line import Line, Status
from burnish.tools.doctor.machine import GpuFound, check_cpu, check_gpu, check_openmp
from burnish.tools.doctor.software import (
    CompilerFound,
    check_compiler,
    check_private_names,
    check_python,
    check_torch,
    check_triton,
)
from burnish.tools.doctor.storage import check_cache, check_shared_cache

SCHEMA = 1
LIMIT_SECONDS = 2.5  # for all checks together, which run side by side and take a tenth of that
GPU_LIMIT_SECONDS = 10.0  # a CUDA context alone may take a second or two, and more on a machine with many GPUs

Found = TypeVar("Found")


@dataclass(frozen=True)
class Examination:
    """What `burnish doctor` found."""

    tier: str  # how models will run here
    lines: tuple[Line, ...]
    seconds: float  # of the checks
    start_seconds: float | None = None  # from the start of the process to the first check: mostly importing torch

    @property
    def status(self) -> Status:
        return worst(line.status for line in self.lines)

    def to_dict(self) -> dict[str, Any]:
        return {
            "schema": SCHEMA,
            "status": self.status,
            "tier": self.tier,
            "seconds": self.seconds,
            "start_seconds": self.start_seconds,
            "lines": [line.to_dict() for line in self.lines],
        }


def worst(statuses: Iterable[Status]) -> Status:
    found = set(statuses)
    return "fail" if "fail" in found else "warn" if "warn" in found else "ok"


class _Check:
    """One check in a thread of its own: what it found, or that it did not end in time, or how it broke."""

    def __init__(self, name: str, work: Callable[[], Any]) -> None:
        self.name = name
        self.seconds = 0.0
        self._result: Any = None
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._run, args=(work,), name=f"burnish-doctor-{name}", daemon=True)
        self._thread.start()

    def _run(self, work: Callable[[], Any]) -> None:
        begin = time.perf_counter()
        try:
            self._result = work()
        except Exception as error:
            self._error = error
        self.seconds = time.perf_counter() - begin

    def result(self, until: float, otherwise: Callable[[Line], Found]) -> Found:
        """`otherwise` makes a result of the line that says why there is none."""
        self._thread.join(max(until - time.perf_counter(), 0.0))
        if self._thread.is_alive():
            says = "no answer in time: the machine is very busy, or something is stuck"
            return otherwise(Line(self.name, "fail", says, "try again when it is idle", "burnish doctor"))
        if self._error is not None:
            says = f"the check itself failed: {type(self._error).__name__}: {self._error}"
            return otherwise(Line(self.name, "warn", says, "report it"))
        found: Found = self._result
        return found


def examine(limit_seconds: float | None = None) -> Examination:
    limit_seconds = LIMIT_SECONDS if limit_seconds is None else limit_seconds
    begin = time.perf_counter()
    started = _seconds_since_start()
    try:
        options, mistakes = Options(), []
    except BadOptionValue as error:
        options, mistakes = _without_environment(), [Line("environment", "fail", str(error), "correct it")]
    until = begin + limit_seconds
    checks = {
        "compiler": _Check("compiler", lambda: check_compiler(options.cc, 0.9 * limit_seconds)),
        "gpu": _Check("gpu", check_gpu),
        "cache": _Check("cache", lambda: check_cache(options)),
    }
    if options.cache is not None:
        checks["shared cache"] = _Check("shared cache", lambda: check_shared_cache(options))
    quick = [timed(check_python), timed(check_torch), timed(check_private_names), timed(check_cpu)]
    gpu = checks["gpu"].result(begin + max(limit_seconds, GPU_LIMIT_SECONDS), GpuFound)
    triton = timed(lambda: check_triton(gpu.usable))
    compiler = checks["compiler"].result(until, CompilerFound)
    caches = [
        dataclasses.replace(checks[name].result(until, lambda line: line), seconds=checks[name].seconds)
        for name in ("cache", "shared cache")
        if name in checks
    ]
    lines = [
        *quick[:3],
        triton,
        dataclasses.replace(compiler.line, seconds=checks["compiler"].seconds),
        quick[3],
        timed(check_openmp),
        dataclasses.replace(gpu.line, seconds=checks["gpu"].seconds),
        *caches,
        *check_environment(),
        *mistakes,
    ]
    return Examination(tier(lines, compiler, gpu), tuple(lines), time.perf_counter() - begin, started)


def tier(lines: Sequence[Line], compiler: CompilerFound, gpu: GpuFound) -> str:
    """How models will run here, in words."""
    failed = {line.name: line for line in lines if line.status == "fail"}
    for name in ("python", "torch", "private", "environment"):
        if name in failed:
            return f"eager only: {failed[name].says}"
    on_gpu = ""
    if gpu.name:
        reason = failed.get("gpu") or failed.get("triton")
        kind = f"eager ({reason.says})" if reason else "Triton kernels"
        on_gpu = f"{kind} on {gpu.name} (sm_{gpu.capability[0]}{gpu.capability[1]}); "
    if not compiler.works:
        return f"{on_gpu}eager on the CPU: no C compiler that works"
    threads = f"{compiler.threads} threads" if compiler.threads else "1 thread, without OpenMP"
    return f"{on_gpu}C kernels, {compiler.vectors}, {threads}"


def timed(check: Callable[[], Line]) -> Line:
    begin = time.perf_counter()
    line = check()
    return dataclasses.replace(line, seconds=time.perf_counter() - begin)


def _without_environment() -> Options:
    """Settings to go on with where a variable cannot be read."""
    folder = Path("~/.cache/burnish").expanduser()
    return Options(cache_dir=folder, cache_limit_bytes=2 << 30, fuel=None, log=None)


def _seconds_since_start() -> float | None:
    """How long this process has been running; None where the system does not tell."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
        uptime = float(Path("/proc/uptime").read_text().split()[0])
        return uptime - ticks / os.sysconf("SC_CLK_TCK")
    return None
