"""Files only this process needs: one directory, made when first asked for and removed when the process ends."""

from __future__ import annotations

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


def own_directory() -> Path:
    """This process's: a forked child gets another, and leaves its parent's alone."""
    return _directory_of(os.getpid())


@functools.cache
def _directory_of(pid: int) -> Path:
    path = Path(tempfile.mkdtemp(prefix="burnish-"))
    # Unlike atexit, this also runs where multiprocessing ends a child it has forked; Finalize minds the process itself.
    Finalize(None, shutil.rmtree, (path,), {"ignore_errors": True}, exitpriority=0)
    return path


def load_python(text: str) -> ModuleType:
    """Python text as a module with a file of its own, for Triton reads a function's source from one.

    The file is this process's and nobody else's: what another could have written is never run."""
    name = f"kernels_{hashlib.sha256(text.encode()).hexdigest()[:24]}"
    path = own_directory() / f"{name}.py"
    fresh = path.with_suffix(f".{threading.get_ident()}")
    fresh.write_text(text)
    os.replace(fresh, path)  # whole or not at all: another thread may be reading the same kernels
    spec = importlib.util.spec_from_file_location(f"burnish_{name}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
