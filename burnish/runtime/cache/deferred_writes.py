"""Cache writes that only a later process needs: they run after the result that the current call waits for.

A thread writes shortly after the last request, so that it does not compete for the processor with the compiling call
and its race. Remaining writes run at exit, limited to a few seconds; in a killed process they are lost, and the next
process finds a cold cache. Pending writes hold none of the user's objects, because these may change or should be freed.
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
        """In a forked child: the parent does the pending writes."""
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
                    self._thread = None  # the next request tries again, and exit does the rest

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
        """Do the pending writes now, in this thread; none starts after this many seconds. Waits for a write in another
        thread."""
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
