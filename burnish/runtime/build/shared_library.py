"""C source in, loaded library out: runs the C compiler once for each distinct source, then never again.

A second process finds the library and the compiler's identity in the cache, and needs no compiler. A library is loaded
from verified bytes (`library_loading.py`), never from a file by its name.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import functools
import hashlib
import re
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

import torch  # loads the OpenMP runtime that everything built here resolves against

from burnish.errors import (
    CompileError,
    CompilerFailed,
    CompilerMissing,
    LibraryUnloadable,
    NativeSourceMissing,
    NoRoomToBuild,
)
from burnish.observe.log import CompileLog
from burnish.options import Options
from burnish.processor import this_cpu
from burnish.runtime.build.compiler import (
    CommandFailed,
    Compiler,
    Maker,
    compile_object,
    find_maker,
    forget_compilers,
    link_shared,
)
from burnish.runtime.build.library_loading import CannotLoad, load_library
from burnish.runtime.build.scratch import own_directory
from burnish.runtime.cache.store import Cache, CacheKey, open_cache
from burnish.runtime.cpu.blas import connect
from burnish.runtime.deadline import UNLIMITED, Cancelled, Deadline, current_deadline
from burnish.runtime.process import HELPFUL, has_started
from burnish.version import PACKAGE

NATIVE_DIR = PACKAGE / "runtime" / "native"

# Never -ffast-math: NaN, Inf and -0.0 must be the same as in eager.
_FLAGS = ("-O3", "-march=native", "-fopenmp", "-fno-math-errno", "-fno-trapping-math", "-fPIC", "-std=gnu11")
# Eager rounds after every operation. With contraction, x*y - x*y is the rounding error instead of 0, and its square
# root may be NaN. So generated code uses explicit multiply-adds. The native library's sums of products are contracted.
GENERATED_FLAGS = (*_FLAGS, "-ffp-contract=off")
_NATIVE_FLAGS = (*_FLAGS, "-ffp-contract=fast")

COMPILERS = 2  # at work for one library
_KIND = "library"
_OPENMP_SYMBOL = re.compile(r"undefined symbol: (GOMP_|omp_|__kmpc_)")


@dataclass(frozen=True)
class CSource:
    """One translation unit; `name` is a label for files and log lines, and is not part of the key."""

    text: str
    name: str

    @property
    def stem(self) -> str:
        return re.sub(r"[^A-Za-z0-9_.-]", "_", self.name)[:80]


@dataclass(frozen=True)
class _Job:
    name: str
    sources: tuple[CSource, ...]
    flags: tuple[str, ...]
    exported: bool  # later libraries may call into this one
    include: tuple[Path, ...] = ()  # where headers are; the source says which they have to be
    level: str = ""  # the processors that it is for, of `processor.LEVELS`; "": this one
    headers: str = ""  # text the sources include, where the package's own hash does not stand for it
    needs: tuple[Path, ...] = ()  # files without which it cannot be built, but loaded all the same

    @property
    def all_flags(self) -> tuple[str, ...]:
        machine = f"-march={self.level}" if self.level else "-march=native"
        return tuple(machine if flag == "-march=native" else flag for flag in self.flags)

    def key(self, compiler: Compiler) -> CacheKey:
        """Everything the library depends on."""
        text = "\0".join((*(source.text for source in self.sources), self.headers))
        return CacheKey(
            (
                ("name", self.name),
                ("source", hashlib.sha256(text.encode()).hexdigest()),
                ("burnish", source_hash() if not self.exported else ""),  # the runtime depends on its own text only
                ("torch", str(torch.__version__)),
                *compiler.factors,
                ("flags", " ".join(self.all_flags)),
                ("cpu", self.level or this_cpu().instructions),
            )
        )


_Built = tuple[bytes, ctypes.CDLL]  # a library's file, and the library

_libraries: dict[str, ctypes.CDLL] = {}  # digest -> what this process has loaded
_building: dict[str, threading.Lock] = {}  # digest -> held while it is looked for or built
_openmp_plan: dict[Compiler, int] = {}  # the variant in _build_in that last worked with this compiler
_guard = threading.Lock()


def build_shared(
    source: CSource,
    *,
    options: Options,
    cache: Cache,
    log: CompileLog,
    include: Sequence[Path] = (),
    needs: Sequence[Path] = (),
    parts: Sequence[str] = (),
) -> ctypes.CDLL:
    """The library made of `source`, loaded. It may call functions of the C runtime, if that is loaded, and include
    headers from the directories in `include`; building it `needs` these files. `parts` are the source as several,
    which are compiled side by side."""
    return _obtain(_shared_job(source, include, needs, parts), options, cache, log)


def shared_bytes(
    source: CSource,
    *,
    options: Options,
    cache: Cache,
    include: Sequence[Path] = (),
    parts: Sequence[str] = (),
    level: str = "",
) -> bytes | None:
    """The library that `build_shared` makes of this, as a file's content; None if it is not stored and cannot be
    built. `level` names other processors than this one."""
    return _content(dataclasses.replace(_shared_job(source, include, (), parts), level=level), options, cache)


def _shared_job(source: CSource, include: Sequence[Path], needs: Sequence[Path], parts: Sequence[str]) -> _Job:
    sources = tuple(CSource(text, f"{n} {source.name}") for n, text in enumerate(parts, 1)) or (
        source,
    )  # names are cut
    return _Job(source.name, sources, GENERATED_FLAGS, exported=False, include=tuple(include), needs=tuple(needs))


def native_library(options: Options, cache: Cache, log: CompileLog) -> ctypes.CDLL:
    """The C runtime that ships as source with burnish, loaded so that libraries built later may call it."""
    library = _native_part("native", double=False, options=options, cache=cache, log=log)
    connect(library)
    return library


def double_library(options: Options, cache: Cache, log: CompileLog) -> ctypes.CDLL:
    """The C runtime's double-precision products, which few programs use: they would double the build time. They call
    the rest of the runtime, which is loaded first."""
    native_library(options, cache, log)
    return _native_part("native f64", double=True, options=options, cache=cache, log=log)


def load_native(double: bool, options: Options, cache: Cache, log: CompileLog) -> None:
    """Load the libraries that generated code needs."""
    if double:
        double_library(options, cache, log)
    else:
        native_library(options, cache, log)


def native_bytes(double: bool, options: Options, cache: Cache, level: str = "") -> bytes | None:
    """The C runtime, or its double-precision part, as `shared_bytes`."""
    job = _native_job("native f64" if double else "native", double)
    return _content(dataclasses.replace(job, level=level), options, cache)


def _native_part(name: str, *, double: bool, options: Options, cache: Cache, log: CompileLog) -> ctypes.CDLL:
    return _obtain(_native_job(name, double), options, cache, log)


def _native_job(name: str, double: bool) -> _Job:
    paths = [path for path in sorted(NATIVE_DIR.glob("*.c")) if path.stem.endswith("_f64") == double]
    if not paths:
        raise NativeSourceMissing(NATIVE_DIR)
    sources = tuple(CSource(path.read_text(encoding="utf-8"), path.stem) for path in paths)
    headers = "".join(path.read_text(encoding="utf-8") for path in sorted(NATIVE_DIR.glob("*.h")))
    return _Job(name, sources, _NATIVE_FLAGS, exported=True, headers=headers)


def prepare_native(options: Options, log: CompileLog) -> None:
    """Build the C runtime in the background. A failure is silent here and occurs again when the library is needed. With
    two processors, the tracing thread, which takes longer, keeps one for itself."""
    deadline = current_deadline()
    deadline = Deadline(niceness=HELPFUL) if deadline is UNLIMITED else deadline

    def build() -> None:
        begin = time.perf_counter()
        with contextlib.suppress(Exception, Cancelled), deadline.governing():
            native_library(options, open_cache(options), CompileLog())
        log.beside("cc native library", begin, time.perf_counter())

    has_started(threading.Thread(target=build, name="burnish-native", daemon=True))


@functools.cache
def source_hash() -> str:
    """The hash of burnish's own sources: a changed burnish must not reuse its earlier output."""
    digest = hashlib.sha256()
    for path in sorted(path for path in PACKAGE.rglob("*") if path.suffix in (".py", ".c", ".h")):
        content = path.read_bytes()
        digest.update(f"{path.relative_to(PACKAGE)} {len(content)}\n".encode() + content)
    return digest.hexdigest()


def forget_loaded() -> None:
    """Make this process read the disk again. Libraries stay mapped, because their functions may be in use."""
    for memo in (_libraries, _building, _openmp_plan):
        memo.clear()
    forget_compilers()


def maker_of(options: Options, cache: Cache) -> tuple[tuple[str, str], ...]:
    """The compiler of this process's libraries, as factors of a cache key."""
    try:
        return find_maker(options.cc, cache, options.compiler_seconds).compiler.factors
    except (CommandFailed, CompilerMissing):
        return (("compiler", "none"),)


def _obtain(job: _Job, options: Options, cache: Cache, log: CompileLog) -> ctypes.CDLL:
    try:
        maker = find_maker(options.cc, cache, options.compiler_seconds)
        key = job.key(maker.compiler)
        with _guard:
            building = _building.setdefault(key.digest, threading.Lock())
        with building:
            library = _libraries.get(key.digest) or _load_stored(job, key, cache)
            log.cache(library is not None, "" if library else cache.miss_reason(_KIND, key))
            if library is None:
                _require(job, maker)
                with log.stage("cc"):
                    _, library = _build(job, maker.compiler, key, cache, options.compiler_seconds)
            _libraries[key.digest] = library
            return library
    except CommandFailed as failure:
        for source in job.sources:
            log.dump(f"{source.stem}.c", source.text)
        raise CompilerFailed(failure.command, failure.status, failure.first_errors, options.dump_dir) from None
    except CannotLoad as failure:
        raise LibraryUnloadable(job.name, str(failure)) from None


def _content(job: _Job, options: Options, cache: Cache) -> bytes | None:
    """It is not stored if this process loaded it from another cache, or if the cache was emptied."""
    try:
        compiler = find_maker(options.cc, cache, options.compiler_seconds).compiler
        key = job.key(compiler)
        return cache.get(_KIND, key) or _build(job, compiler, key, cache, options.compiler_seconds)[0]
    except (CommandFailed, CompileError, CannotLoad):
        return None


def _require(job: _Job, maker: Maker) -> None:
    """Check the requirements of building that loading does not have."""
    if maker.problem is not None:
        raise maker.problem
    for path in job.needs:
        if not path.exists():
            raise CompileError("build", f"{job.name}: there is no {path}")


def _load_stored(job: _Job, key: CacheKey, cache: Cache) -> ctypes.CDLL | None:
    data = cache.get(_KIND, key)
    if data is None:
        return None
    try:
        return load_library(data, job.name, exported=job.exported)
    except CannotLoad:  # made where other libraries were loaded
        cache.discard(_KIND, key)
        return None


def _build(job: _Job, compiler: Compiler, key: CacheKey, cache: Cache, seconds: float) -> _Built:
    """Build on the cache's filesystem or, where there is no room or no permission, in the temporary directory."""
    problems: list[str] = []
    places: tuple[Callable[[], AbstractContextManager[Path]], ...] = (cache.workspace, _own_workspace)
    for place in places:
        try:
            with place() as directory:
                built = _build_in(directory, job, compiler, seconds)
                cache.put(_KIND, key, built[0])
                return built
        except OSError as error:
            problems.append(str(error))
        except CommandFailed as failure:
            if not failure.no_room:
                raise
            problems.append(failure.first_errors)
    raise NoRoomToBuild(problems)


def _build_in(directory: Path, job: _Job, compiler: Compiler, seconds: float) -> _Built:
    """Torch has an OpenMP runtime loaded, and linking none lets kernels share its threads. If that runtime does not
    work with this compiler, link the compiler's own; if there is none, build without OpenMP."""
    flags = job.all_flags
    serial = tuple(flag for flag in flags if flag != "-fopenmp")
    plans: list[tuple[tuple[str, ...], tuple[str, ...]]] = [(flags, ()), (flags, ("-fopenmp",)), (serial, ())]
    for plan in range(_openmp_plan.get(compiler, 0), len(plans)):
        compile_flags, link_flags = plans[plan]
        try:
            objects = _compile(job, compiler, compile_flags, directory, seconds)
            link_shared(compiler, link_flags, objects, directory / "library.so", current_deadline(), seconds)
            data = (directory / "library.so").read_bytes()
            # What cannot be loaded is not stored. Code for other processors is not called here, nor by other libraries.
            library = load_library(data, job.name, exported=job.exported and not job.level)
            _openmp_plan[compiler] = plan
            return data, library
        except CannotLoad as failure:
            if not _OPENMP_SYMBOL.search(str(failure)):
                raise
            error: Exception = failure
        except CommandFailed as failure:
            if not link_flags:
                raise
            error = failure
    raise error


def _compile(job: _Job, compiler: Compiler, flags: Sequence[str], directory: Path, seconds: float) -> list[Path]:
    deadline = current_deadline()  # of this thread: those of the pool have none

    def compile_one(source: CSource) -> Path:
        text = directory / f"{source.stem}.c"
        text.write_text(source.text, encoding="utf-8")
        folders = [f"-I{path}" for path in (*job.include, NATIVE_DIR)]
        compile_object(compiler, [*flags, *folders], text, text.with_suffix(".o"), deadline, seconds)
        return text.with_suffix(".o")

    with ThreadPoolExecutor(max_workers=COMPILERS) as pool:
        return list(pool.map(compile_one, job.sources))


@contextlib.contextmanager
def _own_workspace() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir=own_directory(), ignore_cleanup_errors=True) as path:
        yield Path(path)
