"""Counts the bytes that all processes wrote to a cache since the last eviction, and lets one process at a time evict.

<root>/written     one byte for each block that was, or is about to be, written
<root>/evicting    locked by the process that evicts
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

_BLOCK_BYTES = 256
_PATIENCE = 2.0  # seconds that a writer waits for the one that evicts
_LOOK_SECONDS = 0.005
_FLAGS = os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class Ledger:
    """`opened` opens the directory that its files are in."""

    def __init__(self, opened: Callable[[], AbstractContextManager[int]]) -> None:
        self._opened = opened
        self._patience = _PATIENCE
        self._thread = threading.Lock()  # a lock on a file is the whole process's

    def note(self, size: int) -> int:
        """Count bytes that are about to be written; returns how many there are by now. O_APPEND lets all processes
        extend the file without a lock."""
        with self._file("written", os.O_WRONLY | os.O_APPEND) as file:
            os.write(file, b"." * -(-size // _BLOCK_BYTES))
            return os.fstat(file).st_size * _BLOCK_BYTES

    def reset(self) -> None:
        with self._file("written", os.O_WRONLY) as file:
            os.truncate(file, 0)

    @contextlib.contextmanager
    def evicting(self) -> Iterator[bool]:
        """While open, no other process evicts. False if another's eviction takes too long; it may have been stopped,
        and is not waited for again."""
        end = time.monotonic() + self._patience
        if not self._thread.acquire(timeout=self._patience):
            yield False
            return
        try:
            with self._file("evicting", os.O_RDWR) as file:
                while not (alone := _locked(file)) and time.monotonic() < end:
                    time.sleep(_LOOK_SECONDS)
                self._patience = _PATIENCE if alone else 0.0
                yield alone
        finally:
            self._thread.release()

    @contextlib.contextmanager
    def _file(self, name: str, flags: int) -> Iterator[int]:
        with self._opened() as directory:
            file = os.open(name, flags | _FLAGS, 0o600, dir_fd=directory)
        try:
            yield file
        finally:
            os.close(file)


def _locked(file: int) -> bool:
    """Of this process and none that it forks: true as well where the filesystem has no locks."""
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return error.errno not in (errno.EACCES, errno.EAGAIN)
    return True
