"""Causes of noise: the machine's activity during a measurement (other processes, hypervisor, clocks, quotas, our
GC)."""

from __future__ import annotations

import gc
import os
import resource
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from burnish.tools.bench.nvml import Gpu
from burnish.tools.bench.words import percent

PROC_STAT = Path("/proc/stat")
CPU = Path("/sys/devices/system/cpu")
CGROUP = Path("/sys/fs/cgroup/cpu.stat")

_OTHERS = 0.10  # of a core: below this, other processes explain nothing
_STEAL = 0.02
_SWITCHES = 50.0  # involuntary context switches per second and core
_FREQUENCY = 0.10
_GC = 0.01


@dataclass(frozen=True)
class Activity:
    """What happened on the machine while something was measured. None: this machine does not tell."""

    seconds: float
    cores: int
    threads: int
    own_cores: float  # cores' worth of time that our process used
    other_cores: float | None = None  # and everything else
    steal_cores: float | None = None  # and other virtual machines on the same hardware
    switches_per_second: float | None = None  # taken off a core against our will
    load: float | None = None  # processes that wanted to run, over the last minute
    frequency_drop: float | None = None  # of the slowest reading against the fastest
    throttle_events: int | None = None  # the processor's own count of thermal throttling
    quota_seconds: float | None = None  # a container's CPU quota held us back for so long
    gc_seconds: float = 0.0
    gpu_busy_before: float | None = None
    gpu_clock_drop: float | None = None
    gpu_throttled_by: tuple[str, ...] = ()


def likely_causes(activity: Activity) -> tuple[str, ...]:
    """The reasons for a spread, the strongest first; empty where nothing stood out."""
    found: list[tuple[float, str]] = []

    def cause(strength: float, text: str) -> None:
        found.append((strength, text))

    a = activity
    if a.other_cores is not None and a.other_cores > _OTHERS:
        cause(
            a.other_cores / a.cores, f"a noisy neighbour: other processes used {a.other_cores:.1f} of {a.cores} cores"
        )
    elif a.switches_per_second is not None and a.switches_per_second / a.cores > _SWITCHES:
        cause(0.1, f"a noisy neighbour: taken off a core {a.switches_per_second:.0f} times a second")
    if a.steal_cores is not None and a.steal_cores > _STEAL:
        cause(2 * a.steal_cores / a.cores, f"the hypervisor gave {a.steal_cores:.2f} cores of time to other machines")
    if a.quota_seconds is not None and a.quota_seconds > 0.01 * a.seconds:
        cause(2 * a.quota_seconds / a.seconds, f"the container's CPU quota paused it for {a.quota_seconds:.1f} s")
    if a.throttle_events:
        cause(0.5, f"thermal throttling: the processor slowed itself down {a.throttle_events} times")
    elif a.frequency_drop is not None and a.frequency_drop > _FREQUENCY:
        cause(
            a.frequency_drop,
            f"clocks that moved: the slowest reading was {percent(a.frequency_drop)} below the fastest",
        )
    if a.threads > a.cores:
        cause(0.3, f"{a.threads} threads on {a.cores} cores")
    if a.gc_seconds > _GC * a.seconds:
        cause(a.gc_seconds / a.seconds, f"Python's garbage collector ran for {a.gc_seconds:.2f} s")
    if a.gpu_busy_before is not None and a.gpu_busy_before > 0.05:
        cause(a.gpu_busy_before, f"a busy GPU: {percent(a.gpu_busy_before)} in use before the measurement began")
    if a.gpu_throttled_by:
        cause(0.5, f"a throttling GPU: {', '.join(a.gpu_throttled_by)}")
    elif a.gpu_clock_drop is not None and a.gpu_clock_drop > _FREQUENCY:
        cause(a.gpu_clock_drop, f"GPU clocks that moved by {percent(a.gpu_clock_drop)}")
    return tuple(text for _, text in sorted(found, key=lambda item: -item[0]))


class Watch:
    """Made before a measurement, `start()`ed with it; `look()` now and then during it, `activity()` at its end."""

    def __init__(self, threads: int, gpu: Gpu | None = None, clock: Callable[[], float] = time.perf_counter) -> None:
        self._threads = threads
        self._gpu = gpu
        self._clock = clock
        self._gpu_busy_before = gpu.busy() if gpu else None
        self._frequencies: list[float] = []
        self._gpu_clocks: list[float] = []
        self._gpu_throttled: dict[str, None] = {}
        self._gc_seconds = 0.0
        self._gc_begin = 0.0
        self._last_look = -1.0
        self.started = False
        self._begin = clock()
        self._before = _Counters.now()

    def start(self) -> None:
        if not self.started:
            self.started = True
            gc.callbacks.append(self._on_gc)
            self._begin = self._clock()
            self._before = _Counters.now()

    def look(self) -> bool:
        """Read what has no counter (clocks), at most five times a second; False where it is too soon to."""
        now = self._clock()
        if now - self._last_look < 0.2:
            return False
        self._last_look = now
        frequency = _frequency_mhz()
        if frequency is not None:
            self._frequencies.append(frequency)
        if self._gpu is not None:
            clock = self._gpu.clock_mhz()
            self._gpu_clocks += [] if clock is None else [float(clock)]
            self._gpu_throttled.update(dict.fromkeys(self._gpu.throttled_by()))
        return True

    def activity(self) -> Activity:
        if self.started:
            gc.callbacks.remove(self._on_gc)
        seconds = max(self._clock() - self._begin, 1e-9)
        after, before = _Counters.now(), self._before
        own = (after.own - before.own) / seconds
        busy = _difference(after.busy, before.busy)
        steal = _difference(after.steal, before.steal)
        quota = _difference(after.quota, before.quota)
        throttled = _difference(after.throttled, before.throttled)
        return Activity(
            seconds=seconds,
            cores=_cores(),
            threads=self._threads,
            own_cores=own,
            other_cores=None if busy is None else max(0.0, busy / seconds - own),
            steal_cores=None if steal is None else steal / seconds,
            switches_per_second=(after.switches - before.switches) / seconds,
            load=os.getloadavg()[0],
            frequency_drop=_drop(self._frequencies),
            throttle_events=None if throttled is None else int(throttled),
            quota_seconds=quota,
            gc_seconds=self._gc_seconds,
            gpu_busy_before=self._gpu_busy_before,
            gpu_clock_drop=_drop(self._gpu_clocks),
            gpu_throttled_by=tuple(self._gpu_throttled),
        )

    def _on_gc(self, phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            self._gc_begin = self._clock()
        else:
            self._gc_seconds += self._clock() - self._gc_begin


@dataclass(frozen=True)
class _Counters:
    own: float
    switches: int
    busy: float | None
    steal: float | None
    quota: float | None
    throttled: float | None

    @staticmethod
    def now() -> _Counters:
        used = resource.getrusage(resource.RUSAGE_SELF)
        busy, steal = cpu_seconds(_text(PROC_STAT))
        return _Counters(
            used.ru_utime + used.ru_stime, used.ru_nivcsw, busy, steal, _quota_seconds(_text(CGROUP)), _throttle_count()
        )


def cpu_seconds(proc_stat: str | None) -> tuple[float | None, float | None]:
    """Seconds all cores were busy, and stolen from us, since boot: of the first line of /proc/stat."""
    fields = proc_stat.split("\n", 1)[0].split() if proc_stat else []
    if len(fields) < 9 or fields[0] != "cpu":
        return None, None
    user, nice, system, _idle, _iowait, irq, softirq, steal = (int(field) for field in fields[1:9])
    ticks = os.sysconf("SC_CLK_TCK")
    return (user + nice + system + irq + softirq) / ticks, steal / ticks


def _quota_seconds(cpu_stat: str | None) -> float | None:
    for line in (cpu_stat or "").splitlines():
        if line.startswith("throttled_usec "):
            return int(line.split()[1]) / 1e6
    return None


def _throttle_count() -> float | None:
    counts = [_text(path) for path in CPU.glob("cpu[0-9]*/thermal_throttle/core_throttle_count")]
    return float(sum(int(count) for count in counts if count)) if counts else None


def _frequency_mhz() -> float | None:
    readings = [_text(path) for path in CPU.glob("cpu[0-9]*/cpufreq/scaling_cur_freq")]
    numbers = [int(reading) / 1e3 for reading in readings if reading]
    return max(numbers) if numbers else None  # the core that works; idle ones sleep at low clocks


def _text(path: Path) -> str | None:
    try:
        return path.read_text()
    except OSError:
        return None


def _difference(after: float | None, before: float | None) -> float | None:
    return None if after is None or before is None else after - before


def _drop(readings: Sequence[float]) -> float | None:
    return 1 - min(readings) / max(readings) if len(readings) > 1 and max(readings) > 0 else None


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
