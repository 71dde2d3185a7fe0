"""CUDA graphs never surprise anyone: what is captured, what is copied, what is left alone. On fakes of torch.cuda."""

from __future__ import annotations

import ctypes
import gc
import importlib.util
import re
import subprocess
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from burnish.observe.log import CompileLog
from burnish.options import Options
from burnish.runtime.build.shared_library import NATIVE_DIR
from burnish.runtime.cuda import graph_launch
from burnish.runtime.cuda import graphs as cuda_graphs
from burnish.runtime.cuda import program as cuda_program
from burnish.runtime.cuda.graphs import GraphedProgram, GraphPool, close_pools, pool_for
from burnish.runtime.graph_capture import wait_for_device
from burnish.runtime.graph_plan import GraphPlan
from burnish.runtime.host.extension import host_library
from tests.capture.entry.test_threads import together
from tests.runtime.cuda.fake_graphs import FakeCuda, FakeGraph, FakeRun, FakeStream

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    built = tmp_path_factory.mktemp("driver") / "libfake.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", built, Path(__file__).parent / "fake_driver.c"], check=True)
    return built


@pytest.fixture(params=["torch", "driver"])
def cuda(request: pytest.FixtureRequest, driver: Path, monkeypatch: pytest.MonkeyPatch) -> FakeCuda:
    """Graphs replayed by torch, and by the driver."""
    fake = FakeCuda()
    fake.install(monkeypatch)
    if request.param == "driver":
        fake.host = host_library(Options(), CompileLog())
        monkeypatch.setattr(graph_launch, "DRIVER_LIBRARY", str(driver))
    return fake


class Graphed:
    """A function behind a GraphedProgram."""

    def __init__(
        self, cuda: FakeCuda, fn: Callable[..., tuple[Any, ...]], pool: GraphPool | None = None, **plan: Any
    ) -> None:
        self.cuda, self.log = cuda, CompileLog()
        self.run = FakeRun(fn, cuda)
        self.pool = pool or GraphPool(CPU, 16)
        self.program = GraphedProgram(self.run, GraphPlan(**plan), self.pool, self.log)  # type: ignore[arg-type]

    def __call__(self, *args: Any) -> Any:
        results = self.program(list(args))
        return results[0] if len(results) == 1 else results

    @property
    def replays(self) -> int:
        return sum(graph.replays for graph in self.cuda.graphs)

    def notices(self) -> str:
        return "; ".join(self.log.snapshot().notices)


def double(x: torch.Tensor) -> tuple[torch.Tensor]:
    return (x * 2,)


def fresh(k: int = 4) -> torch.Tensor:
    """A tensor at an address of its own: those before it are kept, so that none is reused."""
    _kept.append(torch.randn(k))
    return _kept[-1]


_kept: list[torch.Tensor] = []


def test_the_first_call_is_plain_and_the_second_captured(cuda: FakeCuda) -> None:
    f = Graphed(cuda, double)
    for calls in range(1, 5):
        x = fresh()
        torch.testing.assert_close(f(x), x * 2)
        assert (f.run.plain, f.replays) == (1, calls - 1)
        assert f.run.released == (calls > 1)  # the graph has memory of its own
    assert len(cuda.graphs) == 1


def test_a_result_outlives_the_next_call(cuda: FakeCuda) -> None:
    f = Graphed(cuda, double)
    xs = [fresh() for _ in range(5)]
    results = [f(x) for x in xs]
    for x, y in zip(xs, results, strict=True):
        torch.testing.assert_close(y, x * 2)


Shared = tuple[torch.Tensor, ...]


def shared_results(x: torch.Tensor) -> Shared:
    y, z = x * 2, x + 1
    return y, y, z, y.detach(), y[1:3]


def shared_parts(x: torch.Tensor) -> Shared:
    """Nobody is given all of it."""
    y = x * 2
    return y[1:3], y[2:].detach(), x + 1


def same_objects(results: Shared) -> list[list[tuple[bool, bool]]]:
    storage = [x.untyped_storage()._cdata for x in results]
    pairs = list(zip(results, storage, strict=True))
    return [[(a is b, s == t) for b, t in pairs] for a, s in pairs]


@pytest.mark.parametrize("reuse", [False, True])
@pytest.mark.parametrize("fn", [shared_results, shared_parts])
def test_results_over_one_memory(cuda: FakeCuda, fn: Callable[..., Shared], reuse: bool) -> None:
    f = Graphed(cuda, fn, reuse_outputs=reuse)
    kept: list[tuple[Shared, Shared]] = []
    for _ in range(5):
        x = fresh()
        found, expected = f(x), fn(x)
        torch.testing.assert_close(found, expected)
        assert same_objects(found) == same_objects(expected)
        assert [x.storage_offset() for x in found] == [x.storage_offset() for x in expected]
        found[0].zero_(), expected[0].zero_()
        torch.testing.assert_close(found, expected)
        kept.append((found, expected))
    for found, expected in kept if not reuse else kept[-1:]:
        torch.testing.assert_close(found, expected)
    assert f.replays == 4


def test_a_saved_tensor_is_apart_from_the_result_that_it_is(cuda: FakeCuda) -> None:
    f = Graphed(cuda, lambda x: (lambda y: (y, y))(x * 2), lent_from=1)
    for _ in range(3):
        x = fresh()
        result, saved = f(x)
        result.zero_()
        if f.replays:
            torch.testing.assert_close(saved, x * 2)
        del saved
    assert f.replays == 2


def test_reused_results_are_the_graphs_own_memory(cuda: FakeCuda) -> None:
    f = Graphed(cuda, double, reuse_outputs=True)
    f(fresh())
    first, x = f(fresh()), fresh()
    second = f(x)
    assert first.data_ptr() == second.data_ptr() and first is not second
    torch.testing.assert_close(first, x * 2)


def test_a_parameter_is_used_where_it_is_and_seen_when_it_changes(cuda: FakeCuda) -> None:
    f = Graphed(cuda, lambda w, x: (w * x,), static=frozenset({0}))
    w = fresh()
    for _ in range(4):
        x = fresh()
        torch.testing.assert_close(f(w, x), w * x)
        w.mul_(2)
    assert f.replays == 3 and len(cuda.graphs) == 1


def test_a_replaced_parameter_is_captured_anew(cuda: FakeCuda) -> None:
    f = Graphed(cuda, lambda w, x: (w * x,), static=frozenset({0}))
    for w in [fresh(), fresh()]:
        for _ in range(3):
            x = fresh()
            torch.testing.assert_close(f(w, x), w * x)
    assert len(cuda.graphs) == 2 and cuda.graphs[0].gone and "moved" in f.notices()


def test_a_buffer_that_stays_is_not_copied_until_it_moves(cuda: FakeCuda) -> None:
    f = Graphed(cuda, double)
    x = fresh()
    for _ in range(3):
        torch.testing.assert_close(f(x), x * 2)
        x.add_(1)
    for _ in range(4):  # from now on another every time
        y = fresh()
        torch.testing.assert_close(f(y), y * 2)
    assert len(cuda.graphs) == 2 and f.run.plain == 2


def test_where_a_temporary_happens_to_lie_is_not_counted_on(cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch) -> None:
    """Allocators put a call's argument where the last one's was, until somebody holds on to one."""
    memory = ctypes.create_string_buffer(16)

    def calls(w: torch.Tensor, make: Callable[[], torch.Tensor]) -> None:
        for _ in range(3):
            x = make()
            torch.testing.assert_close(f(w, x), w * x)

    def there() -> torch.Tensor:
        return torch.frombuffer(memory, dtype=torch.float32).copy_(torch.randn(4))

    for little, graphs in ((16, 2), (15, 3)):  # more than little is worth the risk
        monkeypatch.setattr(cuda_graphs, "_LITTLE", little)
        cuda.graphs.clear()
        f = Graphed(cuda, lambda w, x: (w * x,), static=frozenset({0}))
        w = fresh()
        calls(w, there), calls(w, fresh), calls(fresh(), fresh)
        assert len(cuda.graphs) == graphs


def test_parameters_that_keep_moving_end_the_attempts(cuda: FakeCuda) -> None:
    f = Graphed(cuda, double, static=frozenset({0}))
    for _ in range(20):
        x = fresh()
        torch.testing.assert_close(f(x), x * 2)
    assert "for good" in f.notices() and len(cuda.graphs) == 5


def accumulate(cache: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor]:
    cache.add_(x)
    return (cache * 2,)


@pytest.mark.parametrize("same_cache", [True, False])
def test_a_written_argument_is_written_once_in_each_call(cuda: FakeCuda, same_cache: bool) -> None:
    f = Graphed(cuda, accumulate, written=frozenset({0}))
    ours = fresh()
    for _ in range(5):
        ours = ours if same_cache else fresh()
        theirs, x = ours.clone(), fresh()
        (expected,) = accumulate(theirs, x)
        torch.testing.assert_close(f(ours, x), expected)
        torch.testing.assert_close(ours, theirs)
    assert f.replays == 4


def test_a_result_that_is_an_argument_stays_that_argument(cuda: FakeCuda) -> None:
    f = Graphed(cuda, lambda x: (x, x + 1), aliases={0: 0})
    for _ in range(4):
        x = fresh()
        same, more = f(x)
        assert same.data_ptr() == x.data_ptr()
        torch.testing.assert_close(more, x + 1)


def test_an_expanded_argument(cuda: FakeCuda) -> None:
    f = Graphed(cuda, double)
    for _ in range(3):
        x = fresh().expand(3, 4)
        torch.testing.assert_close(f(x), x * 2)
    assert f.replays == 2


def test_each_size_has_its_graph_and_the_pool_its_limit(cuda: FakeCuda) -> None:
    f = Graphed(cuda, double, pool=GraphPool(CPU, 2), sources={"s0": (0, "size", 0)})
    for k in (3, 4, 5, 3, 4, 5):
        x = fresh(k)
        torch.testing.assert_close(f(x), x * 2)
    assert [graph.gone for graph in cuda.graphs] == [True, False, False]
    for k in (3, 4, 5, 3, 4, 5):  # more sizes than room: right, whatever is thrown out
        x = fresh(k)
        torch.testing.assert_close(f(x), x * 2)
    assert sum(not graph.gone for graph in cuda.graphs) <= 2 and "recently" in f.notices()
    for _ in range(40):
        f(fresh(3)), f(fresh(4)), f(fresh(5))
    assert "for good" in f.notices()  # capturing over and over again would be slower than none


@pytest.mark.parametrize("error", [torch.OutOfMemoryError("no room"), RuntimeError("operation not permitted")])
def test_a_capture_that_fails_loses_no_call(cuda: FakeCuda, error: Exception) -> None:
    f = Graphed(cuda, accumulate, written=frozenset({0}))
    cuda.fail = error
    cache, total = torch.zeros(4), torch.zeros(4)
    for _ in range(4):
        x = fresh()
        total += x
        torch.testing.assert_close(f(cache, x), total * 2)
    assert f.run.plain == 4 and str(error) in f.notices()
    assert f.log.snapshot().notices[next(iter(f.log.snapshot().notices))] == 1  # and is not tried over and over again
    assert cuda.stream.name == "default"  # the caller's is still the current one


def test_what_cannot_be_captured_is_named(cuda: FakeCuda) -> None:
    f = Graphed(cuda, double, obstacle="aten::nonzero waits for the device")
    for _ in range(3):
        f(fresh())
    assert f.run.plain == 3 and not cuda.graphs and "aten::nonzero" in f.notices()


def test_an_argument_elsewhere_is_not_captured(cuda: FakeCuda) -> None:
    f = Graphed(cuda, double, pool=GraphPool(torch.device("meta"), 4))
    for _ in range(3):
        f(fresh())
    assert not cuda.graphs and "not on the device" in f.notices()


def test_inside_the_callers_own_capture_the_program_runs_plainly(
    cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    f = Graphed(cuda, double)
    f(fresh()), f(fresh())
    monkeypatch.setattr(cuda_graphs, "is_capturing", lambda: True)
    x = fresh()
    torch.testing.assert_close(f(x), x * 2)
    assert f.replays == 1 and f.run.plain == 2


# -- training -----------------------------------------------------------------------------------------------------


class Training:
    """tanh as a forward that saves its result and a backward that reads it, over one pool."""

    def __init__(self, cuda: FakeCuda) -> None:
        pool = GraphPool(CPU, 16)
        self.forward = Graphed(cuda, lambda x: (torch.tanh(x), torch.tanh(x)), pool=pool, lent_from=1)
        self.backward = Graphed(cuda, lambda saved, g: (g * (1 - saved * saved),), pool=pool)

    def check(self, x: torch.Tensor, y: torch.Tensor, saved: torch.Tensor) -> None:
        torch.testing.assert_close(y, torch.tanh(x))
        g = fresh()
        torch.testing.assert_close(self.backward(saved, g), g * (1 - torch.tanh(x) ** 2))


def test_saved_tensors_are_lent_and_results_kept(cuda: FakeCuda) -> None:
    t = Training(cuda)
    kept = []
    for _ in range(5):
        x = fresh()
        y, saved = t.forward(x)
        t.check(x, y, saved)
        kept.append((x, y))
        del saved
    for x, y in kept:
        torch.testing.assert_close(y, torch.tanh(x))
    assert t.forward.run.plain == 1 and t.backward.run.plain == 1
    assert len(cuda.graphs) == 2 and [g.replays for g in cuda.graphs] == [4, 4]


def test_several_forwards_before_their_backwards(cuda: FakeCuda) -> None:
    t = Training(cuda)
    for _ in range(3):
        steps = [(x := fresh(), *t.forward(x)) for _ in range(3)]
        for x, y, saved in steps:
            t.check(x, y, saved)
        del steps, x, y, saved
    assert "saved tensors are in use" in t.forward.notices()
    assert "ran without its own" in t.backward.notices()
    assert len(cuda.graphs) == 2  # nothing was captured over and over again


def test_a_backward_done_twice(cuda: FakeCuda) -> None:
    t = Training(cuda)
    for _ in range(4):
        x = fresh()
        y, saved = t.forward(x)
        t.check(x, y, saved)
        t.check(x, y, saved)
        del saved


def test_another_graph_of_the_pool_waits_for_saved_tensors(cuda: FakeCuda) -> None:
    t = Training(cuda)
    evaluation = Graphed(cuda, double, pool=t.forward.pool)
    for _ in range(3):
        evaluation(fresh())
    for _ in range(2):
        t.check(x := fresh(), *t.forward(x))
    before = evaluation.run.plain
    y, saved = t.forward(fresh())
    z = fresh()
    torch.testing.assert_close(evaluation(z), z * 2)
    assert evaluation.run.plain == before + 1  # its graph may share memory with what is saved
    del y, saved
    evaluation(fresh())
    assert evaluation.run.plain == before + 1


# -- streams, threads, closing -------------------------------------------------------------------------------------


def test_replays_on_different_streams_take_turns(cuda: FakeCuda) -> None:
    f = Graphed(cuda, double)
    f(fresh()), f(fresh()), f(fresh())
    assert cuda.waits == []
    cuda.stream = FakeStream("other", cuda)
    f(fresh()), f(fresh())
    assert cuda.waits == [("other", "default")]


def test_threads_share_one_object(cuda: FakeCuda) -> None:
    f = Graphed(cuda, double)
    wrong: list[torch.Tensor] = []

    def work(number: int) -> None:
        for _ in range(50):
            x = torch.randn(64)
            if not torch.equal(f(x), x * 2):
                wrong.append(x)

    together(4, work)
    assert not wrong and f.replays > 100


def test_no_garbage_is_collected_during_a_capture(cuda: FakeCuda) -> None:
    """What it would let go (graphs, pinned memory) may call what CUDA refuses then."""
    collecting: list[bool] = []

    def looking(x: torch.Tensor) -> tuple[torch.Tensor]:
        collecting.append(gc.isenabled())
        return (x * 2,)

    f = Graphed(cuda, looking)
    f(fresh()), f(fresh())
    assert collecting[:2] == [True, False] and gc.isenabled()


def test_a_wait_for_the_device_takes_turns_with_captures(cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch) -> None:
    captured = threading.Event()
    order: list[str] = []
    waits = threading.Thread(target=wait_for_device)

    def capture(x: torch.Tensor) -> tuple[torch.Tensor]:
        if cuda.capturing:
            waits.start()
            captured.wait(0.2)  # as long as the other thread would need, if it did not wait
            order.append("captured")
        return (x * 2,)

    monkeypatch.setattr(torch.cuda, "synchronize", lambda device=None: (order.append("waited"), captured.set()))
    f = Graphed(cuda, capture)
    f(fresh()), f(fresh())
    waits.join()
    assert order == ["captured", "waited"]


def test_close_drops_every_graph_after_the_device_is_done_with_it(cuda: FakeCuda) -> None:
    log = CompileLog()
    pool = pool_for(log, CPU, 4)
    assert pool_for(log, CPU, 4) is pool
    f = Graphed(cuda, double, pool=pool)
    f(fresh()), f(fresh())
    assert f.program.pool_bytes() == 100 + 16  # and its own copy of the argument
    close_pools(log)
    assert cuda.synchronized == 1 and all(graph.gone for graph in cuda.graphs)
    assert pool_for(log, CPU, 4) is not pool
    x = fresh()
    torch.testing.assert_close(f(x), x * 2)  # and a later call is not lost


def test_graphs_go_with_their_programs_though_the_log_lives(cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch) -> None:
    """Dynamo keeps backends, and with them logs, for good: what is on the device must not hang on those."""
    monkeypatch.setattr(cuda_graphs, "_idle_streams", {})
    log, streams, results = CompileLog(), [], []
    for _ in range(2):
        f = Graphed(cuda, double, pool=pool_for(log, CPU, 4))
        f(fresh()), f(fresh())
        streams.append(f.pool.capture_stream)
        (case,) = f.program._cases.values()
        assert case.captured is not None
        results.append(weakref.ref(case.captured.results[0]))
        cuda.graphs.clear()
        del f, case
        gc.collect()
    assert streams[0] is streams[1]  # with the workspace that cuBLAS keeps for it
    assert [r() for r in results] == [None, None]


def test_release_drops_the_programs_own_graphs_only(cuda: FakeCuda) -> None:
    pool = GraphPool(CPU, 4)
    f, g = Graphed(cuda, double, pool=pool), Graphed(cuda, double, pool=pool)
    for h in (f, g):
        h(fresh()), h(fresh())
    f.program.release()
    assert [graph.gone for graph in cuda.graphs] == [True, False] and f.run.released


# -- replayed by the driver ----------------------------------------------------------------------------------------


class Driver:
    """The fake driver's memory."""

    def __init__(self, path: Path) -> None:
        self._library = ctypes.CDLL(str(path))

    def number(self, name: str) -> ctypes.c_int64:
        return ctypes.c_int64.in_dll(self._library, name)

    def copies(self) -> list[list[int]]:
        """The latest, each as (into, out of, bytes, stream)."""
        rows = ((ctypes.c_int64 * 4) * 64).in_dll(self._library, "log_copies")
        return [list(rows[k]) for k in range(self.number("copy_count").value)]

    def forget(self) -> None:
        for name in ("graph_launches", "graph_fails", "copy_count", "copy_launches", "no_ptx", "copy_nothing"):
            self.number(name).value = 0


@pytest.fixture
def log_of(driver: Path) -> Driver:
    found = Driver(driver)
    found.forget()
    return found


BY_DRIVER = pytest.mark.parametrize("cuda", ["driver"], indirect=True)


@BY_DRIVER
def test_copies_and_launch_are_the_drivers_on_the_current_stream(cuda: FakeCuda, log_of: Driver) -> None:
    f = Graphed(cuda, lambda w, x: (w * x, x + 1), static=frozenset({0}))
    w = fresh()
    f(w, fresh()), f(w, fresh())
    assert log_of.number("graph_launches").value == 0  # the first replay is torch's
    log_of.forget()
    x = fresh()
    first, second = f(w, x)
    assert log_of.number("graph_launches").value == 1
    assert log_of.number("copy_launches").value == 2  # all copies in, all copies out
    (one, two, three), stream = log_of.copies(), id(cuda.stream)
    assert one[1:] == [x.data_ptr(), 16, stream]
    assert (two[0], three[0]) == (first.data_ptr(), second.data_ptr()) and two[2:] == three[2:] == [16, stream]
    torch.testing.assert_close((first, second), (w * x, x + 1))


@BY_DRIVER
@pytest.mark.parametrize("problem", ["no_ptx", "copy_nothing", "not aligned"])
def test_what_the_kernel_cannot_copy_the_driver_does(
    cuda: FakeCuda, log_of: Driver, problem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(graph_launch, "_kernels", {})
    if problem != "not aligned":
        log_of.number(problem).value = 1
    f = Graphed(cuda, double)
    f(fresh()), f(fresh())
    log_of.forget()
    x = fresh(5)[1:]
    assert x.data_ptr() % 16
    torch.testing.assert_close(f(x), x * 2)
    made = log_of.number("copy_launches").value, log_of.number("copy_count").value
    assert made == ((1, 2) if problem == "not aligned" else (0, 2))


def graph_of(f: Graphed) -> Any:
    """The captured graph of a program of one size."""
    return next(iter(f.program._cases.values())).captured


@pytest.fixture(params=[True, False], ids=["in C", "in Python"])
def by_driver(driver: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> FakeCuda:
    """Replayed by the driver, with a call's host part in C or not."""
    fake = FakeCuda(host=host_library(Options(), CompileLog()))
    fake.install(monkeypatch)
    monkeypatch.setattr(graph_launch, "DRIVER_LIBRARY", str(driver))
    if not request.param:
        monkeypatch.setattr(cuda_graphs.Captured, "call_quickly", lambda *args: None)
    return fake


def ready(f: Graphed) -> Any:
    """The result that is made ready for the next call."""
    graph = graph_of(f)
    if graph.quick is not None:
        return graph.quick.ready()[0] if graph.quick.ready() else None
    return graph.launch._ready[2][0] if graph.launch._ready else None


def test_results_made_ready_are_for_their_stream_and_mode(by_driver: FakeCuda) -> None:
    cuda, f = by_driver, Graphed(by_driver, double)
    for _ in range(3):
        f(fresh())
    made = ready(f)
    assert f(fresh()).data_ptr() == made.data_ptr()
    made = ready(f)
    cuda.stream = FakeStream("other", cuda)
    assert f(fresh()).data_ptr() != made.data_ptr()
    f(fresh())
    made = ready(f)
    with torch.inference_mode():
        y = f(torch.randn(4))
    assert y.is_inference() and y is not made and not f(fresh()).is_inference()


def test_large_results_are_not_made_ready(by_driver: FakeCuda, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graph_launch, "_SMALL", 15)
    f = Graphed(by_driver, double)
    for _ in range(4):
        x = fresh()
        torch.testing.assert_close(f(x), x * 2)
    assert ready(f) is None


def test_no_memory_for_the_next_results_loses_no_call(by_driver: FakeCuda, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_graphs.Captured, "call_quickly", lambda *args: None)
    f = Graphed(by_driver, double)
    for _ in range(3):
        f(fresh())
    launch = graph_of(f).launch

    def no_room() -> Any:
        raise torch.OutOfMemoryError("no room")

    monkeypatch.setattr(launch, "_fresh", no_room)
    x = fresh()
    torch.testing.assert_close(f(x), x * 2)
    with pytest.raises(torch.OutOfMemoryError):
        f(x)


def test_an_error_of_the_driver_is_raised_with_its_words(by_driver: FakeCuda, log_of: Driver) -> None:
    f = Graphed(by_driver, double)
    for _ in range(3):
        f(fresh())
    log_of.number("graph_fails").value = 1
    with pytest.raises(RuntimeError, match="CUDA driver error 700 in the launch of a graph"):
        f(fresh())
    log_of.forget()
    x = fresh()
    torch.testing.assert_close(f(x), x * 2)  # nothing is left locked


@BY_DRIVER
def test_a_usual_call_is_made_in_c(cuda: FakeCuda, log_of: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    f = Graphed(cuda, lambda w, x: (w * x, x + 1), static=frozenset({0}))
    w = fresh()
    f(w, fresh()), f(w, fresh())
    pool, graph, told = f.pool, graph_of(f), f.program._quick
    assert told is graph.quick is not None
    monkeypatch.setattr(GraphPool, "take_turn", None)  # from here on Python has no part in it
    for _ in range(3):
        x = fresh()
        args = [w, x]
        torch.testing.assert_close(f.program(args), (w * x, x + 1))
        assert not args and graph.stamp[0] == pool.turn[1]
    assert log_of.number("graph_launches").value == 3
    for odd in ([w.clone(), x], [w, torch.randn(4, 4)[:, 0]]):
        given = list(odd)
        assert told(given) is None and len(given) == 2  # elsewhere, or laid out in another way: nothing is done
    pool.lenders.append(graph)
    assert told([w, x]) is None
    pool.lenders.clear()
    together(1, lambda number: pool.lock.acquire())  # a thread that does not give its turn back
    assert told([w, x]) is None
    assert log_of.number("graph_launches").value == 3


@BY_DRIVER
def test_a_call_in_c_ends_with_its_graph(cuda: FakeCuda) -> None:
    f = Graphed(cuda, double)
    for _ in range(4):
        f(fresh())
    quick = graph_of(f).quick
    f.program.release()
    assert quick.ready() is None and quick([fresh()]) is None
    for _ in range(4):
        x = fresh()
        torch.testing.assert_close(f(x), x * 2)
    assert graph_of(f).quick is not quick and len(cuda.graphs) == 2


@BY_DRIVER
def test_what_an_earlier_call_has_to_say_comes_first(cuda: FakeCuda) -> None:
    f = Graphed(cuda, double)
    flag = torch.zeros(1, dtype=torch.int64)
    check = f.program._check = cuda_program._range_check(flag)
    assert check.flag is flag
    for _ in range(3):
        f(fresh())
    assert graph_of(f).quick is not None
    flag.fill_(1)
    with pytest.raises(IndexError):
        f(fresh())
    x = fresh()
    torch.testing.assert_close(f(x), x * 2)


PTXAS = {"80": "ptxas", "90": "ptxas", "100": "ptxas-blackwell"}


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="the assembler comes with triton")
@pytest.mark.parametrize("architecture", PTXAS)
def test_the_kernel_that_copies_is_taken_by_the_assembler(architecture: str, tmp_path: Path) -> None:
    spec = importlib.util.find_spec("triton")
    assert spec is not None and spec.origin is not None
    assembler = Path(spec.origin).parent / "backends" / "nvidia" / "bin" / PTXAS[architecture]
    text = (NATIVE_DIR / "host" / "copies.h").read_text()
    inside = text[text.index("copy_kernel[] =") : text.index("_Static_assert")]
    lines = re.findall(r'"(.*)\\n"', inside)
    assert lines[-1] == "}" and len(lines) > 40
    (tmp_path / "copies.ptx").write_text("\n".join(lines) + "\n")
    command = [assembler, f"-arch=sm_{architecture}", tmp_path / "copies.ptx", "-o", tmp_path / "copies.cubin"]
    subprocess.run(command, check=True)


@BY_DRIVER
def test_strides_that_the_graph_does_not_have_are_copied_by_torch(cuda: FakeCuda, log_of: Driver) -> None:
    f = Graphed(cuda, double)
    for _ in range(3):
        f(torch.randn(2, 3))
    log_of.forget()
    x = torch.randn(3, 2).t()
    torch.testing.assert_close(f(x), x * 2)
    assert log_of.number("graph_launches").value == 0 and len(cuda.graphs) == 1


@BY_DRIVER
@pytest.mark.parametrize(
    "slice_of", [lambda x: x[:, :1], lambda x: x[:, :3].t()], ids=["mostly gaps", "gaps that are somebody's"]
)
def test_what_is_written_back_leaves_its_neighbours_alone(
    cuda: FakeCuda, slice_of: Callable[[torch.Tensor], torch.Tensor]
) -> None:
    f = Graphed(cuda, lambda cache: (cache.add_(1).sum(),), written=frozenset({0}))
    for _ in range(5):
        whole = torch.zeros(4, 4)
        part = slice_of(whole)
        f(part)
        assert part.eq(1).all() and whole.sum() == part.numel()


@BY_DRIVER
def test_many_copies_are_torchs(cuda: FakeCuda, log_of: Driver) -> None:
    f = Graphed(cuda, lambda x: tuple(x + k for k in range(9)))
    for _ in range(4):
        x = fresh()
        torch.testing.assert_close(f(x), tuple(x + k for k in range(9)))
    assert log_of.number("graph_launches").value == 0 and f.replays == 3


class FakeGenerator:
    def __init__(self, offset: int = 0) -> None:
        self.offset = offset

    def clone_state(self) -> FakeGenerator:
        return FakeGenerator(self.offset)

    def get_offset(self) -> int:
        return self.offset


@BY_DRIVER
@pytest.mark.parametrize("known", [True, False])
def test_graphs_that_draw_random_numbers_stay_torchs(
    cuda: FakeCuda, log_of: Driver, monkeypatch: pytest.MonkeyPatch, known: bool
) -> None:
    generator = FakeGenerator()
    monkeypatch.setattr(torch.cuda, "default_generators", (generator,))
    f = Graphed(cuda, double, draws=known)
    f(fresh())

    def replay_and_draw(graph: FakeGraph) -> None:
        generator.offset += 0 if known else 4
        for step in graph.steps:
            step()

    monkeypatch.setattr(FakeGraph, "replay", replay_and_draw)
    for _ in range(4):
        x = fresh()
        torch.testing.assert_close(f(x), x * 2)
    assert log_of.number("graph_launches").value == 0
