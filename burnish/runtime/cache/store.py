"""A content-addressed store on disk for the compiler's output; any number of processes may share it.

    <root>/<kind>/<first 2 hex digits>/<digest>/data         the bytes
    <root>/<kind>/<first 2 hex digits>/<digest>/meta.json    the key's factors, the bytes' checksum and size
    <root>/tmp/                                              directories being written, each locked by its writer
    <root>/written, <root>/evicting                          the bytes written since the last eviction, and a lock

Nothing in it is trusted: a directory that another user could write is not used (`private_files.py`), an entry that does
not match its name and checksum is removed and counts as a miss, and nothing is unpickled. No failure here fails a
compile: an unusable cache logs the reason once, and misses.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import functools
import logging
import os
import re
import shutil
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import NamedTuple

from burnish.options import Options
from burnish.runtime.cache.entry import (
    META_BYTES,
    CacheKey,
    Damaged,
    Entry,
    description_of,
    printable,
    read_data,
    read_entry,
    read_key,
    remove_entry,
    use_and_size,
)
from burnish.runtime.cache.ledger import Ledger
from burnish.runtime.cache.private_files import Refused, names_in, open_below, open_own, open_private, write_file
from burnish.runtime.cache.shared import SharedPlace, SharedStore, open_shared

__all__ = ["Cache", "CacheKey", "CacheStats", "Difference", "Entry", "open_cache"]

_logger = logging.getLogger("burnish.cache")

_KIND = re.compile(r"(?!tmp$)[a-z][a-z0-9_]*")
_SHARD = re.compile(r"[0-9a-f]{2}")
_DIGEST = re.compile(r"[0-9a-f]{64}")
_TEMPORARY = "tmp"
_MOST_EXPLAINED = 256  # entries of a shared store that are looked at for one explanation
_ABANDONED_SECONDS = 3600.0  # where there are no locks, a directory in tmp/ this old belongs to a process that died


class Difference(NamedTuple):
    """One factor of a key, as stored in the nearest entry and as it is now; None where that side has none."""

    factor: str
    stored: str | None
    current: str | None


@dataclass(frozen=True)
class CacheStats:
    """The cache's content on disk, and this process's hits, misses and evictions."""

    root: Path
    entries: int
    bytes: int
    limit_bytes: int
    hits: int
    misses: int
    damaged: int
    evicted: int
    unusable: str | None


class Cache:
    """`off`, where given, is the reason the cache is not to be used at all. `shared` is a second level: what is not on
    this disk is looked for there, and what is stored goes there, too."""

    def __init__(self, root: Path, limit_bytes: int, off: str = "", shared: SharedStore | None = None) -> None:
        self.root = root
        self.limit_bytes = limit_bytes
        self.shared = None if off else shared
        self.explains_from_shared = False  # it takes a request for each entry: for those who ask why
        self._off = off
        self._discarded: set[str] = set()  # digests
        self._real = str(root)  # where it really is, once that is known
        self._counts: Counter[str] = Counter()
        self._complaints: set[str] = set()
        self._lock = threading.Lock()
        self._ledger = Ledger(lambda: self._opened(make=True))

    # -- reading ---------------------------------------------------------------------------------------------

    def get(self, kind: str, key: CacheKey) -> bytes | None:
        """The stored bytes, checked against their checksum; None is a miss. They are read once: code is loaded from
        these bytes, not from the file."""
        data = self._verified(kind, key)
        if data is None and self.shared is not None and key.digest not in self._discarded:
            data = self.shared.get(kind, key)
            if data is not None:
                self.keep(kind, key, data)
        self._count("misses" if data is None else "hits")
        return data

    def _verified(self, kind: str, key: CacheKey) -> bytes | None:
        if self.unusable:
            return None
        path = self._path(kind, key.digest)
        try:
            with self._opened(kind, key.digest[:2]) as shard:
                try:
                    return read_data(kind, key.digest, shard, self.limit_bytes)
                except Damaged as damage:
                    self._complain(f"removed damaged entry {path}: {damage}")
                    self._count("damaged")
                    self._remove(key.digest, shard)
        except Refused as refusal:
            self._complain(f"not used: {refusal}")
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ENOTDIR):
                self._complain(f"cannot read {path}: {error.strerror}")
        return None

    @functools.cached_property
    def unusable(self) -> str | None:
        """The reason why this cache cannot be used, or None. Computed and logged once."""
        reason = self._off or self._fault()
        if reason and not self._off:
            self._complain(f"not used: {reason}")
        return reason or None

    def _fault(self) -> str:
        """Checks every directory on the path, and removes files that killed processes left behind."""
        try:
            descriptor, self._real = open_private(self.root)
        except Refused as refusal:
            return str(refusal)
        except OSError as error:
            return f"{self.root}: {error.strerror or error}"
        os.close(descriptor)
        self._remove_abandoned()
        return ""

    @contextlib.contextmanager
    def _opened(self, *names: str, make: bool = False) -> Iterator[int]:
        """A directory of the cache: each directory on its path is checked after every open."""
        try:
            here = open_own(self._real)
        except FileNotFoundError:  # removed since; its own user's business
            if not make:
                raise
            here, self._real = open_private(self.root)
        try:
            shown = self._real
            for name in names:
                shown = os.path.join(shown, name)
                below = open_below(here, name, shown, make=make)
                os.close(here)
                here = below
            yield here
        finally:
            os.close(here)

    # -- writing ---------------------------------------------------------------------------------------------

    def put(self, kind: str, key: CacheKey, data: bytes) -> Path | None:
        """Store the bytes and return their file; None, and one line in the log, when they cannot be stored.

        Of two writers of one key the first wins: both made their bytes from the same factors."""
        if self.shared is not None:
            self.shared.put(kind, key, data)
        return self.keep(kind, key, data)

    def keep(self, kind: str, key: CacheKey, data: bytes) -> Path | None:
        """`put`, on this disk only: for what comes from elsewhere."""
        path = self._path(kind, key.digest)
        if self.unusable:
            return None
        described = description_of(kind, key, data)
        size = len(data) + len(described)
        if size > self.limit_bytes or len(described) > META_BYTES:
            self._complain(f"not stored: {size} bytes are more than the cache's limit of {self.limit_bytes}")
            return None
        if not self._has_room(size):
            self._complain("not stored: another process that clears it up takes too long")
            return None
        try:
            self._write(kind, key, {"data": data, "meta.json": described})
        except Refused as refusal:
            self._complain(f"not used: {refusal}")
            return None
        except OSError as error:
            self._complain(f"cannot store in {self.root}: {error.strerror or error}")
            return None
        return path / "data"

    def _write(self, kind: str, key: CacheKey, files: dict[str, bytes]) -> None:
        with self._temporary() as (parent, name, directory):
            for file, content in files.items():
                write_file(file, directory, content)
            with self._opened(kind, key.digest[:2], make=True) as shard:
                # A rename within one filesystem is atomic: a reader sees the whole entry or none of it, whatever
                # becomes of this process. No fsync: the checksum detects an entry torn by a power failure.
                for last_try in (False, False, True):
                    try:
                        os.rename(name, key.digest, src_dir_fd=parent, dst_dir_fd=shard)
                        return
                    except OSError as error:
                        if last_try or error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
                            raise
                    if self._verified(kind, key) is not None:
                        return
                    remove_entry(key.digest, shard, parent)  # the remains of one, which nothing else would clear away

    @contextlib.contextmanager
    def workspace(self) -> Iterator[Path]:
        """A private directory on the cache's filesystem, out of eviction's sight, removed on leaving."""
        if self.unusable:
            raise OSError(errno.EACCES, self.unusable)
        try:
            with self._temporary() as (_, name, _):
                yield Path(self._real) / _TEMPORARY / name
        except Refused as refusal:
            raise OSError(errno.EACCES, str(refusal)) from None

    @contextlib.contextmanager
    def _temporary(self) -> Iterator[tuple[int, str, int]]:
        """A new directory: its parent, its name and itself. It is locked for as long as this process lives and uses
        it: what is not locked belongs to one that was killed."""
        with self._opened(_TEMPORARY, make=True) as parent:
            name, directory = _made_and_locked(parent, os.path.join(self._real, _TEMPORARY))
            try:
                yield parent, name, directory
            finally:
                shutil.rmtree(name, ignore_errors=True, dir_fd=parent)
                os.close(directory)

    def _remove_abandoned(self) -> None:
        with contextlib.suppress(OSError, Refused), self._opened(_TEMPORARY) as parent:
            for name in names_in(parent):
                with contextlib.suppress(OSError, Refused):
                    _remove_if_abandoned(name, parent)

    def discard(self, kind: str, key: CacheKey) -> None:
        """Drop an entry that is unusable although its bytes are intact. A shared one is replaced when it is stored."""
        if self.shared is not None:
            self._discarded.add(key.digest)
        if not self.unusable:
            with contextlib.suppress(OSError, Refused), self._opened(kind, key.digest[:2]) as shard:
                self._remove(key.digest, shard)

    def _remove(self, digest: str, shard: int) -> bool:
        with contextlib.suppress(OSError, Refused), self._opened(_TEMPORARY, make=True) as temporary:
            return remove_entry(digest, shard, temporary)
        return False

    # -- the limit -------------------------------------------------------------------------------------------

    def _has_room(self, size: int) -> bool:
        """Make room for bytes that are about to be written; False if another process is at it and takes long.

        That means a walk over all entries, so it is done once for every 3/64 of the limit that processes write, and
        leaves 1/16 free: the rest is for what several of them write at that moment."""
        try:
            if self._ledger.note(size) < self._often:
                return True
            with self._ledger.evicting() as alone:
                if not alone:
                    return False
                if self._ledger.note(0) < self._often and self._ledger.note(size) < self._often:
                    return True  # another process has made room meanwhile
                self.trim(room=size)
                self._ledger.reset()
                self._ledger.note(size)
        except (OSError, Refused):  # a full disk: a good time to look
            self.trim(room=size)
        return True

    @property
    def _often(self) -> int:
        return self.limit_bytes * 3 // 64

    def trim(self, room: int = 0) -> int:
        """Evict the least recently used entries until the stored bytes, the `room` for the next write, and the writes
        until the next check fit the limit. Returns the number of evicted entries."""
        sized = [(*use_and_size(digest, shard), kind, digest) for kind, digest, shard in self._stored()]
        total = sum(size for _, size, _, _ in sized)
        evicted = 0
        for _, size, kind, digest in sorted(sized):
            if total + room <= self.limit_bytes * 15 // 16:
                break
            with contextlib.suppress(OSError, Refused), self._opened(kind, digest[:2]) as shard:
                self._remove(digest, shard)
            total -= size
            evicted += 1
        self._count("evicted", evicted)
        self._remove_abandoned()
        return evicted

    # -- telling ---------------------------------------------------------------------------------------------

    def why(self, kind: str, key: CacheKey, at_most: int | None = None) -> list[Difference]:
        """Every factor of `key` against the nearest stored entry: of the same name if there is one, with the most
        factors equal. `at_most` bounds how many entries are looked at."""
        current = {factor: printable(value) for factor, value in key.factors}

        def nearness(entry: Entry) -> tuple[bool, int, float]:
            equal = sum(current.get(factor) == value for factor, value in entry.factors)
            return entry.name == current.get("name", ""), equal, entry.last_used

        known: Iterator[Entry] = islice(self._entries(kind), at_most)
        if self.shared is not None and self.explains_from_shared:
            known = chain(known, self.shared.entries(kind, at_most or _MOST_EXPLAINED))
        nearest = max(known, key=nearness, default=None)
        stored = dict(nearest.factors) if nearest else {}
        return [Difference(factor, stored.get(factor), current.get(factor)) for factor in {**current, **stored}]

    def miss_reason(self, kind: str, key: CacheKey) -> str:
        """`why`, in one line for a log."""
        if self.unusable:
            return f"{key.name}: cache not used: {self.unusable}"
        # A miss costs a compile of a tenth of a second or more; reading a few hundred entries is negligible.
        differences = self.why(kind, key, at_most=256)
        if all(stored is None for _, stored, _ in differences):
            return f"{key.name}: nothing of kind {kind!r} is stored"
        changed = [each for each in differences if each.stored != each.current and each.factor != "name"]
        _, nearest, name = next((each for each in differences if each.factor == "name"), ("name", "", ""))
        if nearest != name:
            return f"{name}: new; the nearest, {nearest}, differs in {', '.join(each.factor for each in changed)}"
        told = "; ".join(f"{factor}: {_brief(stored)} -> {_brief(current)}" for factor, stored, current in changed)
        return f"{name}: {told or 'its entry has just been written or removed by another process'}"

    def entries(self) -> list[Entry]:
        """All readable entries, the most recently used first."""
        return sorted(self._entries(), key=lambda entry: -entry.last_used)

    def of(self, kind: str) -> Iterator[Entry]:
        """The readable entries of a kind, in no order."""
        return self._entries(kind)

    def all(self, kind: str) -> Iterator[bytes]:
        """The bytes of all entries of a kind, the most recently used first. This does not count as a use."""
        for entry in sorted(self._entries(kind), key=lambda entry: -entry.last_used):
            with contextlib.suppress(OSError, Refused, Damaged), self._opened(kind, entry.digest[:2]) as shard:
                yield read_data(kind, entry.digest, shard, self.limit_bytes, used=False)

    def kept(self, kind: str, digest: str) -> tuple[CacheKey, bytes] | None:
        """An entry's key and bytes, by its name; None if it cannot be read."""
        with contextlib.suppress(OSError, Refused, Damaged), self._opened(kind, digest[:2]) as shard:
            return read_key(kind, digest, shard), read_data(kind, digest, shard, self.limit_bytes, used=False)
        return None

    def clear(self) -> tuple[int, int]:
        """Remove every entry; returns how many there were, and their bytes. Never touches anything else."""
        count = freed = 0
        for _, digest, shard in self._stored():
            freed += use_and_size(digest, shard)[1]
            count += self._remove(digest, shard)
        return count, freed

    def stats(self) -> CacheStats:
        sizes = [use_and_size(digest, shard)[1] for _, digest, shard in self._stored()]
        hits, misses, damaged, evicted = (self._counts[what] for what in ("hits", "misses", "damaged", "evicted"))
        return CacheStats(
            self.root, len(sizes), sum(sizes), self.limit_bytes, hits, misses, damaged, evicted, self.unusable
        )

    def _entries(self, kind: str | None = None) -> Iterator[Entry]:
        for found_kind, digest, shard in self._stored(kind):
            with contextlib.suppress(OSError, Damaged):  # evicted meanwhile, or for the next get to remove
                yield read_entry(found_kind, digest, shard)

    def _stored(self, kind: str | None = None) -> Iterator[tuple[str, str, int]]:
        """Kind, digest and the directory of every entry. A stray file, or a user's own directory given as the root by
        mistake, is passed by."""
        if self.unusable:
            return
        for found_kind in [kind] if kind else filter(_KIND.fullmatch, self._names()):
            for name in filter(_SHARD.fullmatch, self._names(found_kind)):
                with contextlib.suppress(OSError, Refused), self._opened(found_kind, name) as shard:
                    for digest in filter(_DIGEST.fullmatch, names_in(shard)):
                        if digest.startswith(name):
                            yield found_kind, digest, shard

    def _names(self, *directory: str) -> Iterable[str]:
        try:
            with self._opened(*directory) as opened:
                return names_in(opened)
        except (OSError, Refused):
            return ()

    def _path(self, kind: str, digest: str) -> Path:
        if not _KIND.fullmatch(kind):
            raise ValueError(f"{kind!r} cannot name a kind of entry")
        return self.root / kind / digest[:2] / digest

    def _count(self, what: str, number: int = 1) -> None:
        with self._lock:
            self._counts[what] += number

    def _complain(self, message: str) -> None:
        with self._lock:
            if message in self._complaints:
                return
            self._complaints.add(message)
        _logger.warning("burnish cache: %s", message)


def open_cache(options: Options) -> Cache:
    """The cache for these options: one object per directory in this process, so that it warns once."""
    off = "switched off by the options" if options.disable_cache else ""
    return _open(options.cache_dir, options.cache_limit_bytes, off, shared_place(options))


def shared_place(options: Options) -> SharedPlace | None:
    return SharedPlace(options.cache, options.cache_sign, options.cache_verify_key) if options.cache else None


@functools.cache
def _open(root: Path, limit_bytes: int, off: str, place: SharedPlace | None) -> Cache:
    return Cache(root, limit_bytes, off, open_shared(place) if place is not None and not off else None)


def _brief(value: str | None) -> str:
    return "none" if value is None else re.sub(r"\b([0-9a-f]{12})[0-9a-f]{20,}\b", r"\1…", value)


def _made_and_locked(parent: int, shown: str) -> tuple[str, int]:
    """A new directory's name, and itself. Another process may take it for abandoned before it is locked: then again."""
    while True:
        name = f"{os.getpid()}-{os.urandom(6).hex()}"
        os.mkdir(name, 0o700, dir_fd=parent)
        try:
            directory = open_below(parent, name, os.path.join(shown, name))
        except FileNotFoundError:
            continue
        if _lock(directory) is False or os.fstat(directory).st_nlink == 0:
            os.close(directory)
            continue
        return name, directory


def _remove_if_abandoned(name: str, parent: int) -> None:
    """It stays locked until it is gone: a process that has just made it, and not locked it yet, finds it taken."""
    directory = open_below(parent, name, name)
    try:
        free = _lock(directory)
        if free is None:
            free = time.time() - os.fstat(directory).st_mtime > _ABANDONED_SECONDS
        if free:
            shutil.rmtree(name, ignore_errors=True, dir_fd=parent)
    finally:
        os.close(directory)


def _lock(directory: int) -> bool | None:
    """Whether it is this process's now; None where its filesystem has no such locks."""
    try:
        fcntl.flock(directory, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True
