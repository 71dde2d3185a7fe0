"""Joules per call, where the hardware counts them: NVML for a GPU, RAPL for an Intel or AMD processor."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from burnish.tools.bench.nvml import Gpu

RAPL = Path("/sys/class/powercap")
LEAST_SECONDS = 1.0  # the counters move every few milliseconds (RAPL) or every tenth of a second (NVML)


@dataclass(frozen=True)
class Energy:
    """`joules` per call, or `missing`: why not. What else ran on the machine meanwhile is in it."""

    joules: float | None = None
    meter: str | None = None
    missing: str | None = None


class Meter(Protocol):
    name: str

    def joules(self) -> float: ...


class GpuMeter:
    name = "NVML"

    def __init__(self, gpu: Gpu) -> None:
        self._gpu = gpu

    def joules(self) -> float:
        return self._gpu.joules() or 0.0


class RaplMeter:
    """All processor packages together. A counter wraps every few minutes at full load; readings in between notice."""

    name = "RAPL"

    def __init__(self, packages: list[Path]) -> None:
        self._packages = packages
        self._last = [_read(package / "energy_uj") for package in packages]
        self._total = 0.0

    def joules(self) -> float:
        for index, package in enumerate(self._packages):
            now = _read(package / "energy_uj")
            rise = now - self._last[index]
            if rise < 0:
                rise += _read(package / "max_energy_range_uj")
            self._total += rise / 1e6
            self._last[index] = now
        return self._total


def cpu_meter(root: Path = RAPL) -> Meter | str:
    """The processor's meter, or why there is none."""
    if not root.is_dir():
        return "no RAPL counters on this machine"
    packages = sorted(path for path in root.glob("*-rapl:*") if path.name.count(":") == 1)
    if not packages:
        return "no RAPL counters on this machine"
    try:
        return RaplMeter(packages)
    except PermissionError:
        return "RAPL counters are readable by root only"
    except (OSError, ValueError):
        return "RAPL counters cannot be read"


def gpu_meter(gpu: Gpu | str) -> Meter | str:
    if isinstance(gpu, str):
        return gpu
    return GpuMeter(gpu) if gpu.joules() is not None else "this GPU does not count energy"


def energy_per_call(
    call: Callable[[], object],
    meter: Meter | str,
    *,
    synchronize: Callable[[], None] = lambda: None,
    seconds: float = LEAST_SECONDS,
    clock: Callable[[], float] = time.perf_counter,
) -> Energy:
    """Call for at least `seconds` and divide."""
    if isinstance(meter, str):
        return Energy(missing=meter)
    synchronize()
    before, begin, calls = meter.joules(), clock(), 0
    while clock() - begin < seconds:
        call()
        calls += 1
    synchronize()
    used = meter.joules() - before
    return Energy(used / calls, meter.name) if used > 0 else Energy(missing=f"{meter.name}'s counter did not move")


def _read(path: Path) -> int:
    return int(path.read_text())
