"""The confidence interval of a ratio of times: its median over rounds, and an interval that contains the true median 15
times out of 16.

The interval makes no assumption about the distribution of times. Its ends are two of the rounds, so the binomial
distribution gives the probability that the true median is outside. With fewer rounds than `ENOUGH` there is no
interval.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

ENOUGH = 5  # rounds: all five are on the same side of the true median with probability 1/16
_OUTSIDE = 2.0 ** (1 - ENOUGH)


@dataclass(frozen=True)
class Interval:
    """The interval of a ratio's median."""

    low: float
    median: float
    high: float
    rounds: int

    @staticmethod
    def of(values: Sequence[float]) -> Interval | None:
        """None: too few to say."""
        if len(values) < ENOUGH:
            return None
        ordered = sorted(values)
        rank = _rank(len(ordered))
        return Interval(ordered[rank], median(ordered), ordered[-1 - rank], len(ordered))


def median(values: Sequence[float]) -> float:
    ordered, middle = sorted(values), len(values) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


def _rank(n: int) -> int:
    """The number of values at each end that lie outside the interval."""
    below, rank = 2.0**-n, 0  # the probability that at most `rank` of n are below the true median
    while True:
        more = below + math.comb(n, rank + 1) * 2.0**-n
        if 2 * more > _OUTSIDE:
            return rank
        below, rank = more, rank + 1


def said(ratio: float | None, low: float | None, high: float | None, rounds: int) -> str:
    """The speed-up over eager in words, with its interval, or the reason why there is none."""
    if not rounds:
        return ""
    if ratio is None or low is None or high is None:
        return f"{rounds} round{'s' if rounds > 1 else ''}, not enough for a ratio"
    return f"{1 / ratio:.2f} x eager's speed ({1 / high:.2f} to {1 / low:.2f}, {rounds} rounds)"
