"""Sinks of events: a line for the `burnish` logger, and a line of JSON in a file if the user named one.

A sink runs inside the user's call, so it never raises: events that cannot be written are counted, and one warning is
logged.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import stat
import sys
from pathlib import Path

from burnish.observe.events import Event, Sink
from burnish.options import Options

FILE_LIMIT_BYTES = 16 << 20  # then the file becomes PATH.1, in the place of an older one: two files at most

_logger = logging.getLogger("burnish")
_logger.addHandler(logging.NullHandler())  # quiet until the user asks: by BURNISH_LOG, or by handlers of their own


def sinks_for(options: Options) -> tuple[Sink, ...]:
    """The sinks that one object's options ask for."""
    if options.log is not None:
        show_log(options.log)
    if options.events is None:
        return (log_line,)
    return (log_line, event_file(options.events).write)


# -- Python's logging ---------------------------------------------------------------------------------------------


def log_line(event: Event) -> None:
    with contextlib.suppress(Exception):  # of a user's handler or filter
        if _logger.isEnabledFor(event.level):
            _logger.log(event.level, "%s", event)


def show_log(level: str) -> None:
    """Print lines of `level` and above to stderr, unless the program has handlers of its own for them."""
    _logger.setLevel(level.upper())
    if any(not isinstance(handler, logging.NullHandler) for handler in _handlers_in_use()):
        return
    handler = _ToStderr()
    handler.setFormatter(logging.Formatter("%(asctime)s burnish %(levelname)s %(message)s"))
    _logger.addHandler(handler)


class _ToStderr(logging.Handler):
    """Prints to what sys.stderr is at the time, which notebooks and test runners replace."""

    def emit(self, record: logging.LogRecord) -> None:
        with contextlib.suppress(Exception):
            print(self.format(record), file=sys.stderr, flush=True)


def _handlers_in_use() -> list[logging.Handler]:
    return [*_logger.handlers, *(logging.getLogger().handlers if _logger.propagate else ())]


# -- JSON lines ---------------------------------------------------------------------------------------------------


class EventFile:
    """Appends one JSON object per line. Processes may share the file: each line is one write with O_APPEND."""

    def __init__(self, path: Path, limit_bytes: int = FILE_LIMIT_BYTES) -> None:
        self.path = path
        self.limit_bytes = limit_bytes
        self.written = 0
        self.dropped = 0  # events that could not be written
        self._torn = False  # the last line was cut short by a full disk

    def write(self, event: Event) -> None:
        try:
            self._append(event.to_json().encode() + b"\n")
            self.written += 1
        except Exception as error:
            self.dropped += 1
            if self.dropped == 1:
                with contextlib.suppress(Exception):
                    _logger.warning("events are not written to %s: %s; burnish.metrics() counts them", self.path, error)

    def _append(self, line: bytes) -> None:
        # Opened for each event (some 10 us, and events are rare): a file that was moved or removed is simply made
        # again. O_NONBLOCK, because opening a pipe that nobody reads would wait for a reader.
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK
        try:
            descriptor = os.open(self.path, flags, 0o644)
        except FileNotFoundError:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(self.path, flags, 0o644)
        try:
            whole = b"\n" + line if self._torn else line
            count = os.write(descriptor, whole)
            self._torn = count != len(whole)
            if self._torn:
                raise OSError(f"only {count} of {len(whole)} bytes could be written")
            self._rotate(descriptor)
        finally:
            os.close(descriptor)

    def _rotate(self, descriptor: int) -> None:
        status = os.fstat(descriptor)
        if status.st_size < self.limit_bytes or not stat.S_ISREG(status.st_mode):
            return
        # Of several processes exactly one may move the file. The lock is on this file. Its holder checks whether the
        # path still refers to it: a process that is late finds a new, small file there.
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.stat(self.path).st_ino == status.st_ino:
                os.replace(self.path, f"{self.path}.1")


_files: dict[Path, EventFile] = {}


def event_file(path: Path) -> EventFile:
    """One per file in this process, so that it complains once."""
    return _files.setdefault(path, EventFile(path))


def dropped_events() -> int:
    """Events of this process that could not be written to their file."""
    return sum(file.dropped for file in list(_files.values()))
