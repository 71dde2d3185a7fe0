"""Manners of a process: giving way to others, and leaving nothing behind."""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import threading
from collections.abc import Callable

_NICENESS = 10


def give_way(number: int | None = None) -> None:
    """Lower the priority of a process, or of this thread, which has one of its own on Linux only."""
    if number is None and sys.platform != "linux":
        return
    with contextlib.suppress(OSError, AttributeError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id() if number is None else number, _NICENESS)


def at_exit(end: Callable[[], None]) -> None:
    """Call `end` when the process ends, and before Python waits for threads that may wait for what it ends."""
    register = getattr(threading, "_register_atexit", atexit.register)
    with contextlib.suppress(RuntimeError):  # it is ending already
        register(end)
