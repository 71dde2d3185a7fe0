"""Latencies and speed-ups with bootstrap intervals.

Neighbouring calls are correlated, so the bootstrap draws whole rounds, not single calls: an interval that assumes
independent calls would be several times too narrow.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from burnish.tools.measure import Timing, quantile

DRAWS = 400
MOST_SAMPLES = 16_384  # per candidate; more would take seconds and change nothing
MEANINGFUL = 0.02  # a smaller difference is not worth a sentence, however sure it is
NOISY_SPREAD = 0.05

Rounds = Sequence[Sequence[float]]


@dataclass(frozen=True)
class Estimate:
    """A number with its 95 % interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Latency:
    """One candidate's calls, in seconds. `spread` is the middle half of the rounds' medians, over the median."""

    n: int
    rounds: int
    mean: Estimate
    std: float
    p50: Estimate
    p95: Estimate
    p99: Estimate
    spread: float

    @property
    def noisy(self) -> bool:
        return self.spread > NOISY_SPREAD


@dataclass(frozen=True)
class Speedup:
    """How many times faster one candidate is than another: the median of the rounds' ratios and its interval."""

    value: float
    low: float
    high: float
    middle: tuple[float, float]  # the middle half of the rounds' ratios
    rounds: int

    @property
    def spread(self) -> float:
        return (self.middle[1] - self.middle[0]) / self.value

    @property
    def noisy(self) -> bool:
        return self.spread > NOISY_SPREAD

    @property
    def is_faster(self) -> bool:
        """Beyond noise, and by enough to matter."""
        return self.low > 1.0 and self.value > 1 + MEANINGFUL

    @property
    def is_slower(self) -> bool:
        return self.high < 1.0 and self.value < 1 / (1 + MEANINGFUL)


def latency_of(rounds: Rounds, seed: int = 0) -> Latency:
    samples = [sample for block in rounds for sample in block]
    timing = Timing.of(samples)
    medians = [quantile(block, 0.5) for block in rounds]
    table = _table(rounds)

    def estimate(value: float, of_row: Callable[[torch.Tensor], torch.Tensor]) -> Estimate:
        return Estimate(value, *_interval(table, of_row, seed))

    return Latency(
        n=timing.n,
        rounds=len(rounds),
        mean=estimate(timing.mean, lambda rows: rows.mean(dim=1)),
        std=timing.std,
        p50=estimate(timing.p50, lambda rows: _row_quantile(rows, 0.50)),
        p95=estimate(timing.p95, lambda rows: _row_quantile(rows, 0.95)),
        p99=estimate(timing.p99, lambda rows: _row_quantile(rows, 0.99)),
        spread=_middle_half(medians),
    )


def estimate_of(rounds: Rounds, seed: int = 0) -> Estimate:
    """The median of all calls with its interval."""
    samples = [sample for block in rounds for sample in block]
    interval = _interval(_table(rounds), lambda rows: _row_quantile(rows, 0.5), seed)
    return Estimate(quantile(samples, 0.5), *interval)


def speedup_of(slow: Rounds, fast: Rounds, seed: int = 0) -> Speedup:
    """How many times faster `fast` is than `slow`. Paired by round: what slows a round down slows both."""
    ratios = [quantile(one, 0.5) / quantile(other, 0.5) for one, other in zip(slow, fast, strict=True)]
    table = torch.tensor(ratios, dtype=torch.float64).reshape(-1, 1)
    low, high = _interval(table, lambda rows: _row_quantile(rows, 0.5), seed)
    middle = (quantile(ratios, 0.25), quantile(ratios, 0.75))
    return Speedup(quantile(ratios, 0.5), low, high, middle, len(ratios))


def thinned(rounds: Rounds, most: int) -> tuple[float, ...]:
    """At most about `most` samples, evenly taken, in the order they were measured."""
    samples = [sample for block in rounds for sample in block]
    step = max(1, math.ceil(len(samples) / most))
    return tuple(float(f"{sample:.4g}") for sample in samples[::step])


def _middle_half(values: Sequence[float]) -> float:
    return (quantile(values, 0.75) - quantile(values, 0.25)) / quantile(values, 0.5)


def _table(rounds: Rounds) -> torch.Tensor:
    """Rounds as rows. Every round of a race has as many calls; those beyond the limit are left out evenly."""
    per_round = min(len(block) for block in rounds)
    step = max(1, math.ceil(per_round * len(rounds) / MOST_SAMPLES))
    return torch.tensor([list(block[:per_round:step]) for block in rounds], dtype=torch.float64)


def _interval(table: torch.Tensor, of_row: Callable[[torch.Tensor], torch.Tensor], seed: int) -> tuple[float, float]:
    """The middle 95 % of a statistic over draws of as many rounds as there are."""
    count = table.shape[0]
    generator = torch.Generator().manual_seed(seed)
    values = []
    for _ in range(0, DRAWS, 50):  # in parts, so that the largest race fits in some MiB
        picks = torch.randint(count, (50, count), generator=generator)
        values += of_row(table[picks].reshape(50, -1)).tolist()
    return quantile(values, 0.025), quantile(values, 0.975)


def _row_quantile(rows: torch.Tensor, q: float) -> torch.Tensor:
    ordered = rows.sort(dim=1).values
    place = q * (rows.shape[1] - 1)
    low = math.floor(place)
    high = min(low + 1, rows.shape[1] - 1)
    return ordered[:, low] + (ordered[:, high] - ordered[:, low]) * (place - low)
