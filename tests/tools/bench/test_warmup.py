"""Where a series becomes stationary: synthetic ones with the answer known."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

import pytest

from burnish.tools.bench.warmup import LEAST, drifts, settled_after, warm_up


def steady(count: int, level: float = 1.0, noise: float = 0.01, seed: int = 0) -> list[float]:
    draw = random.Random(seed)
    return [level * draw.gauss(1.0, noise) for _ in range(count)]


def test_a_steady_series_needs_no_warm_up() -> None:
    assert settled_after(steady(20)) == 0


@pytest.mark.parametrize("slow", [1, 3, 7])
def test_slow_first_calls_are_the_warm_up(slow: int) -> None:
    series = [5.0] * slow + steady(20)
    assert settled_after(series) == slow


def test_a_slow_decline_ends_where_it_is_flat() -> None:
    series = [1.0 + 2.0 * 0.7**index for index in range(12)] + steady(30)
    found = settled_after(series)
    assert found is not None and 6 <= found <= 14


def test_one_late_outlier_is_noise() -> None:
    series = [4.0, 4.0, *steady(20)]
    series[15] = 9.0
    assert settled_after(series) == 2


def test_a_drifting_end_is_not_settled() -> None:
    assert drifts([3.0 - 0.05 * index for index in range(30)])
    assert settled_after([3.0 - 0.05 * index for index in range(30)]) is None
    assert settled_after([1.0] * (LEAST - 1)) is None, "too few to say"


@pytest.mark.parametrize("seed", range(20))
def test_noise_alone_is_hardly_ever_a_drift(seed: int) -> None:
    assert not drifts(steady(20, noise=0.02, seed=seed))


class FakeCall:
    """A call that takes the next of its times on a clock of its own."""

    def __init__(self, times: Iterator[float]) -> None:
        self.now = 0.0
        self.calls = 0
        self._times = times

    def __call__(self) -> None:
        self.calls += 1
        self.now += next(self._times)

    @property
    def clock(self) -> Callable[[], float]:
        return lambda: self.now


def test_calling_stops_when_the_times_are_steady() -> None:
    call = FakeCall(iter([8.0, 4.0, 2.0, *[1.0] * 500]))
    found = warm_up(call, seconds=1e9, clock=call.clock)
    assert found.settled and found.calls == 3
    assert call.calls < 40


def test_calling_stops_when_the_time_is_up() -> None:
    call = FakeCall(1.0 + 1000.0 * 0.97**index for index in range(10_000))
    found = warm_up(call, seconds=20_000.0, clock=call.clock)
    assert not found.settled and call.now > 20_000


def test_short_calls_are_timed_in_groups() -> None:
    call = FakeCall(iter([1e-5] * 1_000_000))
    found = warm_up(call, seconds=10.0, clock=call.clock)
    assert found.settled and found.calls == 0
    assert call.calls > 500 and all(sample == pytest.approx(1e-5) for sample in found.samples)
