"""Triton kernels built by other processes, and kept: with Triton's own compiler, which needs no device."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import burnish
from burnish.codegen.triton.module import generate
from burnish.errors import CompileError
from burnish.observe.log import CompileLog
from burnish.options import Options
from burnish.pipeline import Setting, _wait_for_kernels
from burnish.runtime.cache.store import Cache
from burnish.runtime.cuda import program as cuda_program
from burnish.runtime.cuda.launch import Kernel, Loading
from burnish.runtime.cuda.program import kernel_source
from burnish.runtime.deadline import Cancelled, Deadline
from burnish.runtime.triton.build import KernelBuilder, kernel_key
from burnish.runtime.triton.compile import BuiltKernel, KernelSource
from burnish.runtime.triton.workers import NoWorkers, WorkerPool
from burnish.schedule.kernels import LoopKernel, Schedule
from tests.codegen.triton.loops import biased, softmax

pytest.importorskip("triton")


def source_of(rows: int = 64, columns: int = 256) -> KernelSource:
    unit = generate(Schedule({}, [LoopKernel(softmax(8, 16)), LoopKernel(biased(rows, columns))], []), overlapped=True)
    return kernel_source(unit, unit.calls[1], unit.calls[1].launch, 90)


class Pool(WorkerPool):
    """Without processes."""

    def __init__(self, work: Callable[[KernelSource], BuiltKernel] | None = None) -> None:
        super().__init__(2)
        self.built: list[KernelSource] = []
        self._work = work

    def build(self, source: KernelSource) -> BuiltKernel:
        self.built.append(source)
        return self._work(source) if self._work else BuiltKernel(source.function, b"\x7fELF cubin", source.warps, 0)

    def alive(self) -> int:
        return self.count


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    return Cache(tmp_path / "cache", 1 << 30)


# -- processes ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def pool() -> Iterator[WorkerPool]:
    pool = WorkerPool(1)
    pool.start()
    yield pool
    pool.close()


def test_a_worker_builds_and_says_what_is_wrong_with_a_kernel(pool: WorkerPool) -> None:
    source = source_of()
    built = pool.build(source)
    assert built.name == source.function and built.cubin.startswith(b"\x7fELF")
    assert built.warps == source.warps and built.dependent
    assert BuiltKernel.from_bytes(built.to_bytes()) == built
    with pytest.raises(CompileError, match=source.function):
        pool.build(replace(source, text=source.text.replace("tl.load", "tl.no_such_thing")))
    assert pool.build(source) == built and pool.alive() == 1


def test_workers_that_ended_while_idle_are_started_again() -> None:
    pool = WorkerPool(1)
    pool.start()
    built = pool.build(source_of())
    worker = pool._free.get()
    assert worker.pid is not None and worker.is_there()
    ended = os.pidfd_open(worker.pid)
    os.kill(worker.pid, signal.SIGKILL)
    assert select.select([ended], [], [], 60)[0] and not worker.is_there()
    os.close(ended)
    pool._free.put(worker)
    pool.start()
    assert pool.alive() == 1 and pool.build(source_of()) == built
    pool.close()


_PARENT = """
import json, sys, types
burnish = sys.modules["burnish"] = types.ModuleType("burnish")  # which would import torch
burnish.__path__ = [sys.argv[1]]
from burnish.runtime.triton.compile import KernelSource
from burnish.runtime.triton.workers import WorkerPool
pool = WorkerPool(2)
pool.start()
pool.build(KernelSource.from_dict(json.loads(sys.argv[2])))
print(pool._process.pid, *(w.pid for w in [pool._free.get(), pool._free.get()] if w.pid), flush=True)
assert "torch" not in sys.modules
sys.stdin.read()
"""


def test_no_process_outlives_its_parent() -> None:
    package = str(Path(burnish.__file__).parent)
    command = [sys.executable, "-c", _PARENT, package, json.dumps(source_of().to_dict())]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pids = [int(word) for word in parent.stdout.readline().split()]
        assert len(pids) == 2  # the one that watches, and the worker that has built
        children = [os.pidfd_open(pid) for pid in pids]
        parent.send_signal(signal.SIGKILL)
        for child in children:
            assert select.select([child], [], [], 60)[0], "still running"
            os.close(child)


_BARE = """
import os, socket, sys, types
burnish = sys.modules["burnish"] = types.ModuleType("burnish")  # which would import torch
burnish.__path__ = [sys.argv[2]]
from burnish.runtime.triton.messages import receive, send
"""


def _fake(script: str) -> tuple[str, ...]:
    """A program in the workers' place; argv: path, package, control, parent, sockets."""
    return sys.executable, "-c", _BARE + script


_HANGS = """
end = socket.socket(fileno=int(sys.argv[5]))
send(end, {"worker": 1 << 40})
while os.read(int(sys.argv[3]), 100): pass
"""


def test_workers_that_end_or_hang_cost_two_of_them_and_no_more() -> None:
    hangs = WorkerPool(1, _fake(_HANGS), seconds=0.2)
    hangs.start()
    with pytest.raises(NoWorkers):  # it had the only one
        hangs.build(source_of())
    hangs.close()
    ends = WorkerPool(2, _fake("sys.exit(3)"))
    ends.start()
    for _ in range(2):
        with pytest.raises(NoWorkers, match="cannot be started"):
            ends.build(source_of())
    ends.close()


def test_without_workers_threads_build(cache: Cache) -> None:
    log, made = CompileLog(), BuiltKernel("k", b"\x7fELF", 4, 0)
    nowhere = WorkerPool(2, ["/there/is/no/such/interpreter"])
    nowhere.start()
    builder = KernelBuilder(cache, lambda: nowhere, lambda source, folder: made)
    assert builder.build([source_of()], log) == [made]
    assert [what for what in log.notices if "in a thread" in what and "cannot be started" in what]


# -- what is kept -------------------------------------------------------------------------------------------------


def test_a_kernel_is_built_once_for_all_models_and_processes(cache: Cache) -> None:
    pool, log = Pool(), CompileLog()
    builder = KernelBuilder(cache, lambda: pool)
    one, other = source_of(), source_of(64, 100)
    elsewhere = replace(one, text=one.text.replace(one.function, "k7"), function="k7")
    assert [b.name for b in builder.build([one, other, one, elsewhere], log)] == [
        one.function, other.function, one.function, one.function,
    ]  # fmt: skip
    assert len(pool.built) == 2 and (log.cache_hits, log.cache_misses) == (0, 2)
    assert "2 of 2 Triton kernels are new" in log.cache_reasons[0]
    builder.build([one], log)
    second = KernelBuilder(cache, lambda: pytest.fail("a warm process needs no workers"))  # another process
    assert second.build([one, other], log)[0].cubin == b"\x7fELF cubin"
    assert len(pool.built) == 2 and log.cache_hits == 3


def test_a_stored_kernel_that_one_program_wants_twice(cache: Cache) -> None:
    pool, source = Pool(), source_of()
    KernelBuilder(cache, lambda: pool).build([source], CompileLog())
    log = CompileLog()
    twice = KernelBuilder(cache, lambda: pool).build([source, source], log)  # as another process, or later, would
    assert twice[0] == twice[1] and len(pool.built) == 1 and (log.cache_hits, log.cache_misses) == (1, 0)


@pytest.mark.parametrize("change", [{"warps": 8}, {"capability": 80}, {"overlapped": False}, {"constants": {"X": 1}}])
def test_what_decides_a_kernel_is_in_its_key(change: dict[str, object]) -> None:
    source = source_of()
    assert kernel_key(replace(source, **change)).digest != kernel_key(source).digest  # type: ignore[arg-type]


def test_an_entry_that_is_no_kernel_is_built_anew(cache: Cache) -> None:
    pool, source = Pool(), source_of()
    cache.put("cubin", kernel_key(source), b'{"name": 1}\n\x7fELF')
    assert KernelBuilder(cache, lambda: pool).build([source], CompileLog())[0].name == source.function
    assert len(pool.built) == 1


def test_a_failure_is_the_callers_and_is_tried_again(cache: Cache) -> None:
    def fails(source: KernelSource) -> BuiltKernel:
        raise CompileError("build", "on purpose")

    pool = Pool(fails)
    builder = KernelBuilder(cache, lambda: pool)
    for _ in range(2):
        with pytest.raises(CompileError, match="on purpose"):
            builder.build([source_of()], CompileLog())
    assert len(pool.built) == 2


def test_another_thread_s_cancelled_compile_takes_no_kernel_from_us(cache: Cache) -> None:
    begun, go = threading.Event(), threading.Event()
    made = BuiltKernel("k", b"\x7fELF", 4, 0)

    def waits(source: KernelSource) -> BuiltKernel:
        begun.set()
        assert go.wait(60)
        return made

    builder = KernelBuilder(cache, lambda: Pool(waits))
    deadline, errors = Deadline(), []

    def theirs() -> None:
        with deadline.governing():
            try:
                builder.build([source_of()], CompileLog())
            except Cancelled as error:
                errors.append(error)

    first = threading.Thread(target=theirs)
    first.start()
    assert begun.wait(60)
    results: list[list[BuiltKernel]] = []
    second = threading.Thread(target=lambda: results.append(builder.build([source_of()], CompileLog())))
    second.start()
    deadline.cancel("on purpose")
    first.join(60)
    go.set()
    second.join(60)
    assert len(errors) == 1 and results == [[made]]


# -- beside everything else ---------------------------------------------------------------------------------------


def test_kernels_are_built_while_the_caller_goes_on(cache: Cache) -> None:
    begun, go = threading.Event(), threading.Event()

    def waits(source: KernelSource) -> BuiltKernel:
        begun.set()
        assert go.wait(60)
        return BuiltKernel(source.function, b"\x7fELF", 4, 0)

    source = source_of()
    finish = KernelBuilder(cache, lambda: Pool(waits)).begin([source, source], CompileLog())
    assert begun.wait(60) and cache.get("cubin", kernel_key(source)) is None
    go.set()
    assert [built.name for built in finish()] == [source.function] * 2
    assert cache.get("cubin", kernel_key(source)) is not None


class Loads:
    """A launcher whose first kernels cannot be built."""

    def __init__(self) -> None:
        self.begun = 0

    def begin(self, sources: list[KernelSource], builder: KernelBuilder, log: CompileLog) -> Loading:
        self.begun += 1
        return self._finish_first if self.begun == 1 else lambda: [Kernel(s.function, None, 4, 0) for s in sources]

    def _finish_first(self) -> list[Kernel]:
        raise CompileError("build", "on purpose")


def test_the_first_run_waits_for_kernels_and_those_that_failed_are_tried_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(cuda_program, "_capability", lambda device: 90)
    unit = generate(Schedule({}, [LoopKernel(softmax(8, 16))], []))
    launcher, log = Loads(), CompileLog()
    options, device = Options(cache_dir=tmp_path), torch.device("cuda")
    kernels = cuda_program._Kernels(unit, launcher, device, options, log)  # type: ignore[arg-type]
    assert launcher.begun == 1 and "build" not in log.seconds
    with pytest.raises(CompileError, match="on purpose"):
        kernels()
    assert kernels() == {0: Kernel(unit.symbol(unit.calls[0].function), None, 4, 0)}
    assert kernels() is kernels() and launcher.begun == 2 and "build" in log.seconds


@pytest.mark.parametrize(("options", "waits"), [(Options(), False), (Options(background=True), True)])
def test_a_compile_beside_the_calls_ends_with_its_kernels(options: Options, waits: bool) -> None:
    asked: list[bool] = []
    _wait_for_kernels(lambda: asked.append(True), Setting("inference", options, CompileLog()))
    assert bool(asked) == waits
