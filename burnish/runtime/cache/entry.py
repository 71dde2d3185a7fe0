"""One entry of the cache on disk: its key, its meta.json, and reading it as untrusted input."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from burnish.runtime.cache.private_files import NotAFile, Refused, open_below, read_file

META_BYTES = 1 << 20  # far larger than any valid meta.json


@dataclass(frozen=True)
class CacheKey:
    """Everything an entry depends on, as one visible tuple of (factor, value).

    The factor `name` is only a label: it is shown and searched for but not hashed, so that the same kernel under two
    names is one entry."""

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
    """An entry does not match its name and checksum."""


def checksum(kind: str, digest: str, data: bytes) -> str:
    """A checksum of the bytes, kind and key: the valid bytes of another entry do not match."""
    return hashlib.sha256(f"{kind} {digest} {len(data)}\n".encode() + data).hexdigest()


def read_entry(kind: str, digest: str, shard: int) -> Entry:
    """Read the description of an entry of the directory `shard`. Raises Damaged, or OSError if there is none."""
    with _opened(digest, shard) as directory:
        return _described(kind, digest, directory)


def read_key(kind: str, digest: str, shard: int) -> CacheKey:
    """The key of an entry as it was made: its texts are not safe to print. Raises as `read_entry`."""
    with _opened(digest, shard) as directory:
        return CacheKey(described(read_file("meta.json", directory, META_BYTES), kind, digest).factors)


def read_data(kind: str, digest: str, shard: int, at_most: int, *, used: bool = True) -> bytes:
    """The bytes of an entry, read once and verified; optionally recorded as its last use. Raises Damaged, or OSError if
    there is none."""
    with _opened(digest, shard) as directory:
        entry = _described(kind, digest, directory)
        data = read_file("data", directory, min(entry.size, at_most))
        if len(data) != entry.size or checksum(kind, digest, data) != entry.sha256:
            raise Damaged("its bytes do not match their checksum")
        if used:
            with contextlib.suppress(OSError):  # a cache on a read-only disk can be read all the same
                os.utime("meta.json", dir_fd=directory)  # its mtime is the last use: no rewriting of JSON on every hit
        return data


@contextlib.contextmanager
def _opened(digest: str, shard: int) -> Iterator[int]:
    try:
        directory = open_below(shard, digest, "its directory")
    except Refused as error:
        raise Damaged(error.reason) from None
    except OSError as error:
        if error.errno in (errno.ENOTDIR, errno.ELOOP, errno.ENXIO):
            raise Damaged("it is not a directory") from None
        raise
    try:
        yield directory
    except NotAFile as error:
        raise Damaged(str(error)) from None
    finally:
        os.close(directory)


def _described(kind: str, digest: str, directory: int) -> Entry:
    found = described(read_file("meta.json", directory, META_BYTES), kind, digest)
    clean = tuple((printable(factor), printable(value)) for factor, value in found.factors)
    used = os.stat("meta.json", dir_fd=directory, follow_symlinks=False).st_mtime
    return Entry(kind, digest, clean, found.size, found.sha256, found.created, used)


@dataclass(frozen=True)
class Description:
    """What meta.json says of an entry. The texts are not safe to print."""

    factors: tuple[tuple[str, str], ...]
    size: int
    sha256: str
    created: float


def description_of(kind: str, key: CacheKey, data: bytes) -> bytes:
    """An entry's meta.json, as `described` reads it."""
    meta = {
        "kind": kind,
        "factors": key.factors,
        "sha256": checksum(kind, key.digest, data),
        "size": len(data),
        "created": time.time(),
    }
    return json.dumps(meta).encode()


def described(raw: bytes, kind: str, digest: str) -> Description:
    """Read meta.json as untrusted input: every type is checked, and the factors must hash to the entry's name. Raises
    Damaged."""
    try:
        meta = json.loads(raw)
        size, created, sha256 = meta["size"], meta["created"], meta["sha256"]
        factors = tuple((factor, value) for factor, value in meta["factors"])
        fits = meta["kind"] == kind and CacheKey(factors).digest == digest
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise Damaged(f"its meta.json cannot be read ({type(error).__name__})") from None
    if (
        not fits
        or type(size) is not int
        or not 0 <= size < 1 << 50
        or type(created) not in (int, float)
        or not 0 <= created < 1e12  # NaN too fails this
        or type(sha256) is not str
        or not all(type(text) is str for factor in factors for text in factor)
    ):
        raise Damaged("its meta.json does not describe it")
    return Description(factors, size, sha256, float(created))


def remove_entry(digest: str, shard: int, temporary: int) -> bool:
    """Remove an entry: one rename into the directory `temporary`, then deletion, so that a killed process leaves no
    partial entry. True when it is gone."""
    with contextlib.suppress(OSError):
        os.unlink(digest, dir_fd=shard)  # a file, or a link: never follow one to delete
        return True
    name = f"removed-{os.urandom(8).hex()}"
    try:
        os.rename(digest, name, src_dir_fd=shard, dst_dir_fd=temporary)
    except OSError as error:
        return error.errno == errno.ENOENT
    with contextlib.suppress(OSError):
        for file in ("meta.json", "data"):
            os.unlink(f"{name}/{file}", dir_fd=temporary)
        os.rmdir(name, dir_fd=temporary)
        return True
    shutil.rmtree(name, ignore_errors=True, dir_fd=temporary)
    return True


def use_and_size(digest: str, shard: int) -> tuple[float, int]:
    """When an entry was last used, and its bytes; remains of an entry count as long unused."""
    try:
        meta, data = (
            os.stat(f"{digest}/{name}", dir_fd=shard, follow_symlinks=False) for name in ("meta.json", "data")
        )
    except OSError:
        return 0.0, 0
    return meta.st_mtime, meta.st_size + data.st_size


def printable(text: str) -> str:
    """No escape sequence reaches a terminal from a file in the cache."""
    return text if text.isprintable() else ascii(text)[1:-1]
