"""Time limits of a compile: stages of the pipeline check a `Deadline`, which also ends the C compiler."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from contextvars import ContextVar

from burnish.errors import CompileError


class Cancelled(BaseException):
    """Leaves a compile that is out of time or no longer wanted. Not an Exception, so that no handler mistakes it for a
    failure of the model and continues with half a graph."""

    def __init__(self, reason: str, stage: str) -> None:
        super().__init__(f"{reason} at stage '{stage}'")
        self.reason = reason
        self.stage = stage


class Deadline:
    """Ends a compile at a given time, or when `cancel` is called. The work calls `check` wherever it can stop."""

    def __init__(
        self,
        seconds: float | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        on_check: Callable[[], None] | None = None,
        niceness: int = 0,
        starts_later: bool = False,
    ) -> None:
        """`starts_later`: the time counts from `start`, when the job starts."""
        self.seconds = seconds
        self.niceness = niceness  # by how much processes it starts give way to others
        self.stage = "waiting for other compiles"
        self._clock = clock
        self._starts_later = starts_later
        self._end: float | None = None
        if not starts_later:
            self.start()
        self._on_check = on_check
        self._cancelled = ""
        self._ends: set[Callable[[], None]] = set()
        self._lock = threading.RLock()  # the garbage collector may cancel in the midst of it

    def start(self) -> None:
        if self.seconds is not None and self._end is None:
            self._end = self._clock() + self.seconds

    def renewed(self) -> Deadline:
        """The same, not cancelled. Time that was used stays used."""
        again = Deadline(
            self.seconds,
            clock=self._clock,
            on_check=self._on_check,
            niceness=self.niceness,
            starts_later=self._starts_later,
        )
        again._end = self._end
        return again

    @property
    def expired(self) -> bool:
        return self._end is not None and self._clock() >= self._end

    @property
    def cancelled(self) -> str:
        """Why, or nothing."""
        return self._cancelled

    def remaining(self) -> float | None:
        """Seconds left, at least 0; None without a limit."""
        return None if self._end is None else max(self._end - self._clock(), 0.0)

    def check(self, stage: str | None = None) -> None:
        """Raise `Cancelled` once time is up. `stage` is what begins now."""
        if stage is not None:
            self.stage = stage
        if self._cancelled or self.expired:
            raise Cancelled(self._cancelled or f"cancelled after its budget of {self.seconds:g} s", self.stage)
        if self._on_check is not None and _current.get() is self:  # not in threads that help
            self._on_check()

    def cancel(self, reason: str) -> None:
        """May be called from any thread: the next check raises, and processes end now."""
        with self._lock:
            self._cancelled = self._cancelled or reason
            ends = list(self._ends)
        for end in ends:
            end()

    @contextlib.contextmanager
    def ending(self, end: Callable[[], None]) -> Iterator[None]:
        """While open, `cancel` calls `end`, which makes what runs outside of Python stop."""
        with self._lock:
            self._ends.add(end)
        try:
            if self._cancelled:
                end()
            yield
        finally:
            with self._lock:
                self._ends.discard(end)

    @contextlib.contextmanager
    def governing(self) -> Iterator[None]:
        """While open, `current_deadline` in this thread is this one; `on_check` is called in such threads only."""
        token = _current.set(self)
        try:
            yield
        finally:
            _current.reset(token)


class _Unlimited(Deadline):
    def cancel(self, reason: str) -> None:
        raise AssertionError("this deadline is shared by all who have none")


UNLIMITED: Deadline = _Unlimited()
_current: ContextVar[Deadline] = ContextVar("burnish_deadline", default=UNLIMITED)


def current_deadline() -> Deadline:
    """For the capture layer, which Dynamo calls: the deadline of the frame that this thread compiles."""
    return _current.get()


class OverBudget(CompileError):
    def __init__(self, seconds: float, stage: str) -> None:
        super().__init__(
            "budget",
            f"compiling was cancelled after its budget of {seconds:g} s, at stage '{stage}'; eager serves instead",
            "give it a larger budget=, or background=True so that no call waits for it",
        )
