"""Quantiles, ratios and turn-taking."""

from __future__ import annotations

import statistics
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from burnish.tools.measure import MIN_ROUNDS, Race, Ratio, Timing, duration, interleave, quantile


def test_quantiles_interpolate_between_ranks() -> None:
    assert quantile([4, 1, 3, 2], 0.5) == 2.5
    assert quantile([10, 20], 0.99) == pytest.approx(19.9)
    assert quantile([7], 0.95) == 7
    with pytest.raises(ValueError, match="at least one"):
        quantile([], 0.5)


@given(st.lists(st.floats(1e-6, 1e3), min_size=2, max_size=50))
def test_timing_agrees_with_the_standard_library(samples: list[float]) -> None:
    timing = Timing.of(samples)
    assert timing.n == len(samples)
    assert timing.mean == pytest.approx(statistics.fmean(samples))
    assert timing.std == pytest.approx(statistics.stdev(samples), abs=1e-9)
    assert timing.p50 == pytest.approx(statistics.median(samples))
    assert min(samples) <= timing.p50 <= timing.p95 <= timing.p99 <= max(samples)


def test_ratio_is_paired_by_round_so_drift_cancels() -> None:
    drift = [1.0, 2.0, 4.0, 8.0]  # the machine slows down eightfold; the ratio must not notice
    race = Race({"eager": tuple((3.0 * d,) for d in drift), "ours": tuple((2.0 * d,) for d in drift)})
    ratio = race.ratio("eager", "ours")
    assert ratio.value == pytest.approx(1.5)
    assert ratio.spread == pytest.approx(0.0) and not ratio.noisy
    assert ratio.rounds == 4


def test_spread_over_five_percent_is_flagged() -> None:
    assert Ratio(1.0, 0.96, 1.02, 10).noisy
    assert not Ratio(1.0, 0.98, 1.02, 10).noisy


def test_interleave_takes_turns() -> None:
    order: list[str] = []
    calls = {name: lambda name=name: (order.append(name), time.sleep(0.005)) for name in ("a", "b", "c")}
    heard: list[float] = []
    race = interleave(calls, seconds=0.3, on_round=heard.append)
    rounds = len(race.rounds["a"])
    assert rounds >= MIN_ROUNDS and {len(blocks) for blocks in race.rounds.values()} == {rounds}
    assert heard == sorted(heard) and len(heard) == rounds
    assert race.timing("a").p50 >= 0.005
    raced = order[-3 * rounds :]  # calls this long are a block each
    assert raced[:9] == list("abcbcacab"), "the order must rotate"


def test_short_calls_run_in_blocks() -> None:
    race = interleave({"tiny": lambda: None}, seconds=0.05)
    assert len(race.rounds["tiny"][0]) > 100


def test_durations_read_well() -> None:
    assert [duration(s) for s in (2.5e-5, 3.21e-3, 0.25, 6.8)] == ["25.0 µs", "3.21 ms", "250 ms", "6.80 s"]
