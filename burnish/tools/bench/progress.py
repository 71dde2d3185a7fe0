"""The progress of a bench and its remaining time: an estimate for each task, corrected by the finished tasks."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from burnish.tools.bench.candidates import Candidate

_COMPILE_SECONDS = {"inductor": 30.0, "burnish": 8.0}
_AUTOTUNE_FACTOR = 3.0
_START_SECONDS = 8.0  # a process that imports torch and builds a model


@dataclass
class _Task:
    name: str
    expected: float
    part: float = 0.0
    took: float | None = None


@dataclass(frozen=True)
class Progress:
    """What a progress bar shows."""

    doing: str
    fraction: float
    seconds_left: float


class Forecast:
    """Tasks are announced with what they are expected to take, begun, moved forward and ended."""

    def __init__(
        self,
        on_progress: Callable[[Progress], None] = lambda progress: None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._tasks: list[_Task] = []
        self._on_progress = on_progress
        self._clock = clock
        self._current: _Task | None = None
        self._begin = 0.0
        self._fraction = 0.0

    def expect(self, name: str, seconds: float) -> None:
        self._tasks.append(_Task(name, seconds))

    def begin(self, name: str) -> None:
        self._current = next(task for task in self._tasks if task.name == name and task.took is None)
        self._begin = self._clock()

    def move(self, part: float, doing: str) -> None:
        if self._current is None:
            return
        self._current.part = max(self._current.part, part)
        left = self.seconds_left()
        done = sum(task.took or 0.0 for task in self._tasks) + self._clock() - self._begin
        self._fraction = max(self._fraction, done / max(done + left, 1e-9))  # a bar that goes back annoys
        self._on_progress(Progress(doing, min(self._fraction, 1.0), left))

    def end(self) -> None:
        if self._current is not None:
            self._current.took = self._clock() - self._begin
            self._current = None

    def seconds_left(self) -> float:
        scale = self._scale()
        left = sum(task.expected * scale for task in self._tasks if task.took is None and task is not self._current)
        if self._current is not None:
            spent = self._clock() - self._begin
            expected = self._current.expected * scale - spent
            overdue = spent * (1 - self._current.part) / max(self._current.part, 0.1)
            left += expected if expected > 0 else min(overdue, spent)
        return left

    def _scale(self) -> float:
        """This machine and model against what was expected of them."""
        done = [task for task in self._tasks if task.took is not None]
        expected = sum(task.expected for task in done)
        return sum(task.took or 0.0 for task in done) / expected if expected else 1.0


def expected_alone(candidate: Candidate) -> float:
    if not candidate.compiles:
        return _START_SECONDS
    seconds = _COMPILE_SECONDS.get(candidate.engine, 10.0)
    return _START_SECONDS + seconds * (_AUTOTUNE_FACTOR if "max-autotune" in (candidate.mode or "") else 1.0)


def expected_race(candidates: tuple[Candidate, ...], seconds: float) -> float:
    warm = sum(0.3 * (expected_alone(candidate) - _START_SECONDS) + 3.0 for candidate in candidates)
    return _START_SECONDS + warm + seconds + 5.0
