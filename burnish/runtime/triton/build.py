"""Triton kernels in, cubins out: from this process's memory, from the cache, or built by the worker processes.

A kernel's key is its source without its name, the constants, the target and Triton's version, independent of the model.
So the same kernel in another model or process is built once. Without workers, threads of this process build, which
mostly wait for one another.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib.metadata
import importlib.util
import json
import os
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from burnish.errors import CompileError
from burnish.observe.log import CompileLog
from burnish.options import Options, triton_variables
from burnish.runtime.build.scratch import own_directory
from burnish.runtime.cache.store import Cache, CacheKey, open_cache
from burnish.runtime.deadline import Cancelled, current_deadline
from burnish.runtime.triton.compile import BuiltKernel, KernelSource, compile_kernel
from burnish.runtime.triton.workers import NoWorkers, WorkerPool, workers

_KIND = "cubin"
_THREADS = 8  # that build where there are no workers: LLVM and the assembler let others run
_SAMPLES, _SAMPLE_BYTES = 256, 4096  # of a file that is too large to be read whole
_LOOK_SECONDS = 0.05  # interval at which a waiting thread checks its deadline


@dataclass(frozen=True)
class _Wanted:
    future: Future[BuiltKernel]
    is_ours: bool  # to fill


@dataclass(frozen=True)
class _Job:
    key: CacheKey
    source: KernelSource
    future: Future[BuiltKernel]


class KernelBuilder:
    """`pool` gives the workers, when they are wanted; `here` builds in this process."""

    def __init__(
        self,
        cache: Cache,
        pool: Callable[[], WorkerPool] = workers,
        here: Callable[[KernelSource, Path], BuiltKernel] = compile_kernel,
    ) -> None:
        self.cache = cache
        self._pool = pool
        self._here = here
        self._building: dict[str, Future[BuiltKernel]] = {}  # by digest: what this process has, or is about to have
        self._lock = threading.Lock()

    def build(self, sources: Sequence[KernelSource], log: CompileLog) -> list[BuiltKernel]:
        return self.begin(sources, log)()

    def begin(self, sources: Sequence[KernelSource], log: CompileLog) -> Callable[[], list[BuiltKernel]]:
        """Returns at once a function that waits for the kernels. Calling it is optional: they are stored in the cache
        anyway."""
        keyed = [(kernel_key(source), source) for source in sources]
        distinct = {key.digest: (key, source) for key, source in reversed(keyed)}  # of equal ones, the first stays
        wanted = {digest: self._future(key) for digest, (key, _) in distinct.items()}
        missing = [
            _Job(key, source, wanted[digest].future)
            for digest, (key, source) in distinct.items()
            if wanted[digest].is_ours and not self._take_stored(key, wanted[digest].future)
        ]
        self._tell(len(wanted), missing, log)
        stop = self._start(missing, log) if missing else lambda: None

        def finish() -> list[BuiltKernel]:
            try:
                return [self._result(wanted[key.digest], source, log) for key, source in keyed]
            except BaseException:
                stop()
                raise

        return finish

    def _future(self, key: CacheKey) -> _Wanted:
        """A kernel that could not be built is tried again when it is next wanted."""
        with self._lock:
            known = self._building.get(key.digest)
            if known is not None and not known.cancelled() and not (known.done() and known.exception()):
                return _Wanted(known, is_ours=False)
            made: Future[BuiltKernel] = Future()
            self._building[key.digest] = made
            return _Wanted(made, is_ours=True)

    def _result(self, wanted: _Wanted, source: KernelSource, log: CompileLog) -> BuiltKernel:
        deadline = current_deadline()
        while True:
            try:
                return wanted.future.result(_LOOK_SECONDS)
            except CancelledError:  # with another thread's compile, whose it was
                deadline.check()
                return self.build([source], log)[0]
            except TimeoutError:
                deadline.check()

    def _take_stored(self, key: CacheKey, into: Future[BuiltKernel]) -> bool:
        data = self.cache.get(_KIND, key)
        if data is None:
            return False
        try:
            into.set_result(BuiltKernel.from_bytes(data))
        except (ValueError, RecursionError):
            self.cache.discard(_KIND, key)
            return False
        return True

    def _tell(self, distinct: int, missing: Sequence[_Job], log: CompileLog) -> None:
        for _ in range(distinct - len(missing)):
            log.cache(True)
        for n, job in enumerate(missing):  # one reason for all: looking for it reads the cache
            reason = "" if n else self.cache.miss_reason(_KIND, job.key)
            log.cache(False, f"{len(missing)} of {distinct} Triton kernels are new: {reason}" if reason else "")

    def _start(self, missing: Sequence[_Job], log: CompileLog) -> Callable[[], None]:
        """Start building them. The returned function cancels those that have not started."""
        pool, deadline = self._pool(), current_deadline()

        def one(job: _Job) -> None:
            begin = time.perf_counter()
            try:
                deadline.check()
                built = self._build_one(job.source, pool, log)
                self.cache.put(_KIND, job.key, built.to_bytes())
                outcome: BuiltKernel | BaseException | None = built
            except Cancelled:
                outcome = None
            except BaseException as error:
                outcome = error
            _settle(job.future, outcome)
            log.beside(f"triton {job.source.function}", begin, time.perf_counter())

        helpers = ThreadPoolExecutor(pool.count if pool.alive() else _THREADS, "burnish-kernels")
        # The largest first: what takes longest should not begin last.
        for job in sorted(missing, key=lambda job: -len(job.source.text)):
            helpers.submit(one, job)
        helpers.shutdown(wait=False)

        def stop() -> None:
            helpers.shutdown(wait=False, cancel_futures=True)
            for job in missing:  # those that have begun fill the cache all the same
                job.future.cancel()

        return stop

    def _build_one(self, source: KernelSource, pool: WorkerPool, log: CompileLog) -> BuiltKernel:
        try:
            return pool.build(source)
        except NoWorkers as why:
            log.noticed(f"Triton kernel built in a thread: {why}")
        try:
            return self._here(source, own_directory())
        except Exception as error:
            raise CompileError("build", f"{source.function}: {type(error).__name__}: {error}") from error


def _settle(future: Future[BuiltKernel], outcome: BuiltKernel | BaseException | None) -> None:
    """Notify all waiters of the kernel; None: it is no longer being built."""
    if outcome is None or not future.set_running_or_notify_cancel():
        future.cancel()
    elif isinstance(outcome, BuiltKernel):
        future.set_result(outcome)
    else:
        future.set_exception(outcome)


# -- what decides a kernel ----------------------------------------------------------------------------------------


def kernel_key(source: KernelSource) -> CacheKey:
    rest = source.to_dict() | {"text": "", "function": ""}
    text = source.text.replace(source.function, "@")  # the name is made of the text, or of nothing that matters
    return CacheKey(
        (
            ("name", f"kernel {source.function}"),
            ("text", hashlib.sha256(text.encode()).hexdigest()),
            ("launch", json.dumps(rest, sort_keys=True)),
            ("library", _library_hash()),
            ("triton", triton_identity()),
            ("settings", json.dumps(triton_variables())),
        )
    )


@functools.cache
def _library_hash() -> str:
    """Of the functions that kernels call, and of what compiles them."""
    files = [Path(__file__).parent / f"{name}.py" for name in ("device_functions", "compile")]
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()


@functools.cache
def triton_identity() -> str:
    """Its version and its library's file, found without importing it."""
    spec = importlib.util.find_spec("triton")
    if spec is None or not spec.submodule_search_locations:
        return "none"
    parts: list[str] = []
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):  # it may come under another name
        parts.append(importlib.metadata.version("triton"))
    for folder in spec.submodule_search_locations:
        for file in sorted(filter(Path.is_file, Path(folder, "_C").glob("libtriton*"))):
            parts.append(f"{file.name} {file.stat().st_size} {_sampled(file)}")
    return ", ".join(parts)


def _sampled(file: Path) -> str:
    """A checksum of parts all over a file of hundreds of MiB: one that was built anew differs in many of them. (When it
    was written differs from machine to machine.)"""
    digest, size = hashlib.sha256(), file.stat().st_size
    with file.open("rb") as opened:
        for start in range(0, size, max(1, size // _SAMPLES)):
            opened.seek(start)
            digest.update(opened.read(_SAMPLE_BYTES))
    return digest.hexdigest()[:16]


# -- this process's -----------------------------------------------------------------------------------------------

_builders: dict[Path, KernelBuilder] = {}
_guard = threading.Lock()


def builder_for(options: Options) -> KernelBuilder:
    cache = open_cache(options)
    with _guard:
        known = _builders.get(cache.root)
        if known is None or known.cache is not cache:
            known = _builders[cache.root] = KernelBuilder(cache)
        return known


def _after_fork() -> None:
    """A forked child builds the kernels that its parent was building."""
    global _guard
    _guard = threading.Lock()
    _builders.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
