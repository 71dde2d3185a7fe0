"""Helpers about a process: lower priorities, threads that may not start, work at exit, freed memory given back."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import os
import threading
from collections.abc import Callable

NICE = 10  # out of everybody's way
HELPFUL = 3  # out of the way of the thread that will wait for it: two such processes weigh as much as that one


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
    """What was freed goes back to the system, where malloc would keep it for later."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if os.name == "posix" else None
    if trim is not None:
        trim(0)


def at_exit(end: Callable[[], None]) -> None:
    """Call `end` when the process ends, and before Python waits for threads that may wait for what it ends."""
    register = getattr(threading, "_register_atexit", atexit.register)
    with contextlib.suppress(RuntimeError):  # it is ending already
        register(end)
