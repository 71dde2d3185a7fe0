"""Trials on a device that is none: what is captured, which arguments turn, what a failure does."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from burnish.ir.dtypes import DType
from burnish.options import Options
from burnish.schedule.kernels import Buffer, Schedule
from burnish.tuning.excerpt import Trial
from burnish.tuning.measure import DeviceMeasure
from tests.runtime.cuda.fake_graphs import FakeCuda, FakeGraph


class FakeDevice(FakeCuda):
    """Its clock goes on by what each run of a replayed graph takes."""

    clock = 0.0  # milliseconds

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        super().install(monkeypatch)
        device = self

        class Event:
            at = 0.0

            def __init__(self, enable_timing: bool) -> None:
                assert enable_timing

            def record(self) -> None:
                self.at = device.clock

            def synchronize(self) -> None:
                pass

            def elapsed_time(self, other: Event) -> float:
                return other.at - self.at

        monkeypatch.setattr(torch.cuda, "Event", Event)
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(L2_cache_size=1 << 16))


class Run:
    """Stands for a CudaRun that takes `milliseconds`."""

    def __init__(self, device: FakeDevice, milliseconds: float, fails: Exception | None = None) -> None:
        self.device, self.milliseconds, self.fails = device, milliseconds, fails
        self.given: list[tuple[int, ...]] = []  # addresses, of the runs that are captured

    def private(self) -> Callable[[list[Any]], tuple[Any, ...]]:
        def run(args: list[torch.Tensor]) -> tuple[Any, ...]:
            if self.fails is not None:
                raise self.fails
            graph = self.device.capturing
            if graph is not None:
                self.given.append(tuple(x.data_ptr() for x in args))
                graph.steps.append(self._pass)
            return ()

        return run

    def _pass(self) -> None:
        self.device.clock += self.milliseconds


class FakeLauncher:
    """Notes what runs no more when what it loaded is unloaded."""

    def __init__(self, device: FakeDevice) -> None:
        self.device = device
        self.gone_at_close: list[bool] = []

    def apart(self) -> FakeLauncher:
        return self

    def close(self) -> None:
        self.gone_at_close = [graph.gone for graph in self.device.graphs]


@pytest.fixture(autouse=True)
def launcher(device: FakeDevice, monkeypatch: pytest.MonkeyPatch) -> FakeLauncher:
    fake = FakeLauncher(device)
    monkeypatch.setattr("burnish.tuning.measure.launcher_for", lambda *args: fake)
    return fake


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> FakeDevice:
    fake = FakeDevice()
    fake.install(monkeypatch)
    return fake


def trial() -> Trial:
    """A parameter of a quarter of the cache, what a kernel made before, and an index."""
    buffers = [
        Buffer("w", DType.f32, (64, 64), (64, 1), "input", 0),
        Buffer("x", DType.f32, (8,), (1,), "input", 1),
        Buffer("at", DType.i64, (4,), (1,), "input", 2),
    ]
    return Trial(Schedule({b.name: b for b in buffers}, [], []), frozenset({"w"}))


def measured(
    monkeypatch: pytest.MonkeyPatch, runs: list[Run | str], late: Callable[[], bool] = lambda: False
) -> list[Any]:
    measure = DeviceMeasure(torch.device("cpu"), Options())
    left = iter(runs)
    monkeypatch.setattr("burnish.tuning.measure._BUILDERS", 1)
    monkeypatch.setattr(DeviceMeasure, "_built", lambda self, trial, launcher: next(left))
    (outcomes,) = measure([[trial() for _ in runs]], late)
    return outcomes


def test_seconds_are_those_of_one_run(device: FakeDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    fast, slow, hopeless = Run(device, 0.5), Run(device, 0.75), Run(device, 40.0)
    outcomes = measured(monkeypatch, [fast, slow, hopeless])
    assert outcomes == pytest.approx([0.5e-3, 0.75e-3, 40e-3])
    graphs = {len(graph.steps): graph for graph in device.graphs}
    assert graphs and all(graph.gone for graph in device.graphs)
    assert device.graphs[0].replays == device.graphs[1].replays > 3 > device.graphs[2].replays - 1


def test_what_was_tried_does_not_stay_loaded(
    device: FakeDevice, launcher: FakeLauncher, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured(monkeypatch, [Run(device, 0.5), "too many registers", Run(device, 0.75)])
    assert launcher.gone_at_close == [True, True]  # no graph has its kernels any more


def test_parameters_turn_and_what_was_just_made_does_not(device: FakeDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    run, other = Run(device, 1.0), Run(device, 1.0)
    measured(monkeypatch, [run, other])
    w, x, at = zip(*run.given, strict=True)
    assert len(w) == len(set(w)) == 8  # together twice the cache
    assert len(set(x)) == len(set(at)) == 1
    assert run.given == other.given  # both on the same memory


def test_who_has_no_memory_is_out_of_the_race(device: FakeDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    full = torch.cuda.OutOfMemoryError("CUDA out of memory")
    outcomes = measured(monkeypatch, ["too many registers", Run(device, 1.0, full), Run(device, 2.0)])
    assert outcomes[0] == "too many registers" and "out of memory" in outcomes[1] and outcomes[2] == pytest.approx(2e-3)


def test_a_capture_that_fails_is_out_of_the_race(device: FakeDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    device.fail = RuntimeError("operation not permitted when stream is capturing")
    (outcome,) = measured(monkeypatch, [Run(device, 1.0)])
    assert "not permitted" in outcome and device.stream.name == "default"


def test_one_stream_serves_all_searches(device: FakeDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    """cuBLAS keeps a workspace for each stream that it has seen, and never gives it back."""
    monkeypatch.setattr("burnish.runtime.cuda.graphs._idle_streams", {})
    made: list[Any] = []
    new = torch.cuda.Stream
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: made.append(1) or new(device))
    for _ in range(2):
        measured(monkeypatch, [Run(device, 1.0)])
    assert len(made) == 1


def test_no_memory_for_arguments(device: FakeDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_memory(*size: Any, **settings: Any) -> torch.Tensor:
        raise torch.cuda.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(torch, "zeros", no_memory)
    (outcome,) = measured(monkeypatch, [Run(device, 1.0)])
    assert "out of memory" in outcome


def test_no_race_begins_out_of_time(device: FakeDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    assert measured(monkeypatch, [Run(device, 1.0)], lambda: True) == []
    assert not device.graphs
    asked = iter([False, False, True, True])
    measure = DeviceMeasure(torch.device("cpu"), Options())
    monkeypatch.setattr(DeviceMeasure, "_built", lambda self, trial, launcher: Run(device, 1.0))
    first, second = measure([[trial()], [trial()]], lambda: next(asked))
    assert len(first) == 1 and second == []  # what there was time for is not lost


def test_random_numbers_are_left_alone(device: FakeDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(5)
    before = torch.get_rng_state()
    measured(monkeypatch, [Run(device, 1.0)])
    assert torch.equal(before, torch.get_rng_state()) and isinstance(device.graphs[0], FakeGraph)
