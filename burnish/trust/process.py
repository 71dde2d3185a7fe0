"""Manners of a process: giving way to others, and leaving nothing behind."""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
from collections.abc import Callable

_NICENESS = 10


def give_way(process: int) -> None:
    """Lower the priority of a process, and of those that it will start."""
    with contextlib.suppress(OSError, AttributeError):
        os.setpriority(os.PRIO_PROCESS, process, _NICENESS)


def at_exit(end: Callable[[], None]) -> None:
    """Call `end` when the process ends, and before Python waits for threads that may wait for what it ends."""
    register = getattr(threading, "_register_atexit", atexit.register)
    with contextlib.suppress(RuntimeError):  # it is ending already
        register(end)
