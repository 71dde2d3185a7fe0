"""Python's garbage collector while something compiles.

A compile makes hundreds of thousands of objects that live until its end. Meanwhile the collector would scan all
objects, torch and the model included, once or twice: a quarter of a second each time, with almost nothing to free. So
while anything compiles, only young objects are collected. Afterwards the counts for a full collection start again from
zero.
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
    """Postpones full collections until the last holder has released it."""

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
        """A value that other code has set meanwhile is kept."""
        with self._lock:
            self._asked = max(self._asked - 1, 0)
            if self._asked or gc.get_threshold() != self._during:
                return
            gc.set_threshold(*self._before)
            self._during = (0, 0, 0)
            if gc.isenabled() and not gc.get_freeze_count():
                gc.freeze()  # together they move no object, but reset the counts that trigger a full collection,
                gc.unfreeze()  # which would otherwise happen in the call that compiled

    def begin_again(self) -> None:
        """In a forked child: the holding threads do not exist, nor does one that held the lock."""
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


patience = Patience()  # the collector is process-wide
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=patience.begin_again)
