"""How long calls take, counted in buckets: a few hundred ns per call, and nothing at all unless asked for."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from time import perf_counter_ns
from typing import Any

from burnish.stats import LatencyStats

# A factor of two apart, from 1 us (less than the cheapest call) to 67 s.
BOUNDS_NS: tuple[int, ...] = tuple(1000 << power for power in range(27))
BOUNDS_SECONDS: tuple[float, ...] = tuple(bound / 1e9 for bound in BOUNDS_NS)


class Histogram:
    """Counts of one variant's calls by one engine. No lock: CPython switches threads at calls and at loops' ends,
    and there is neither between an increment's read and its write."""

    __slots__ = ("__weakref__", "counts", "engine", "total_ns", "variant")

    def __init__(self, variant: str, engine: str) -> None:
        self.variant = variant
        self.engine = engine
        self.counts = [0] * (len(BOUNDS_NS) + 1)
        self.total_ns = 0

    def observe(self, nanoseconds: int) -> None:
        bucket = bisect_left(BOUNDS_NS, nanoseconds)
        self.counts[bucket] += 1
        self.total_ns += nanoseconds

    def timed(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """`call`, with the host time of each call that returns counted. (A GPU may still be at work then.)"""
        clock, counts, bounds, find = perf_counter_ns, self.counts, BOUNDS_NS, bisect_left

        def run(*args: Any) -> Any:
            begin = clock()
            result = call(*args)
            took = clock() - begin
            bucket = find(bounds, took)
            counts[bucket] += 1
            self.total_ns += took
            return result

        return run

    def snapshot(self) -> LatencyStats:
        counts = tuple(self.counts)
        return LatencyStats(self.variant, self.engine, sum(counts), self.total_ns / 1e9, BOUNDS_SECONDS, counts)
