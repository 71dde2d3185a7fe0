"""Temporary files of this process: one directory, made at first use and removed when the process ends.

A killed process cannot remove its directory. So each process holds a lock on a file in its directory, and a later
process removes directories without a locked file.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import hashlib
import importlib.util
import os
import shutil
import tempfile
import threading
from multiprocessing.util import Finalize
from pathlib import Path
from types import ModuleType

_PREFIX = "burnish-"
_LOCK = "locked-while-in-use"


def own_directory() -> Path:
    """This process's directory; a forked child gets another."""
    return _directory_of(os.getpid())


@functools.cache
def _directory_of(pid: int) -> Path:
    path = Path(tempfile.mkdtemp(prefix=_PREFIX))
    with contextlib.suppress(OSError):
        _lock(path)
        _remove_abandoned(path.parent)
    # Unlike atexit, this also runs where multiprocessing ends a child it has forked; Finalize minds the process itself.
    Finalize(None, shutil.rmtree, (path,), {"ignore_errors": True}, exitpriority=0)
    return path


def _lock(path: Path) -> None:
    """Hold a lock until the process ends. The file gets its name after it is locked, so other processes cannot find it
    before."""
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    fcntl.flock(os.open(path / "being-locked", flags, 0o600), fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.rename(path / "being-locked", path / _LOCK)


def _remove_abandoned(temporary: Path) -> None:
    for path in temporary.glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):
            if path.lstat().st_uid == os.geteuid() and _is_abandoned(path):
                shutil.rmtree(path, ignore_errors=True)


def _is_abandoned(path: Path) -> bool:
    """Raises OSError for what is no directory of a process's."""
    lock = os.open(path / _LOCK, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(lock)
    return True


def load_python(text: str) -> ModuleType:
    """Python text as a module with a file of its own, for Triton reads a function's source from one.

    The file is private to this process: a file that others could have written is never run."""
    name = f"kernels_{hashlib.sha256(text.encode()).hexdigest()[:24]}"
    path = own_directory() / f"{name}.py"
    fresh = path.with_suffix(f".{threading.get_ident()}")
    fresh.write_text(text, encoding="utf-8")
    os.replace(fresh, path)  # whole or not at all: another thread may be reading the same kernels
    spec = importlib.util.spec_from_file_location(f"burnish_{name}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
