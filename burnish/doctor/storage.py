"""The cache on disk: where, how large, whose, and whether burnish will use it."""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import stat
import tempfile
from pathlib import Path

from burnish.doctor.line import Line
from burnish.options import Options
from burnish.runtime.cache import Cache

LITTLE_DISK = 1 << 30
NO_DISK = 64 << 20
_RECOMPILES = "every process compiles again what the last one compiled"


def check_cache(options: Options) -> Line:
    root = options.cache_dir
    elsewhere = "export BURNISH_CACHE_DIR=/a/folder/of/your/own"
    if options.disable_cache:
        return Line("cache", "warn", f"switched off: {_RECOMPILES}", "switch it on", "unset BURNISH_NO_CACHE")
    if problem := _cannot_be_used(root):
        why, advice, command = problem if len(problem) == 3 else (problem[0], "use another folder", elsewhere)
        return Line("cache", "fail", f"not used, because {why}; {_RECOMPILES}", advice, command)
    free = _free_bytes(root)
    disk = f"{size(free)} free"
    if free < NO_DISK:
        return Line(
            "cache", "fail", f"{root}: {disk}, too little to build anything", "free some, or move it", elsewhere
        )
    if not root.exists():
        return Line(
            "cache", "ok", f"{root} will be made at the first compile; limit {size(options.cache_limit_bytes)}, {disk}"
        )
    told = Cache(root, options.cache_limit_bytes).stats()
    says = f"{root}: {told.entries} entries, {size(told.bytes)} of {size(told.limit_bytes)}, {disk}"
    if os.statvfs(root).f_flag & getattr(os, "ST_NOEXEC", 0):
        advice = "its filesystem allows no code to run (noexec): use another one"
        return Line("cache", "warn", f"{says}; {_RECOMPILES}", advice, elsewhere)
    if free < LITTLE_DISK:
        return Line(
            "cache", "warn", says, "little disk is left: free some, or make the limit smaller", "burnish cache clear"
        )
    if told.bytes > told.limit_bytes:
        return Line("cache", "warn", says, "over its limit: the next compile evicts what was unused for longest")
    return Line("cache", "ok", says)


def _cannot_be_used(root: Path) -> tuple[str, ...]:
    """Nothing, or: why not; and what to do, and the command, where that is more than to use another folder."""
    quoted = shlex.quote(str(root))
    try:
        status = root.stat()
    except FileNotFoundError:
        return _cannot_be_made(root)
    except OSError as error:
        return (f"{root}: {error.strerror}",)
    if not stat.S_ISDIR(status.st_mode):
        return (f"{root} is not a folder", "name a folder", "unset BURNISH_CACHE_DIR")
    if status.st_uid != os.geteuid():
        return (f"{root} belongs to user {status.st_uid}, and you are {os.geteuid()}: they could run code as you",)
    if status.st_mode & stat.S_IWOTH:
        says = f"{root} can be written by every user: they could run code as you"
        return (says, "take that right away", f"chmod o-w {quoted}")
    try:
        with tempfile.NamedTemporaryFile(dir=root, prefix="doctor-"):
            pass
    except OSError as error:
        return (f"{root} cannot be written: {error.strerror}", "give yourself the right", f"chmod u+rwx {quoted}")
    return ()


def _cannot_be_made(root: Path) -> tuple[str, ...]:
    parent = next(path for path in root.parents if path.exists())
    if not parent.is_dir():
        return (f"{parent}, in which it should be, is not a folder",)
    if not os.access(parent, os.W_OK | os.X_OK):
        return (f"{root} does not exist and cannot be made: {parent} cannot be written",)
    return ()


def _free_bytes(root: Path) -> int:
    place = next(path for path in (root, *root.parents) if path.exists())
    with contextlib.suppress(OSError):
        return shutil.disk_usage(place).free
    return NO_DISK  # not known, and no reason to fail


def size(count: float) -> str:
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} GiB"
