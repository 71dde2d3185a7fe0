"""Loads a shared library from bytes in memory, so that the loaded code is the verified code, whatever happens to files.

On Linux the bytes go into a sealed memfd, which cannot be changed any more, not even by this process. Without memfd or
/proc, they go into a file in this process's private directory, which is removed after loading.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import itertools
import os
import re
import struct
import threading
from collections.abc import Callable

from burnish.runtime.build.scratch import own_directory

_SEALS = ("F_SEAL_WRITE", "F_SEAL_GROW", "F_SEAL_SHRINK", "F_SEAL_SEAL")
_NAME_BYTES = 200  # the kernel takes 249
_ELF, _ELF64, _LITTLE, _TO_LOAD = b"\x7fELF", 2, 1, 1

_loads = itertools.count(1)
_handles: set[int] = set()  # of what this process has loaded; nothing is ever unloaded
_guard = threading.Lock()


class CannotLoad(Exception):
    """dlopen's message. Not ctypes' OSError, which a build would take for a disk failure."""


def load_library(data: bytes, name: str, *, exported: bool) -> ctypes.CDLL:
    """`name` is what debuggers and profilers see in the map of memory. Libraries loaded later may call an `exported`
    one."""
    _check_whole(data)
    mode = ctypes.RTLD_GLOBAL if exported else ctypes.RTLD_LOCAL
    shown = re.sub(r"[^A-Za-z0-9_.()-]", "_", f"burnish-{name}")[:_NAME_BYTES]
    problem = ""
    for load in (_from_memory, _from_file):
        try:
            return load(data, shown, mode)
        except (CannotLoad, OSError) as error:
            problem = str(error)
    raise CannotLoad(problem)


def _check_whole(data: bytes) -> None:
    """Raises CannotLoad for a truncated library, as a linker on a full disk may leave it. dlopen maps the sizes in the
    header, and an access past the file's end would kill the process. Unknown formats are left to dlopen."""
    if not data.startswith(_ELF) or len(data) < 64 or data[4] != _ELF64:
        return
    order = "<" if data[5] == _LITTLE else ">"
    table, entry_bytes, count = struct.unpack_from(f"{order}32xQ14xHH", data)
    if table + entry_bytes * count > len(data) or entry_bytes < 56 <= count * 56:
        raise CannotLoad("file too short: its table of segments is cut off")
    for number in range(count):
        kind, offset, size = struct.unpack_from(f"{order}I4xQ16xQ", data, table + number * entry_bytes)
        if kind == _TO_LOAD and offset + size > len(data):
            raise CannotLoad(f"file too short: {len(data)} bytes of {offset + size} and more")


def _from_memory(data: bytes, shown: str, mode: int) -> ctypes.CDLL:
    if not hasattr(os, "memfd_create") or not hasattr(fcntl, "F_ADD_SEALS"):
        raise CannotLoad("no memfd here")
    memory = os.memfd_create(shown, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        _write(memory, data)
        seals = (getattr(fcntl, seal) for seal in _SEALS)
        fcntl.fcntl(memory, fcntl.F_ADD_SEALS, sum(seals))
        # After the close below, the descriptor number may be reused, and dlopen treats a known path as the library
        # loaded from it. So each load spells the path differently.
        return _dlopen(f"/proc/self/fd/{_spelling(next(_loads))}{memory}", mode)
    finally:
        os.close(memory)


def _spelling(number: int) -> str:
    """A path of "." components only, different for each number."""
    return "".join("./" if bit == "1" else "/" for bit in f"{number:b}")


def _from_file(data: bytes, shown: str, mode: int) -> ctypes.CDLL:
    path = str(own_directory() / f"{shown}.{next(_loads)}.so")
    with contextlib.ExitStack() as cleanup:
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o700)
        cleanup.callback(os.unlink, path)
        try:
            _write(file, data)
        finally:
            os.close(file)
        return _dlopen(path, mode)


def _write(descriptor: int, data: bytes) -> None:
    left = memoryview(data)
    while left:
        left = left[os.write(descriptor, left) :]


def _dlopen(path: str, mode: int, load: Callable[..., ctypes.CDLL] | None = None) -> ctypes.CDLL:
    """ctypes binds at once (RTLD_NOW), so a missing symbol raises here instead of killing the process later."""
    try:
        library = (load or ctypes.CDLL)(path, mode=mode)
    except OSError as error:
        raise CannotLoad(str(error)) from None
    with _guard:
        if library._handle in _handles:  # by its name, or a number of the file that came round again
            raise CannotLoad("dlopen took it for a library that is loaded already")
        _handles.add(library._handle)
    return library
