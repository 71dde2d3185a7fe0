"""Detects when a candidate is warm: the times of its last calls have no trend.

Caches fill, allocators grow, clocks rise, guards specialise; how many calls that takes differs from model to model.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from burnish.tools.measure import quantile

WINDOW = 5
LEAST = 2 * WINDOW  # samples; fewer say nothing about a drift
MOST = 60  # samples the drift test looks at: it compares every pair of them
TOLERANCE = 0.03  # a drift below this is not worth waiting for
SIGNIFICANT = 2.33  # standard deviations of Kendall's statistic: 1 in 100 by chance
SAMPLE_SECONDS = 1e-3  # shorter calls are timed in groups: a clock's own noise is no drift


@dataclass(frozen=True)
class WarmUp:
    """The first calls of a candidate. `calls` is how many came before it was steady; `settled` is False where it
    still drifted when the time was up."""

    samples: tuple[float, ...]  # seconds per call; short calls are timed in groups
    calls: int
    settled: bool


def warm_up(
    call: Callable[[], object],
    *,
    seconds: float,
    synchronize: Callable[[], None] = lambda: None,
    clock: Callable[[], float] = time.perf_counter,
    least: int = LEAST,
) -> WarmUp:
    """Call until the times are stationary or `seconds` have passed."""
    samples: list[float] = []
    calls_before = [0]  # each sample
    group = 1
    begin = clock()
    while True:
        start = clock()
        for _ in range(group):
            call()
        synchronize()
        took = clock() - start
        samples.append(took / group)
        calls_before.append(calls_before[-1] + group)
        if took < SAMPLE_SECONDS and len(samples) >= 3:  # the first calls are the slow ones: do not size groups by them
            group = max(group, min(4096, math.ceil(SAMPLE_SECONDS / max(took / group, 1e-7))))
        settled_at = settled_after(samples) if len(samples) >= least else None
        if settled_at is not None:
            return WarmUp(tuple(samples), calls_before[settled_at], True)
        if clock() - begin > seconds:
            return WarmUp(tuple(samples), calls_before[max(0, len(samples) - WINDOW)], False)


def until_decided(model: object, call: Callable[[], object], most: int = 64) -> None:
    """Call until a compiled object of ours is served by one engine, and no longer by turns."""
    handle = getattr(model, "burnish", None)
    for _ in range(most):
        if not getattr(handle, "is_racing", False):
            return
        call()


def settled_after(samples: Sequence[float]) -> int | None:
    """The index from which the series is stationary; None where its end still drifts.

    Stationary is an end of at least `LEAST` samples without trend. The warm-up before it ends with the first window
    whose median, and whose first sample, lie in the band of that end: one late outlier is noise, not warm-up.
    """
    tail = samples[-min(MOST, max(LEAST, len(samples) // 2)) :]
    if len(tail) < LEAST or drifts(tail):
        return None
    middle = quantile(tail, 0.5)
    deviation = 1.4826 * quantile([abs(sample - middle) for sample in tail], 0.5)
    for index in range(len(samples) - WINDOW + 1):
        window = samples[index : index + WINDOW]
        near = abs(quantile(window, 0.5) - middle) <= max(TOLERANCE * middle, 2 * deviation)
        if near and samples[index] <= middle + max(2 * TOLERANCE * middle, 4 * deviation):
            return index
    return len(samples) - len(tail)


def drifts(samples: Sequence[float]) -> bool:
    """Whether the series has a trend: Kendall's test says so, and its halves differ by more than the tolerance."""
    n = len(samples)
    half = n // 2
    first, second = quantile(samples[:half], 0.5), quantile(samples[half:], 0.5)
    if abs(first - second) <= TOLERANCE * second:
        return False
    score = sum(
        (samples[later] > samples[earlier]) - (samples[later] < samples[earlier])
        for earlier in range(n)
        for later in range(earlier + 1, n)
    )
    deviation = math.sqrt(n * (n - 1) * (2 * n + 5) / 18)
    return abs(score) > SIGNIFICANT * deviation
