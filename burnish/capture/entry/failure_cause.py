"""Cause of a failed compile, the compiler's or the caller's: decided by what eager does with the same inputs.

Inputs that do not fit a model fail in tracing as they do in eager, and so does code that raises by design. Nothing is
wrong with the compiler then, and nothing to be counted, warned about or remembered. So a failure is only noted when a
frame is compiled (`Doubts.note`), the frame runs in eager, and when the call of the object ends (`Doubts.settle`):

- the call returned, or raised something that did not pass through the frame: the failure is ours;
- it raised through the frame: the mistake is the caller's, who has eager's own exception.

A frame compiled by another thread is settled when both are known: what became of the compile, and of the call that
asked for it (`Settlement`).
"""

from __future__ import annotations

import sys
import threading
import types
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

Line = tuple[str, int]


@dataclass(frozen=True)
class Ending:
    """How a call ended: the code that an exception passed through, and the caller's line that it came from."""

    codes: frozenset[types.CodeType] = frozenset()
    line: Line | None = None

    @classmethod
    def of(cls, error: BaseException | None, users_line: Callable[[Iterable[Line]], Line | None]) -> Ending:
        frames = []
        traceback = error.__traceback__ if error is not None else None
        while traceback is not None:
            frames.append((traceback.tb_frame.f_code, traceback.tb_lineno))
            traceback = traceback.tb_next
        if not frames:
            return RETURNED
        return cls(frozenset(code for code, _ in frames), users_line((c.co_filename, line) for c, line in frames))


RETURNED = Ending()


@dataclass(frozen=True)
class Doubt:
    """`hear` is told how the call ended. Until then frames of this code are served as the first one was."""

    code: types.CodeType
    hear: Callable[[Ending], object]
    served: Any = None


class Doubts:
    """Those of one entrance. `open` has an entry for each thread in whose call something could not be compiled: it is
    empty most of the time, which is all that a call looks at."""

    def __init__(self, users_line: Callable[[Iterable[Line]], Line | None]) -> None:
        self.open: dict[int, list[Doubt]] = {}
        self._users_line = users_line

    def note(self, doubt: Doubt) -> None:
        self.open.setdefault(threading.get_ident(), []).append(doubt)

    def served(self, code: types.CodeType) -> Any:
        """How frames of this code are served in the call that this thread is making, if that is in doubt."""
        noted = self.open.get(threading.get_ident(), ())
        return next((doubt.served for doubt in noted if doubt.code is code and doubt.served is not None), None)

    def taken(self) -> list[Doubt]:
        """This thread's, which somebody else will settle."""
        return self.open.pop(threading.get_ident(), [])

    def settle(self, error: BaseException | None = None) -> None:
        """A call of this thread has ended. Frames that are still running (it was made inside another) have not."""
        noted = self.taken()
        running = _running()
        for doubt in noted:
            if doubt.code in running:
                self.note(doubt)
        ending = Ending.of(error, self._users_line)
        for doubt in noted:
            if doubt.code not in running:
                doubt.hear(ending)


class Settlement:
    """A frame that another thread compiles: its doubts, and how the call ended that asked for it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._doubts: Sequence[Doubt] | None = None
        self._ending: Ending | None = None

    def compiled(self, doubts: Sequence[Doubt]) -> None:
        with self._lock:
            self._doubts = doubts
        self._tell()

    def called(self, ending: Ending) -> None:
        """The first one to say so: calls with the same inputs end alike."""
        with self._lock:
            self._ending = self._ending or ending
        self._tell()

    def raised_in(self, code: types.CodeType) -> bool:
        return self._ending is not None and code in self._ending.codes

    def _tell(self) -> None:
        with self._lock:
            if self._doubts is None or self._ending is None:
                return
            doubts, self._doubts = self._doubts, ()
        for doubt in doubts:
            doubt.hear(self._ending)


def _running() -> set[types.CodeType]:
    codes = set()
    frame: types.FrameType | None = sys._getframe(1)
    while frame is not None:
        codes.add(frame.f_code)
        frame = frame.f_back
    return codes
