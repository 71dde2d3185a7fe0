"""A second level behind the cache on disk: a store that many machines share, at any URL that fsspec knows.

    <url>/<kind>/<first 2 hex digits>/<digest>       one parcel (`parcel.py`)

An entry is machine code. So one is used only if a trusted key has signed it, and nothing is written without a key to
sign with. A call waits for the store for a few seconds at most; after a failure the store is left alone for a while.
Writes go out in a thread of their own. No failure here fails a compile.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import re
import threading
import time
import weakref
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from burnish.errors import CacheUrl
from burnish.runtime.cache.deferred_writes import later
from burnish.runtime.cache.entry import CacheKey, Damaged, Entry, printable
from burnish.runtime.cache.parcel import HEAD_BYTES, data_in, description_in, parcel_of
from burnish.runtime.process import at_exit, has_started
from burnish.runtime.signatures import Signer, Verifier

_logger = logging.getLogger("burnish.cache")

LOCAL_KINDS = frozenset(("compiler",))  # of no use to another machine: where a program is, and what it answered
READ_SECONDS = 5.0  # that a compile waits for one entry
EXIT_SECONDS = 10.0  # that a process's end waits for entries on their way
_REST_SECONDS = 60.0  # after a failure
_MOST_BYTES = 1 << 30  # of one entry
_MOST_WAITING = 256  # entries on their way
_PLACE = re.compile(r"([a-z][a-z0-9_]*)/[0-9a-f]{2}/([0-9a-f]{64})")


@dataclass(frozen=True)
class SharedPlace:
    """Where the store is, and the keys: files of an ed25519 private key that signs what this process writes, and of a
    public key whose entries are trusted. What was signed with one's own key is trusted, too."""

    url: str
    sign: Path | None
    verify_key: Path | None


class SharedStore:
    def __init__(self, files: Any, root: str, shown: str, signer: Signer | None, trusted: Sequence[Verifier]) -> None:
        self.shown = shown
        self._files = files
        self._root = root.rstrip("/")
        self._signer = signer
        self._trusted = tuple(trusted)
        self._counts: Counter[str] = Counter()
        self._complaints: set[str] = set()
        self._rests_until = 0.0
        self.problem = ""  # the last one
        self._thread: threading.Thread | None = None
        self.begin()
        _stores.add(self)
        if signer is not None:
            at_exit(self._end)

    # -- reading ------------------------------------------------------------------------------------------------

    def get(self, kind: str, key: CacheKey) -> bytes | None:
        """The bytes of an entry that is trusted; None if there is none, or none in time."""
        if kind in LOCAL_KINDS or time.monotonic() < self._rests_until:
            return None
        found = self._in_time(lambda: self._read(kind, key.digest))
        self._count("hits" if found is not None else "misses")
        return found[1] if found is not None else None

    def _read(self, kind: str, digest: str) -> tuple[CacheKey, bytes] | None:
        path = self._path(kind, digest)
        try:
            raw = self._files.cat_file(path, end=_MOST_BYTES)
        except FileNotFoundError:
            return None
        try:
            return data_in(raw, kind, digest, self._trusted)
        except Damaged as damage:
            self._complain(f"not used: {kind}/{digest[:12]}: {damage}")
            self._count("refused")
            return None

    def _in_time(self, read: Callable[[], Any]) -> Any:
        """What `read` returns, in a thread that is left behind if it takes long."""
        outcome: list[Any] = []

        def work() -> None:
            try:
                outcome.append((read(), None))
            except Exception as error:
                outcome.append((None, error))

        thread = threading.Thread(target=work, name="burnish-shared-cache-read", daemon=True)
        if not has_started(thread):
            return None
        thread.join(READ_SECONDS)
        if not outcome:
            return self._rest(f"no answer within {READ_SECONDS:.0f} s")
        found, error = outcome[0]
        return found if error is None else self._rest(_described(error))

    def _rest(self, why: str) -> None:
        self._rests_until, self.problem = time.monotonic() + _REST_SECONDS, why
        self._complain(f"not asked for {_REST_SECONDS:.0f} s: {why}")

    # -- writing ------------------------------------------------------------------------------------------------

    def put(self, kind: str, key: CacheKey, data: bytes) -> None:
        """Send it, soon. Of two writers of one key the last wins: both made their bytes from the same factors."""
        if self._signer is None or kind in LOCAL_KINDS:
            return
        with self._lock:
            if len(self._waiting) >= _MOST_WAITING:
                self._counts["not sent"] += 1
                return
            self._waiting.append((kind, key, data))
            self._start_thread()
            self._lock.notify_all()

    def send(self, kind: str, key: CacheKey, data: bytes) -> None:
        """Write one entry, and wait for it. Raises what the store raises."""
        assert self._signer is not None, "no key to sign with"
        path = self._path(kind, key.digest)
        self._files.makedirs(path.rpartition("/")[0], exist_ok=True)
        self._write(path, parcel_of(kind, key, data, self._signer))
        self._count("sent")

    def _write(self, path: str, parcel: bytes) -> None:
        """Whole or not at all: so are objects of a remote store, but not files that several write at the same time."""
        from fsspec.implementations.local import LocalFileSystem

        if not isinstance(self._files, LocalFileSystem):
            self._files.pipe_file(path, parcel)
            return
        part = f"{path}.{os.getpid()}-{os.urandom(6).hex()}.part"
        try:
            self._files.pipe_file(part, parcel)
            os.replace(part, path)
        finally:
            with contextlib.suppress(OSError):
                os.unlink(part)

    def _start_thread(self) -> None:
        """Where none can start, as at the end of a process, what waits is sent then."""
        if self._thread is None:
            thread = threading.Thread(target=self._send_always, name="burnish-shared-cache", daemon=True)
            if has_started(thread):
                self._thread = thread

    def _send_always(self) -> None:
        while True:
            with self._lock:
                self._lock.wait_for(lambda: self._waiting)
            self._send_next()

    def _send_next(self) -> None:
        with self._lock:
            if not self._waiting:
                return
            kind, key, data = self._waiting.popleft()
            self._is_sending = True
        try:
            self.send(kind, key, data)
        except Exception as error:
            self._complain(f"cannot be written: {_described(error)}")
            self._count("not sent")
        finally:
            with self._lock:
                self._is_sending = False
                self._lock.notify_all()

    def settle(self, timeout: float | None = None) -> bool:
        """Wait until everything is sent."""
        with self._lock:
            return self._lock.wait_for(lambda: not self._waiting and not self._is_sending, timeout)

    def _end(self) -> None:
        """Some entries are written only now."""
        end = time.monotonic() + EXIT_SECONDS
        later.finish(EXIT_SECONDS)
        while self._thread is None and self._waiting and time.monotonic() < end:
            self._send_next()
        self.settle(max(end - time.monotonic(), 0.0))

    def begin(self) -> None:
        """Also in a forked child, whose parent sends what waits."""
        self._lock = threading.Condition()
        self._thread = None
        self._waiting: deque[tuple[str, CacheKey, bytes]] = deque()
        self._is_sending = False

    # -- everything that is there -----------------------------------------------------------------------------------

    def names(self) -> Iterator[tuple[str, str]]:
        """Kind and digest of every entry. Raises what the store raises."""
        try:
            found = self._files.find(self._root)
        except FileNotFoundError:
            return
        for path in found:
            place = _PLACE.fullmatch(path[len(self._root) :].lstrip("/"))
            if place is not None:
                yield place[1], place[2]

    def read(self, kind: str, digest: str) -> tuple[CacheKey, bytes] | None:
        """An entry that is trusted. Raises what the store raises."""
        return self._read(kind, digest)

    def entries(self, kind: str, at_most: int) -> Iterator[Entry]:
        """What entries of a kind say of themselves, trusted or not: to explain why none fits."""
        named = [each for each in self.names() if each[0] == kind][:at_most]
        for _, digest in named:
            with contextlib.suppress(Damaged, FileNotFoundError):
                raw = self._files.cat_file(self._path(kind, digest), end=HEAD_BYTES)
                found = description_in(raw, kind, digest)
                clean = tuple((printable(factor), printable(value)) for factor, value in found.factors)
                yield Entry(kind, digest, clean, found.size, found.sha256, found.created, found.created)

    @property
    def counts(self) -> dict[str, int]:
        """Of this process: hits, misses, refused, sent, not sent."""
        with self._lock:
            return dict(self._counts)

    def _path(self, kind: str, digest: str) -> str:
        return f"{self._root}/{kind}/{digest[:2]}/{digest}"

    def _count(self, what: str) -> None:
        with self._lock:
            self._counts[what] += 1

    def _complain(self, message: str) -> None:
        with self._lock:
            if message in self._complaints:
                return
            self._complaints.add(message)
        _logger.warning("burnish cache %s: %s", self.shown, message)


_stores: weakref.WeakSet[SharedStore] = weakref.WeakSet()


def _after_fork() -> None:
    for store in _stores:
        store.begin()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


@functools.cache
def open_shared(place: SharedPlace) -> SharedStore:
    """One object per place in this process. Raises CacheUrl, BadKey or MissingExtra."""
    signer = Signer(place.sign) if place.sign is not None else None
    trusted = [signer.verifier()] if signer is not None else []
    if place.verify_key is not None:
        trusted.append(Verifier.of(place.verify_key))
    if not trusted:
        raise CacheUrl(_shown(place.url), "what is in it is machine code, and no key says whose is trusted")
    try:
        import fsspec

        files, root = fsspec.core.url_to_fs(place.url)
    except (ImportError, ValueError, TypeError, OSError) as error:
        raise CacheUrl(_shown(place.url), _described(error)) from None
    return SharedStore(files, str(root), _shown(place.url), signer, trusted)


def _shown(url: str) -> str:
    """Without a password in it."""
    return re.sub(r"//[^/@]*@", "//…@", url)


def _described(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0][:200]
