"""Helpers about a process: lower priorities, threads that may not start, work at exit, freed memory given back."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import os
import threading
from collections.abc import Callable

NICE = 10  # out of everybody's way
HELPFUL = 3  # lower than the thread that will wait: two such processes get as much time as that thread


def give_way(process: int, niceness: int = NICE) -> None:
    """Lower the priority of a process, and of those that it will start."""
    with contextlib.suppress(OSError, AttributeError):
        os.setpriority(os.PRIO_PROCESS, process, niceness)


def has_started(thread: threading.Thread) -> bool:
    """Start it. False where the system allows no more: a container's limit of processes counts threads, too. And none
    starts once the interpreter is ending."""
    try:
        thread.start()
    except (RuntimeError, MemoryError):
        return False
    return True


def give_back_freed_memory() -> None:
    """Return freed memory to the system, which malloc would otherwise keep."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if os.name == "posix" else None
    if trim is not None:
        trim(0)


def at_exit(end: Callable[[], None]) -> None:
    """Call `end` when the process ends, and before Python waits for threads that may wait for what it ends."""
    register = getattr(threading, "_register_atexit", atexit.register)
    with contextlib.suppress(RuntimeError):  # it is ending already
        register(end)
