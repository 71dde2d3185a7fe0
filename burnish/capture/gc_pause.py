"""Python's garbage collector while something compiles.

A compile makes hundreds of thousands of objects that live until it is over. Meanwhile the collector would go through
all that there is, torch and the model included, once or twice: a quarter of a second each time, for next to nothing
that could be freed. So until nothing compiles any more only young objects are looked at, and a full look is due when
the program has made as many new objects as it takes from a fresh start.
"""

from __future__ import annotations

import contextlib
import gc
import os
import threading
from collections.abc import Iterator

_NEVER = 1_000_000

Thresholds = tuple[int, int, int]


class Patience:
    """Full collections wait until the last of those who asked for it has let go."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._asked = 0
        self._before: Thresholds = (0, 0, 0)
        self._during: Thresholds = (0, 0, 0)  # what was set, as long as it is

    def ask(self) -> None:
        with self._lock:
            self._asked += 1
            if self._asked > 1:
                return
            self._before = before = gc.get_threshold()
            gc.set_threshold(before[0], before[1], _NEVER)
            self._during = gc.get_threshold()

    def let_go(self) -> None:
        """What somebody else has set meanwhile stays."""
        with self._lock:
            self._asked = max(self._asked - 1, 0)
            if self._asked or gc.get_threshold() != self._during:
                return
            gc.set_threshold(*self._before)
            self._during = (0, 0, 0)
            if gc.isenabled() and not gc.get_freeze_count():
                gc.freeze()  # both together move no object: they set back the counts that make a full collection due,
                gc.unfreeze()  # which would else come in the call that compiled

    def begin_again(self) -> None:
        """In a forked child: the threads that asked are not there, nor is one that held the lock."""
        self._lock = threading.Lock()
        self._asked = 1
        self.let_go()

    @contextlib.contextmanager
    def asked(self) -> Iterator[None]:
        self.ask()
        try:
            yield
        finally:
            self.let_go()


patience = Patience()  # the collector is the process's own
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=patience.begin_again)
