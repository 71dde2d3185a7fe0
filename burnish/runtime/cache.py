"""A content-addressed store on disk for what the compiler has made; any number of processes may share one.

    <root>/<kind>/<first 2 hex digits>/<digest>/data         the bytes
    <root>/<kind>/<first 2 hex digits>/<digest>/meta.json    the key's factors, the bytes' checksum and size
    <root>/tmp/                                              directories being written
    <root>/written                                           one byte for each block written since the last eviction

Nothing in it is trusted: an entry that is not what its name and checksum say is removed and counts as a miss, and
nothing is unpickled. No failure here fails a compile: a cache that cannot be used says why, once, and misses.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import hashlib
import json
import logging
import os
import re
import shutil
import stat
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from burnish.options import Options
from burnish.runtime.entry import CacheKey, Damaged, Entry, printable, read_entry, read_file, remove_entry, use_and_size

__all__ = ["Cache", "CacheKey", "CacheStats", "Difference", "Entry", "open_cache"]

_logger = logging.getLogger("burnish.cache")

_KIND = re.compile(r"(?!tmp$)[a-z][a-z0-9_]*")
_HEX = re.compile(r"[0-9a-f]+")
_BLOCK_BYTES = 4096  # what one byte in `written` stands for
_ABANDONED_SECONDS = 3600.0  # a directory in tmp/ this old belongs to a process that died: writing one takes moments


class Difference(NamedTuple):
    """One factor of a key, as stored in the nearest entry and as it is now; None where that side has none."""

    factor: str
    stored: str | None
    current: str | None


@dataclass(frozen=True)
class CacheStats:
    """What is on disk, and what this process did with it."""

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
    """`off`, where given, is the reason the cache is not to be used at all."""

    def __init__(self, root: Path, limit_bytes: int, off: str = "") -> None:
        self.root = root
        self.limit_bytes = limit_bytes
        self._off = off
        self._counts: Counter[str] = Counter()
        self._complaints: set[str] = set()
        self._lock = threading.Lock()

    # -- reading ---------------------------------------------------------------------------------------------

    def get(self, kind: str, key: CacheKey) -> bytes | None:
        """The stored bytes, checked against their checksum; None is a miss."""
        data = self._verified(kind, key)
        self._count("misses" if data is None else "hits")
        return data

    def path(self, kind: str, key: CacheKey) -> Path | None:
        """The stored file, checked against its checksum: dlopen runs code, so no byte of it may come unchecked."""
        return None if self.get(kind, key) is None else self._directory(kind, key.digest) / "data"

    def _verified(self, kind: str, key: CacheKey) -> bytes | None:
        if self.unusable:
            return None
        directory = self._directory(kind, key.digest)
        try:
            entry = read_entry(kind, directory)
            data = read_file(directory / "data", entry.size)
            if hashlib.sha256(data).hexdigest() != entry.sha256:
                raise Damaged("its bytes do not match their checksum")
        except Damaged as damage:
            self._complain(f"removed damaged entry {directory}: {damage}")
            self._count("damaged")
            remove_entry(directory)
            return None
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ENOTDIR):
                self._complain(f"cannot read {directory}: {error.strerror}")
            return None
        with contextlib.suppress(OSError):  # a cache on a read-only disk can be read all the same
            os.utime(directory / "meta.json")  # its mtime is the last use: no rewriting of JSON on every hit
        return data

    @functools.cached_property
    def unusable(self) -> str | None:
        """Why this cache cannot be used, or None. Asked once: the answer is logged, and holds from then on."""
        reason = self._off or self._fault()
        if reason and not self._off:
            self._complain(f"not used: {reason}")
        return reason or None

    def _fault(self) -> str:
        try:
            self.root.mkdir(parents=True, exist_ok=True, mode=0o700)
            status = self.root.stat()
        except OSError as error:
            return f"{self.root}: {error.strerror or error}"
        if status.st_uid != os.geteuid():  # whoever can write here can run code as this user
            return f"{self.root} belongs to user {status.st_uid}, not to this one ({os.geteuid()})"
        if status.st_mode & stat.S_IWOTH:
            return f"{self.root} can be written by every user; chmod o-w it, or choose another directory"
        return ""

    # -- writing ---------------------------------------------------------------------------------------------

    def put(self, kind: str, key: CacheKey, data: bytes) -> Path | None:
        """Store the bytes and return their file; None, and one line in the log, when they cannot be stored.

        Of two writers of one key the first wins: both made their bytes from the same factors."""
        if self.unusable:
            return None
        if len(data) > self.limit_bytes:
            self._complain(f"not stored: {len(data)} bytes are more than the cache's limit of {self.limit_bytes}")
            return None
        directory = self._directory(kind, key.digest)
        try:
            self._write(kind, key, data, directory)
        except OSError as error:
            self._complain(f"cannot store in {self.root}: {error.strerror or error}")
            return None
        if self._note_written(len(data)):
            self.trim(keep=directory)
        return directory / "data"

    def _write(self, kind: str, key: CacheKey, data: bytes, directory: Path) -> None:
        meta = {
            "factors": key.factors,
            "sha256": hashlib.sha256(data).hexdigest(),
            "size": len(data),
            "created": time.time(),
        }
        with self.workspace() as temporary:
            whole = temporary / "entry"
            whole.mkdir()
            (whole / "data").write_bytes(data)
            (whole / "meta.json").write_text(json.dumps(meta))
            directory.parent.mkdir(parents=True, exist_ok=True)
            # A rename within one filesystem is atomic: a reader sees the whole entry or none of it, whatever
            # becomes of this process. No fsync: what a power cut tears, the checksum finds.
            for last_try in (False, False, True):
                try:
                    os.rename(whole, directory)
                    return
                except OSError as error:
                    if last_try or error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
                        raise
                if self._verified(kind, key) is not None:
                    return
                remove_entry(directory)  # the remains of an entry, which nothing else would clear away

    @contextlib.contextmanager
    def workspace(self) -> Iterator[Path]:
        """A private directory on the cache's filesystem, out of eviction's sight, removed on leaving."""
        if self.unusable:
            raise OSError(errno.EACCES, self.unusable)
        parent = self.root / "tmp"
        parent.mkdir(exist_ok=True)
        path = Path(tempfile.mkdtemp(dir=parent))
        try:
            yield path
        finally:
            shutil.rmtree(path, ignore_errors=True)

    def discard(self, kind: str, key: CacheKey) -> None:
        """Drop an entry that proved of no use though its bytes are as they were stored."""
        if not self.unusable:
            remove_entry(self._directory(kind, key.digest))

    # -- the limit -------------------------------------------------------------------------------------------

    def _note_written(self, size: int) -> bool:
        """Note that `size` bytes were written; True when it is time to look for entries to evict.

        Looking means a walk over all entries, so it is done once for every 1/16 of the limit written. Processes
        share the count through the length of one file, which O_APPEND lets them all extend without a lock."""
        blocks = -(-size // _BLOCK_BYTES)
        try:
            with open(self.root / "written", "ab") as ledger:
                ledger.write(b"." * blocks)
                ledger.flush()
                if os.fstat(ledger.fileno()).st_size * _BLOCK_BYTES < self._slack:
                    return False
                ledger.truncate(0)
        except OSError:
            pass  # a full disk: a good time to look
        return True

    @property
    def _slack(self) -> int:
        return self.limit_bytes // 16

    def trim(self, keep: Path | None = None) -> int:
        """Evict the entries unused for longest until what is stored, and what may be written before the next look,
        fit the limit; returns how many went. `keep` stays: its writer is about to use it."""
        sized = [(*use_and_size(directory), directory) for _, directory in self._directories()]
        total = sum(size for _, size, _ in sized)
        evicted = 0
        for _, size, directory in sorted(sized):
            if total <= self.limit_bytes - self._slack:
                break
            if directory != keep:
                remove_entry(directory)
                total -= size
                evicted += 1
        self._count("evicted", evicted)
        self._remove_abandoned()
        return evicted

    def _remove_abandoned(self) -> None:
        for name in _names(self.root / "tmp"):
            path = self.root / "tmp" / name
            with contextlib.suppress(OSError):
                if time.time() - path.stat().st_mtime > _ABANDONED_SECONDS:
                    shutil.rmtree(path, ignore_errors=True)

    # -- telling ---------------------------------------------------------------------------------------------

    def why(self, kind: str, key: CacheKey, at_most: int | None = None) -> list[Difference]:
        """Every factor of `key` against the nearest stored entry: of the same name if there is one, with the most
        factors equal. `at_most` bounds how many entries are looked at."""
        current = {factor: printable(value) for factor, value in key.factors}

        def nearness(entry: Entry) -> tuple[bool, int, float]:
            equal = sum(current.get(factor) == value for factor, value in entry.factors)
            return entry.name == current.get("name", ""), equal, entry.last_used

        nearest = max(islice(self._entries(kind), at_most), key=nearness, default=None)
        stored = dict(nearest.factors) if nearest else {}
        return [Difference(factor, stored.get(factor), current.get(factor)) for factor in {**current, **stored}]

    def miss_reason(self, kind: str, key: CacheKey) -> str:
        """`why`, in one line for a log."""
        if self.unusable:
            return f"{key.name}: cache not used: {self.unusable}"
        # A miss costs a compile of a tenth of a second or more; reading a few hundred entries is lost in that.
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

    def clear(self) -> tuple[int, int]:
        """Remove every entry; returns how many there were, and their bytes. Never touches anything else."""
        count = freed = 0
        for _, directory in self._directories():
            freed += use_and_size(directory)[1]
            count += remove_entry(directory)
        return count, freed

    def stats(self) -> CacheStats:
        sizes = [use_and_size(directory)[1] for _, directory in self._directories()]
        hits, misses, damaged, evicted = (self._counts[what] for what in ("hits", "misses", "damaged", "evicted"))
        return CacheStats(
            self.root, len(sizes), sum(sizes), self.limit_bytes, hits, misses, damaged, evicted, self.unusable
        )

    def _entries(self, kind: str | None = None) -> Iterator[Entry]:
        for found_kind, directory in self._directories(kind):
            with contextlib.suppress(OSError, Damaged):  # evicted meanwhile, or for the next get to remove
                yield read_entry(found_kind, directory)

    def _directories(self, kind: str | None = None) -> Iterator[tuple[str, Path]]:
        """Where entries are. A stray file, or a user's own directory given as the root by mistake, is passed by."""
        if self.unusable:
            return
        for found_kind in [kind] if kind else filter(_KIND.fullmatch, _names(self.root)):
            for shard in filter(_HEX.fullmatch, _names(self.root / found_kind)):
                for digest in filter(_HEX.fullmatch, _names(self.root / found_kind / shard)):
                    if len(digest) == 64 and digest.startswith(shard) and len(shard) == 2:
                        yield found_kind, self.root / found_kind / shard / digest

    def _directory(self, kind: str, digest: str) -> Path:
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
    """The cache these options ask for: one object per directory in this process, so that it complains once."""
    off = "switched off by the options" if options.disable_cache else ""
    return _open(options.cache_dir, options.cache_limit_bytes, off)


@functools.cache
def _open(root: Path, limit_bytes: int, off: str) -> Cache:
    return Cache(root, limit_bytes, off)


def _brief(value: str | None) -> str:
    return "none" if value is None else re.sub(r"\b([0-9a-f]{12})[0-9a-f]{20,}\b", r"\1…", value)


def _names(directory: Path) -> list[str]:
    try:
        return os.listdir(directory)
    except OSError:
        return []
