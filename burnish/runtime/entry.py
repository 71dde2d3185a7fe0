"""One entry of the cache on disk: its key, what its meta.json says, and reading it as if a stranger had written it."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import shutil
import stat
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

_META_BYTES = 1 << 20  # no honest meta.json comes near this


@dataclass(frozen=True)
class CacheKey:
    """Everything an entry depends on, as one visible tuple of (factor, value).

    The factor called `name` is a label for people: it is shown and searched for but not hashed, so that the same
    kernel under two names is one entry."""

    factors: tuple[tuple[str, str], ...]

    @cached_property
    def digest(self) -> str:
        hashed = [factor for factor in self.factors if factor[0] != "name"]
        return hashlib.sha256(json.dumps(hashed).encode()).hexdigest()

    @property
    def name(self) -> str:
        return dict(self.factors).get("name", "")


@dataclass(frozen=True)
class Entry:
    """One stored entry, as its meta.json describes it; the text is safe to print."""

    kind: str
    digest: str
    factors: tuple[tuple[str, str], ...]
    size: int
    sha256: str
    created: float
    last_used: float

    @property
    def name(self) -> str:
        return dict(self.factors).get("name", "")


class Damaged(Exception):
    """An entry is not what its name and checksum say."""


def read_entry(kind: str, directory: Path) -> Entry:
    """Read meta.json as a stranger's: every type is checked, and the factors must hash to the directory's name."""
    path = directory / "meta.json"
    raw = read_file(path, _META_BYTES)
    try:
        meta = json.loads(raw)
        size, created, sha256 = meta["size"], meta["created"], meta["sha256"]
        factors = tuple((factor, value) for factor, value in meta["factors"])
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise Damaged(f"its meta.json cannot be read ({type(error).__name__})") from None
    if (
        type(size) is not int
        or not 0 <= size < 1 << 50
        or type(created) not in (int, float)
        or not 0 <= created < 1e12  # NaN too fails this
        or type(sha256) is not str
        or not all(type(text) is str for factor in factors for text in factor)
        or CacheKey(factors).digest != directory.name
    ):
        raise Damaged("its meta.json does not describe it")
    clean = tuple((printable(factor), printable(value)) for factor, value in factors)
    return Entry(kind, directory.name, clean, size, sha256, float(created), path.stat().st_mtime)


def read_file(path: Path, at_most: int) -> bytes:
    with open(path, "rb", opener=_open_own_file) as file:
        if os.fstat(file.fileno()).st_size > at_most:  # asked first: read(n) would allocate all n that meta.json claims
            raise Damaged(f"its {path.name} is longer than it may be")
        return file.read()


def _open_own_file(path: str, flags: int) -> int:
    """Open a regular file of this user's: no link to elsewhere, no pipe to wait on, nothing planted by another."""
    try:
        descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO):
            raise Damaged(f"{path} is not a file") from None
        raise
    status = os.fstat(descriptor)
    if stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid():
        return descriptor
    os.close(descriptor)
    raise Damaged(f"{path} is not a file of this user's")


def remove_entry(directory: Path) -> bool:
    """Remove an entry, meta.json first: from then on a reader sees no entry, and a process that has the data file
    mapped keeps its pages. True when it is gone."""
    for path in (directory, directory / "meta.json"):  # itself, should it be a link: never follow one to delete
        with contextlib.suppress(OSError):
            os.unlink(path)
    shutil.rmtree(directory, ignore_errors=True)
    return not directory.exists()


def use_and_size(directory: Path) -> tuple[float, int]:
    """When an entry was last used, and its bytes; remains of an entry count as long unused."""
    try:
        meta, data = os.lstat(directory / "meta.json"), os.lstat(directory / "data")
    except OSError:
        return 0.0, 0
    return meta.st_mtime, meta.st_size + data.st_size


def printable(text: str) -> str:
    """No escape sequence reaches a terminal from a file in the cache."""
    return text if text.isprintable() else ascii(text)[1:-1]
