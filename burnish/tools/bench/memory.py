"""Memory of a process with everything it started, sampled from outside, and of one call, measured from inside."""

from __future__ import annotations

import gc
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from burnish.runtime import process

SAMPLE_SECONDS = 0.1
RACE_SAMPLE_SECONDS = 1.0  # while times are taken, the sampler keeps off the cores
_PAGE = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True)
class MemoryUse:
    """In bytes. `compile_peak` is the resident set with that of compile workers, at its highest."""

    before: int | None = None  # with the model loaded, before anything is compiled
    compile_peak: int | None = None
    steady: int | None = None  # resident between calls
    call_rise: int | None = None  # the most that a call adds to it
    device_compile_peak: int | None = None  # the GPU allocator's
    device_steady_peak: int | None = None


@dataclass(frozen=True)
class Timeline:
    """Resident bytes over seconds, and when which phase began."""

    points: tuple[tuple[float, int], ...] = ()
    phases: tuple[tuple[float, str], ...] = ()

    def peak(self, phase: str) -> int | None:
        """The highest value between the beginning of `phase` and of the one after it."""
        starts = [(begin, name) for begin, name in self.phases]
        for index, (begin, name) in enumerate(starts):
            if name == phase:
                end = starts[index + 1][0] if index + 1 < len(starts) else float("inf")
                values = [value for moment, value in self.points if begin <= moment <= end]
                return max(values) if values else None
        return None


class Sampler:
    """Samples a process and its descendants until `stop()`."""

    def __init__(
        self,
        pid: int,
        clock: Callable[[], float] = time.perf_counter,
        resident: Callable[[int], int | None] | None = None,
        every: float = SAMPLE_SECONDS,
    ) -> None:
        self._pid = pid
        self._clock = clock
        self._every = every
        self._resident = resident or tree_resident_bytes
        self._begin = clock()
        self._points: list[tuple[float, int]] = []
        self._phases: list[tuple[float, str]] = []
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="burnish-memory", daemon=True)
        self._thread.start()

    def phase(self, name: str) -> None:
        if not self._phases or self._phases[-1][1] != name:
            self._phases.append((self._clock() - self._begin, name))

    def stop(self) -> Timeline:
        self._stopped.set()
        self._thread.join()
        return Timeline(tuple(self._points), tuple(self._phases))

    def _run(self) -> None:
        while not self._stopped.is_set():
            value = self._resident(self._pid)
            if value:  # a process that has ended has nothing
                self._points.append((self._clock() - self._begin, value))
            racing = self._phases and self._phases[-1][1] == "race"
            self._stopped.wait(RACE_SAMPLE_SECONDS if racing else self._every)


def tree_resident_bytes(pid: int) -> int | None:
    """The resident sets of a process and all its descendants; pages they share count once for each."""
    own = _statm(pid)
    return None if own is None else own[1] + sum(_descendants(child, own[0]) for child in _children(pid))


def _descendants(pid: int, size_of_parent: int) -> int:
    found = _statm(pid)
    if found is None:
        return 0
    size, resident = found
    # A child that is about to run another program has its parent's memory until then: that is no memory of its own.
    own = 0 if size == size_of_parent else resident
    return own + sum(_descendants(child, size) for child in _children(pid))


def _statm(pid: int) -> tuple[int, int] | None:
    """The address space and what of it is resident, in bytes."""
    try:
        size, resident = Path(f"/proc/{pid}/statm").read_text().split()[:2]
    except (OSError, ValueError):
        return None
    return int(size) * _PAGE, int(resident) * _PAGE


def _children(pid: int) -> list[int]:
    try:
        tasks = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return []
    found: list[int] = []
    for task in tasks:
        try:
            found += [int(child) for child in Path(f"/proc/{pid}/task/{task}/children").read_text().split()]
        except OSError:
            continue
    return found


# -- from inside --------------------------------------------------------------------------------------------------


def resident_bytes() -> int | None:
    found = _statm(os.getpid())
    return found[1] if found else None


def forget_peak() -> bool:
    """Let the peak start anew at what is resident now; False where the system cannot."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return False
    return True


def peak_bytes() -> int | None:
    """The highest resident set since `forget_peak`."""
    return status_bytes("VmHWM")


def call_rise(call: Callable[[], object]) -> int | None:
    """How far above what was resident before it a call goes; None where the system does not tell."""
    give_back_freed_memory()
    before = status_bytes("VmRSS")
    if not forget_peak():
        return None
    outputs = call()  # kept until the peak is read, as a caller would
    peak = peak_bytes()
    del outputs
    return None if before is None or peak is None else max(peak - before, 0)


def give_back_freed_memory() -> None:
    """Freed pages that malloc keeps would hide the next call's use of them."""
    gc.collect()
    process.give_back_freed_memory()


def status_bytes(field: str) -> int | None:
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(field + ":")), None)
