"""The cache on disk: where, how large, whose, and whether burnish will use it."""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import tempfile
from pathlib import Path

from burnish.errors import UsageError
from burnish.options import Options
from burnish.runtime.cache.private_files import Refused, open_private
from burnish.runtime.cache.shared import open_shared
from burnish.runtime.cache.store import Cache, CacheKey, shared_place
from burnish.tools.doctor.line import Line

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
    if free < LITTLE_DISK:
        return Line(
            "cache", "warn", says, "little disk is left: free some, or make the limit smaller", "burnish cache clear"
        )
    if told.bytes > told.limit_bytes:
        return Line("cache", "warn", says, "over its limit: the next compile evicts what was unused for longest")
    return Line("cache", "ok", says)


def check_shared_cache(options: Options) -> Line:
    """Asks it for an entry that is not there."""
    name, place = "shared cache", shared_place(options)
    assert place is not None
    try:
        store = open_shared(place)
    except UsageError as error:
        return Line(name, "fail", str(error), "correct it", "unset BURNISH_CACHE")
    store.get("doctor", CacheKey(()))
    if store.problem:
        return Line(name, "warn", f"{store.shown}: {store.problem}; compiles go on without it", "look at its access")
    reads = "writes signed entries and reads its own" if place.sign is not None else "reads what its key's owner signed"
    return Line(name, "ok", f"{store.shown}: {reads}")


def _cannot_be_used(root: Path) -> tuple[str, ...]:
    """Nothing, or: why not; and what to do, and the command, where that is more than to use another folder."""
    try:
        descriptor, real = open_private(root, make=False)
    except Refused as refusal:
        says = f"{refusal.reason}: they could run code as you"
        return (says, "take that right away", refusal.command) if refusal.command else (says,)
    except FileNotFoundError:
        return _cannot_be_made(root)
    except NotADirectoryError as error:
        return (f"{error.filename} is not a folder",)
    except OSError as error:
        return (f"{root}: {error.strerror}",)
    os.close(descriptor)
    try:
        with tempfile.NamedTemporaryFile(dir=real, prefix="doctor-"):
            pass
    except OSError as error:
        command = f"chmod u+rwx {shlex.quote(str(root))}"
        return (f"{root} cannot be written: {error.strerror}", "give yourself the right", command)
    return ()


def _cannot_be_made(root: Path) -> tuple[str, ...]:
    parent = next(path for path in root.parents if path.exists())
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
