"""Intervals cover what they promise, and pairing by round cancels drift."""

from __future__ import annotations

import random
import statistics

import pytest

from burnish.tools.bench.statistics import latency_of, speedup_of, thinned
from tests.tools.bench.results import rounds_of


def test_the_interval_of_the_median_covers_the_truth() -> None:
    """Of 100 experiments about 95 intervals hold the true median; fewer than 85 is one in millions."""
    covered = 0
    for seed in range(100):
        draw = random.Random(seed)
        samples = [[draw.lognormvariate(0.0, 0.3)] for _ in range(40)]
        estimate = latency_of(samples, seed=seed).p50
        covered += estimate.low <= 1.0 <= estimate.high
    assert 85 <= covered <= 100


def test_calls_of_one_round_are_not_taken_for_independent() -> None:
    """Rounds differ, calls in a round do not: the interval must be as wide as the rounds make it."""
    draw = random.Random(3)
    levels = [draw.gauss(1.0, 0.1) for _ in range(30)]
    few = latency_of([[level] for level in levels]).mean
    many = latency_of([[level] * 50 for level in levels]).mean
    assert many.high - many.low == pytest.approx(few.high - few.low, rel=0.05)


def test_latency_agrees_with_the_standard_library() -> None:
    rounds = rounds_of(0.01)
    samples = [sample for block in rounds for sample in block]
    latency = latency_of(rounds)
    assert latency.n == len(samples) and latency.rounds == len(rounds)
    assert latency.mean.value == pytest.approx(statistics.fmean(samples))
    assert latency.std == pytest.approx(statistics.stdev(samples))
    assert latency.p50.low <= latency.p50.value <= latency.p50.high
    assert latency.p50.value <= latency.p95.value <= latency.p99.value


def test_a_spread_over_five_percent_is_noisy() -> None:
    assert not latency_of(rounds_of(0.01, noise=0.01)).noisy
    assert latency_of(rounds_of(0.01, noise=0.1)).noisy


def test_a_speedup_ignores_what_slows_both() -> None:
    drift = [1.0 + index / 10 for index in range(20)]
    speedup = speedup_of([[3.0 * d] for d in drift], [[2.0 * d] for d in drift])
    assert speedup.value == pytest.approx(1.5) and speedup.spread == pytest.approx(0.0)
    assert speedup.is_faster and not speedup.is_slower and not speedup.noisy


def test_no_difference_is_neither_faster_nor_slower() -> None:
    speedup = speedup_of(rounds_of(0.1, noise=0.05, seed=1), rounds_of(0.1, noise=0.05, seed=2))
    assert speedup.low < 1.0 < speedup.high
    assert not speedup.is_faster and not speedup.is_slower


def test_a_sure_but_tiny_difference_does_not_count() -> None:
    speedup = speedup_of([[1.01]] * 50, [[1.0]] * 50)
    assert speedup.low > 1.0 and not speedup.is_faster


def test_thinning_keeps_order_and_number() -> None:
    kept = thinned([[float(index)] for index in range(1000)], 100)
    assert len(kept) == 100 and list(kept) == sorted(kept)


def test_the_largest_race_is_summarised_in_time() -> None:
    latency = latency_of([[1.0 + (index % 7) / 100] * 200 for index in range(600)])
    assert latency.n == 120_000 and latency.p50.low <= latency.p50.value <= latency.p50.high
