"""Cache writes that only a later process needs: they run after the result that the current call waits for.

A thread does it a moment after the last of it was asked for, so that neither the call that compiled nor the race in it
shares the processor with it. What is left when the process ends is done then, within seconds; in a process that is
killed it is not done at all, which the next one notices as a cold cache. Such work holds none of the user's objects:
they may change, and may be wanted gone.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections import deque
from collections.abc import Callable

from burnish.runtime.process import at_exit, has_started

QUIET_SECONDS = 1.0
EXIT_SECONDS = 5.0

Work = Callable[[], None]


class Later:
    def __init__(self, quiet_seconds: float = QUIET_SECONDS) -> None:
        self._quiet_seconds = quiet_seconds
        self.forget()

    def forget(self) -> None:
        """In a forked child: what is left is the parent's to do."""
        self._left: deque[Work] = deque()
        self._lock = threading.Lock()  # of the two below
        self._due = 0.0
        self._thread: threading.Thread | None = None
        self._doing = threading.RLock()  # held while something is done

    def do(self, work: Work) -> None:
        with self._lock:
            self._left.append(work)
            self._due = time.monotonic() + self._quiet_seconds
            if self._thread is None:
                thread = threading.Thread(target=self._wait_and_finish, name="burnish-later", daemon=True)
                self._thread = thread  # which sets it to None when it is done
                if not has_started(thread):
                    self._thread = None  # what is asked for next tries again, and the end of the process does the rest

    def _wait_and_finish(self) -> None:
        while True:
            with self._lock:
                rest = self._due - time.monotonic()
                if rest <= 0 or not self._left:
                    self._thread = None  # what is asked for from now on has a thread of its own
                    break
            time.sleep(rest)
        self.finish()

    def finish(self, seconds: float = float("inf")) -> None:
        """Do now, in this thread, what is left; nothing begins after so many seconds. What another thread is doing is
        waited for."""
        end = time.monotonic() + seconds
        if not self._doing.acquire(timeout=min(seconds, threading.TIMEOUT_MAX)):
            return
        try:
            while self._left and time.monotonic() < end:
                with contextlib.suppress(IndexError, Exception):  # of no concern to any call
                    self._left.popleft()()
        finally:
            self._doing.release()


later = Later()
at_exit(lambda: later.finish(EXIT_SECONDS))
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=later.forget)
