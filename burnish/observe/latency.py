"""Latency histograms of calls: about 300 ns per call if enabled, otherwise no cost."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter_ns
from typing import Any

from burnish.stats import LatencyStats

# Powers of two, so that an integer's length in bits says its bucket: from 1 us, less than any call, to 69 s.
_LOWEST, _HIGHEST = 10, 36
BOUNDS_NS: tuple[int, ...] = tuple(1 << power for power in range(_LOWEST, _HIGHEST + 1))
BOUNDS_SECONDS: tuple[float, ...] = tuple(bound / 1e9 for bound in BOUNDS_NS)


class Histogram:
    """Counts of one variant's calls by one engine. No lock: CPython switches threads at calls and at loops' ends,
    and there is neither between an increment's read and its write."""

    __slots__ = ("__weakref__", "_by_length", "engine", "total_ns", "variant")

    def __init__(self, variant: str, engine: str) -> None:
        self.variant = variant
        self.engine = engine
        self.total_ns = 0
        self._by_length = [0] * 64  # [k] calls took at most 2**k ns, and more than 2**(k-1)

    def observe(self, nanoseconds: int) -> None:
        length = (nanoseconds - 1).bit_length()
        self._by_length[length] += 1
        self.total_ns += nanoseconds

    def timed(self, call: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """`call`, with the host time of each call that returns counted. (A GPU may still be at work then.)"""
        clock, by_length = perf_counter_ns, self._by_length

        def run(argument: Any) -> Any:
            begin = clock()
            result = call(argument)
            took = clock() - begin
            length = (took - 1).bit_length()
            by_length[length] += 1
            self.total_ns += took
            return result

        return run

    def snapshot(self) -> LatencyStats:
        found = self._by_length
        counts = (sum(found[: _LOWEST + 1]), *found[_LOWEST + 1 : _HIGHEST + 1], sum(found[_HIGHEST + 1 :]))
        return LatencyStats(self.variant, self.engine, sum(counts), self.total_ns / 1e9, BOUNDS_SECONDS, counts)
