"""Cause of a failed compile, the compiler's or the caller's: decided by eager's behaviour on the same inputs.

Inputs that do not fit a model fail in tracing as they do in eager, and so does code that raises by design. That is not
a failure of the compiler, so it is not counted, warned about or recorded. So a failure in compiling a frame is only
noted at first (`Doubts.note`), and the frame runs in eager. When the call of the object ends, the failure is settled
(`Doubts.settle`):

- the call returned, or raised something that did not pass through the frame: the failure is ours;
- it raised through the frame: a caller error, and the caller gets eager's own exception.

A frame compiled by another thread is settled when both its compile and the call that requested it have ended
(`Settlement`).
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
    """`hear` gets the call's ending. Until then frames of this code are served like the first one."""

    code: types.CodeType
    hear: Callable[[Ending], object]
    served: Any = None


class Doubts:
    """The doubts of one entrance. `open` has an entry for each thread whose current call had a failed compile. It is
    empty most of the time, and a call only checks that."""

    def __init__(self, users_line: Callable[[Iterable[Line]], Line | None]) -> None:
        self.open: dict[int, list[Doubt]] = {}
        self._users_line = users_line

    def note(self, doubt: Doubt) -> None:
        self.open.setdefault(threading.get_ident(), []).append(doubt)

    def served(self, code: types.CodeType) -> Any:
        """How frames of this code are served in this thread's current call, if that is in doubt."""
        noted = self.open.get(threading.get_ident(), ())
        return next((doubt.served for doubt in noted if doubt.code is code and doubt.served is not None), None)

    def taken(self) -> list[Doubt]:
        """This thread's doubts, removed, to be settled by the caller."""
        return self.open.pop(threading.get_ident(), [])

    def settle(self, error: BaseException | None = None) -> None:
        """A call of this thread has ended. For a nested call, the frames of the outer call are still running."""
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
    """A frame that another thread compiles: its doubts, and the ending of the call that requested it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._doubts: Sequence[Doubt] | None = None
        self._ending: Ending | None = None

    def compiled(self, doubts: Sequence[Doubt]) -> None:
        with self._lock:
            self._doubts = doubts
        self._tell()

    def called(self, ending: Ending) -> None:
        """The first report counts: calls with the same inputs end in the same way."""
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
