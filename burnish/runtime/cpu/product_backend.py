"""Backend selection for matrix products on a CPU: our kernel or torch's BLAS, both with the same epilogue.

Which is faster depends on the machine, on its BLAS and on the sizes, so it is measured: once for each class of products
(sizes to the nearest half power of two, layouts, type, threads), for less than a tenth of a second, and kept in the
cache. Products of few rows, of half types, of little work or of sizes only known later run our kernel without a
measurement.

The first result waits for these measurements, so a compile spends a small share of its time on them. Classes with the
most work are measured first. A class that is not measured takes the answer of the most similar measured one, and a
later compile measures it.
"""

from __future__ import annotations

import ctypes
import math
import os
import statistics
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from ctypes import c_int32, c_int64, c_void_p
from dataclasses import dataclass, replace
from functools import partial

import torch

from burnish.fuel import Fuel
from burnish.ir.dtypes import DType
from burnish.ir.expr import Dim
from burnish.observe.log import CompileLog
from burnish.options import Options
from burnish.processor import this_cpu
from burnish.runtime.build.shared_library import double_library, load_native, native_library, source_hash
from burnish.runtime.cache.entry import CacheKey
from burnish.runtime.cache.store import Cache, open_cache
from burnish.runtime.cpu.blas import find_blas
from burnish.schedule.kernels import ContractKernel, Operand, Schedule

_FEW = 16  # rows or columns up to which our own product streams the other operand and wins
_LITTLE = 1 << 24  # multiplications of a product that is too short to matter
_MOST = 1 << 29  # multiplications of a trial; a longer product is tried with fewer rows
_WORTH = 1.05  # how much faster BLAS must be: our own needs no memory between product and epilogue
_FAR = 1.3  # times that, one is so far ahead that two rounds are enough
_ROUNDS = 5
_SECONDS = 0.06  # no round begins after so long in all
_SHARE = 0.05  # of the time that a compile has taken so far, for trials
_KIND = "product"


@dataclass(frozen=True)
class ProductClass:
    """Products alike enough to have the same answer."""

    dtype: DType
    m: int
    n: int
    k: int
    a_by_row: bool  # whether k is the contiguous dimension of a, and n that of b
    b_by_row: bool
    threads: int

    def __str__(self) -> str:
        layouts = "".join("N" if by_row else "T" for by_row in (self.a_by_row, self.b_by_row))
        return f"{self.dtype.value} {self.m}x{self.k}x{self.n} {layouts}, {self.threads} threads"


def choose_libraries(schedule: Schedule, options: Options, fuel: Fuel, log: CompileLog) -> Schedule:
    """Marks the products that BLAS computes."""
    if options.products == "ours" or find_blas() is None:
        return schedule
    threads = options.threads or torch.get_num_threads()
    classes = {
        n: found
        for n, kernel in enumerate(schedule.kernels)
        if isinstance(kernel, ContractKernel) and (found := classify(kernel, threads)) is not None
    }
    work: Counter[ProductClass] = Counter()
    for found in classes.values():
        work[found] += found.m * found.n * found.k
    if options.products == "library":
        faster = dict.fromkeys(work, True)
    else:
        cache = open_cache(options)
        ordered = [found for found, _ in work.most_common()]
        if any(known_answer(found, cache) is None for found in ordered):
            # Wanted anyhow: waiting for it is no part of the trials.
            load_native(any(found.dtype is DType.f64 for found in ordered), options, cache, log)
        allowance = _SHARE * (log.seconds_so_far() or 0.0)
        faster = choose(ordered, cache, lambda found: trial(found, options, cache, log), allowance)
    for n, found in classes.items():
        kernel = schedule.kernels[n]
        if faster[found] and isinstance(kernel, ContractKernel) and fuel.spend(f"product {n} by BLAS"):
            schedule.kernels[n] = replace(kernel, library=True)
    return schedule


def classify(kernel: ContractKernel, threads: int) -> ProductClass | None:
    """The class of a product that BLAS could do and might do faster."""
    m, k, n = kernel.a.shape[-2], kernel.a.shape[-1], kernel.b.shape[-1]
    if not (isinstance(m, int) and isinstance(n, int) and isinstance(k, int)):
        return None
    if kernel.dtype not in (DType.f32, DType.f64) or {kernel.a.dtype, kernel.b.dtype} != {kernel.dtype}:
        return None
    a_by_row, b_by_row = _contiguous(kernel.a), _contiguous(kernel.b)
    if a_by_row is None or b_by_row is None or min(m, n) <= _FEW or m * n * k < _LITTLE:
        return None
    return ProductClass(kernel.dtype, _near(m), _near(n), _near(k), a_by_row, b_by_row, threads)


def _contiguous(o: Operand) -> bool | None:
    """Whether the last dimension is the contiguous one, or the one before it; None if neither is."""
    outer: Dim
    outer, inner = o.strides[-2:]
    return True if inner == 1 else False if outer == 1 else None


def _near(size: int) -> int:
    """2, 3, 4, 6, 8, 12, 16, ...: the nearest."""
    top = 1 << max(size.bit_length() - 1, 1)
    return min((top, top + top // 2, 2 * top), key=lambda s: abs(s - size))


# --- the answer -------------------------------------------------------------------------------------------------

_answers: dict[str, bool] = {}  # what this process knows already, by the key's digest
_measuring = threading.Lock()  # two trials at once would measure each other


def choose(
    classes: Sequence[ProductClass],
    cache: Cache,
    ratio: Callable[[ProductClass], float],
    allowance: float,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[ProductClass, bool]:
    """Whether BLAS is faster, for each class. After `allowance` seconds no trial starts; remaining classes take the
    answer of the most similar class."""
    faster: dict[ProductClass, bool] = {}
    spent = 0.0
    for found in classes:
        start = clock()
        answer = is_faster(found, cache, partial(ratio, found)) if spent <= allowance else known_answer(found, cache)
        spent += clock() - start
        if answer is not None:
            faster[found] = answer
    return faster | {found: faster[_most_like(found, list(faster))] for found in classes if found not in faster}


def _most_like(found: ProductClass, others: Sequence[ProductClass]) -> ProductClass:
    def dissimilarity(other: ProductClass) -> tuple[bool, bool, float]:
        sizes = ((found.m, other.m), (found.n, other.n), (found.k, other.k))
        layouts = (found.a_by_row, found.b_by_row) != (other.a_by_row, other.b_by_row)
        return found.dtype is not other.dtype, layouts, sum(abs(math.log2(a / b)) for a, b in sizes)

    return min(others, key=dissimilarity)


def is_faster(
    found: ProductClass, cache: Cache, ratio: Callable[[], float], quiet: Callable[[], bool] | None = None
) -> bool:
    """Whether BLAS is faster, calling `ratio` only if there is no answer yet. An answer from a busy machine is replaced
    by one from a quiet machine."""
    quiet = quiet or _is_quiet
    key = _key(found)
    with _measuring:
        if key.digest not in _answers:
            who, when = _stored(key, cache)
            if not who or (when == "busy" and quiet()):
                when = "quiet" if quiet() else "busy"
                who = "library" if ratio() > _WORTH else "ours"
                cache.discard(_KIND, key)
                cache.put(_KIND, key, f"{who} {when}".encode())
            _answers[key.digest] = who == "library"
        return _answers[key.digest]


def known_answer(found: ProductClass, cache: Cache) -> bool | None:
    """The existing answer, also one from a busy machine."""
    key = _key(found)
    if key.digest in _answers:
        return _answers[key.digest]
    who, _ = _stored(key, cache)
    return who == "library" if who else None


def _stored(key: CacheKey, cache: Cache) -> tuple[str, str]:
    """The stored answer, or None, and whether the machine was busy when it was measured."""
    who, _, when = (cache.get(_KIND, key) or b"").decode(errors="replace").partition(" ")
    return (who, when) if who in ("ours", "library") else ("", "")


def _key(found: ProductClass) -> CacheKey:
    return CacheKey((
        ("name", f"product {found}"), ("product", str(found)), ("burnish", source_hash()),
        ("torch", str(torch.__version__)), ("cpu", this_cpu().identity),
    ))  # fmt: skip


def _is_quiet() -> bool:
    """Whether the machine has a processor to spare: threads that wait for one another suffer most where it has none."""
    return os.getloadavg()[0] < (os.cpu_count() or 1) if hasattr(os, "getloadavg") else True


class GemmArgs(ctypes.Structure):
    """bn_gemm_args of bn_runtime.h."""

    _fields_ = [
        ("a", c_void_p), ("b", c_void_p),
        *((name, c_int64) for name in "m n k sam sak sbk sbn nb0 nb1 sa0 sa1 sb0 sb1".split()),
        ("dtype_a", c_int32), ("dtype_b", c_int32), ("library", c_int32),
    ]  # fmt: skip


class Store(ctypes.Structure):
    """bn_store of bn_runtime.h."""

    _fields_ = [("c", c_void_p), *((name, c_int64) for name in "scm scn sc0 sc1".split()), ("dtype", c_int32)]


def trial(found: ProductClass, options: Options, cache: Cache, log: CompileLog) -> float:
    """The time of our kernel divided by BLAS' time."""
    single = found.dtype is DType.f32
    native = native_library(options, cache, log) if single else double_library(options, cache, log)
    m, n, k = max(min(found.m, _MOST // (found.n * found.k)), 4 * _FEW), found.n, found.k
    a = _ones(m, k, found.a_by_row, found.dtype)
    b = _ones(k, n, found.b_by_row, found.dtype)
    c = torch.empty(m, n, dtype=found.dtype.torch)
    code = 0 if single else 1
    strides = (*a.stride(), *b.stride())
    store = Store(c.data_ptr(), n, 1, 0, 0, code)
    multiply, epilogue = (getattr(native, f"{f}_{'f32' if single else 'f64'}") for f in ("bn_gemm", "bn_store"))

    def seconds(library: bool) -> float:
        args = GemmArgs(a.data_ptr(), b.data_ptr(), m, n, k, *strides, 1, 1, 0, 0, 0, 0, code, code, library)
        start = time.perf_counter()
        multiply(ctypes.byref(args), epilogue, ctypes.byref(store))
        return time.perf_counter() - start

    return race(seconds)


def race(seconds: Callable[[bool], float]) -> float:
    """The median ratio of a few rounds in which ours and the library's take turns; the first only touches memory. When
    two rounds agree that one is far ahead, more would change nothing."""
    ratios: list[float] = []
    spent = 0.0
    while len(ratios) <= _ROUNDS and (len(ratios) < 2 or spent < _SECONDS):
        ours, library = seconds(False), seconds(True)
        ratios.append(ours / max(library, 1e-9))
        spent += ours + library
        if len(ratios) == 3 and (min(ratios[1:]) > _WORTH * _FAR or max(ratios[1:]) < _WORTH / _FAR):
            break
    return statistics.median(ratios[1:])


def _ones(rows: int, columns: int, by_row: bool, dtype: DType) -> torch.Tensor:
    if by_row:
        return torch.ones(rows, columns, dtype=dtype.torch)
    return torch.ones(columns, rows, dtype=dtype.torch).t()
