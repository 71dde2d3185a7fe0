"""Optimal bucket boundaries for a histogram of sizes.

A call of size s is padded to the smallest boundary that is at least s. The cost of a plan is the cost of every call at
its padded size, plus a cost for each bucket (its compile). For one dimension, dynamic programming over the sizes that
occur finds the optimum: an optimal boundary is always one of them. For several dimensions the buckets form a grid, and
a cap limits the number of its cells. One dimension is then found by dynamic programming for each choice of the others'
boundaries. If there are too many such choices, the dimensions are optimised in turn, from several starts.
"""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch

Sizes = tuple[int, ...]
Histogram = Mapping[Sizes, float]  # the sizes of a call -> how many calls
Cost = Callable[[Sizes], float]  # of one call
Boundaries = tuple[tuple[int, ...], ...]  # of each dimension, ascending

MOST_CHOICES = 256  # choices of all dimensions but one that are tried exhaustively
_ROUNDS = 8  # of optimising the dimensions in turn


def elements(sizes: Sizes) -> float:
    """The linear cost: the number of elements."""
    return float(math.prod(sizes))


@dataclass(frozen=True)
class Plan:
    """Boundaries of each dimension. `cost` is what the optimisation found for its histogram."""

    boundaries: Boundaries
    cost: float = 0.0

    @property
    def cells(self) -> int:
        return math.prod(map(len, self.boundaries))

    def bucket(self, sizes: Sizes) -> Sizes | None:
        """The sizes to which a call is padded; None if it is larger than every bucket. Sizes 0 and 1 stay as they are,
        because a dimension of size 1 broadcasts."""
        found = tuple(map(fit, sizes, self.boundaries))
        return None if None in found else found  # type: ignore[return-value]

    def waste(self, histogram: Histogram, cost: Cost = elements) -> float:
        """The share of the padded calls' cost that is padding, for calls that have a bucket."""
        useful = padded = 0.0
        for sizes, count in histogram.items():
            if (bucket := self.bucket(sizes)) is not None:
                useful += count * cost(sizes)
                padded += count * cost(bucket)
        return 1.0 - useful / padded if padded else 0.0

    def __str__(self) -> str:
        return " x ".join("[" + ", ".join(map(str, each)) + "]" for each in self.boundaries)


def fit(size: int, boundaries: Sequence[int]) -> int | None:
    """The smallest boundary that is at least `size`."""
    if size <= 1:
        return size
    position = bisect.bisect_left(boundaries, size)
    return boundaries[position] if position < len(boundaries) else None


def plan(
    histogram: Histogram,
    cap: int,
    *,
    cost: Cost = elements,
    per_bucket: float = 0.0,
    most: Sequence[int | None] | None = None,
    given: Mapping[int, tuple[int, ...]] | None = None,
) -> Plan:
    """The cheapest grid of at most `cap` buckets for these calls, with at most `most` in each dimension, and the
    `given` boundaries of some. Calls beyond these are left out, as are those with a size of 0; every other call has a
    bucket. Size 1 has one of its own, also if that exceeds the cap."""
    given = given or {}
    counts = {sizes: count for sizes, count in histogram.items() if count > 0 and _has_bucket(sizes, given)}
    if not counts:
        return Plan(())
    calls = _Calls(counts, _remembered(cost), per_bucket, most)
    free = [d for d in range(calls.dimensions) if d not in given]
    if not free:
        return calls.priced(given)
    cap = max(cap, math.prod(len(given[d]) if d in given else calls.least(d) for d in range(calls.dimensions)))
    last = max(free, key=lambda d: len(calls.sizes[d]))
    others = [d for d in free if d != last]
    choices = math.prod(1 << (len(calls.sizes[d]) - 1) for d in others)
    if choices <= MOST_CHOICES:
        room = cap // math.prod(map(len, given.values()))
        kept = (dict(zip(others, choice, strict=True)) for choice in calls.choices(others, room, calls.least(last)))
        return min((calls.best(last, {**given, **each}, cap) for each in kept), key=lambda each: each.cost)
    return min(_in_turn(calls, cap, free, given), key=lambda each: each.cost)


def _has_bucket(sizes: Sizes, given: Mapping[int, tuple[int, ...]]) -> bool:
    return min(sizes, default=1) > 0 and all(sizes[d] <= boundaries[-1] for d, boundaries in given.items())


def _in_turn(calls: _Calls, cap: int, free: Sequence[int], given: Mapping[int, tuple[int, ...]]) -> Iterator[Plan]:
    """Optimise one dimension at a time, while the others stay, until nothing changes."""
    for first in range(len(free)):
        kept: dict[int, tuple[int, ...]] = {**{d: tuple(calls.smallest(d)) for d in free}, **given}
        best = calls.priced(kept)
        order = [free[(first + k) % len(free)] for k in range(len(free))]
        for share in (1.0, 0.5, 0.25):  # of the cap, for the first dimension: the rest is left to the others
            for step in range(_ROUNDS):
                before = best.cost
                for d in order:
                    rest = {other: kept[other] for other in kept if other != d}
                    allowed = max(1, int(cap * share)) if step == 0 and d == order[0] else cap
                    found = calls.best(d, rest, allowed)
                    kept = dict(enumerate(found.boundaries))
                    best = min(best, found, key=lambda each: each.cost)
                if best.cost >= before and step:
                    break
        yield best


class _Calls:
    """A histogram, prepared for the search."""

    def __init__(
        self, counts: Histogram, cost: Cost, per_bucket: float, most: Sequence[int | None] | None = None
    ) -> None:
        self._counts = counts
        self._cost = cost
        self._per_bucket = per_bucket
        self.dimensions = len(next(iter(counts)))
        self.sizes = [sorted({sizes[d] for sizes in counts}) for d in range(self.dimensions)]
        self._most = most or (None,) * self.dimensions

    def least(self, d: int) -> int:
        """The fewest buckets of a dimension: size 1 is not padded."""
        return 1 + (self.sizes[d][0] == 1 and len(self.sizes[d]) > 1)

    def smallest(self, d: int) -> tuple[int, ...]:
        return self.sizes[d][-1:] if self.least(d) == 1 else (1, self.sizes[d][-1])  # type: ignore[return-value]

    def allowed(self, d: int, cap: int) -> int:
        most = self._most[d]
        return max(self.least(d), min(cap, cap if most is None else most - 1 + self.least(d)))

    def choices(self, dimensions: Sequence[int], cap: int, rest: int) -> Iterator[tuple[tuple[int, ...], ...]]:
        """All boundaries of these dimensions that a cap allows, with `rest` buckets of another one. The largest size is
        always one."""
        each = [self._subsets(d, self.allowed(d, cap)) for d in dimensions]
        for choice in itertools.product(*each):
            if math.prod(map(len, choice)) * rest <= cap:
                yield choice

    def priced(self, kept: Mapping[int, tuple[int, ...]]) -> Plan:
        boundaries = tuple(kept[d] for d in range(self.dimensions))
        cells = math.prod(map(len, boundaries))
        total = sum(
            count * self._cost(tuple(_above(s, b) for s, b in zip(sizes, boundaries, strict=True)))
            for sizes, count in self._counts.items()
        )
        return Plan(boundaries, total + self._per_bucket * cells)

    def best(self, d: int, kept: Mapping[int, tuple[int, ...]], cap: int) -> Plan:
        """The optimal boundaries of dimension `d`, where the others are `kept`."""
        sizes, rows = self.sizes[d], list(itertools.product(*(kept[other] for other in sorted(kept))))
        waste = self._segments(d, kept, rows)
        most = min(len(sizes), self.allowed(d, cap // max(1, len(rows))))
        reached = waste[0].clone()  # [j]: the calls up to size j in one bucket
        came: list[torch.Tensor] = []
        found: tuple[float, int] = (float(reached[-1]) + self._per_bucket * len(rows), 1)  # cost, buckets
        for buckets in range(2, most + 1):
            # The last bucket holds the sizes i..j, and those before i have one bucket less.
            ends = torch.cat([torch.full((1,), math.inf, dtype=torch.float64), reached[:-1]])
            reached, origin = (ends[:, None] + waste).min(0)
            came.append(origin)
            priced = float(reached[-1]) + self._per_bucket * len(rows) * buckets
            if priced < found[0]:
                found = priced, buckets
        boundaries = _traced_back(sizes, came[: found[1] - 1])
        every = {**kept, d: boundaries}
        return Plan(tuple(every[each] for each in range(self.dimensions)), found[0])

    def _segments(self, d: int, kept: Mapping[int, tuple[int, ...]], rows: Sequence[Sizes]) -> torch.Tensor:
        """[i, j]: the cost of the calls whose sizes in dimension `d` are the i-th to the j-th, all padded to the
        j-th; infinite for i > j."""
        sizes = self.sizes[d]
        index = {size: n for n, size in enumerate(sizes)}
        row_of = {row: n for n, row in enumerate(rows)}
        others = sorted(kept)
        counts = torch.zeros(len(rows), len(sizes) + 1, dtype=torch.float64)
        for key, count in self._counts.items():
            row = tuple(_above(key[other], kept[other]) for other in others)
            counts[row_of[row], index[key[d]] + 1] += count
        below = counts.cumsum(1)  # [row, j]: calls of the first j sizes
        prices = torch.tensor(
            [[self._cost(_joined(row, others, d, size)) for size in sizes] for row in rows], dtype=torch.float64
        )
        within = below[:, None, 1:] - below[:, :-1, None]  # [row, i, j]
        total = (within * prices[:, None, :]).sum(0)
        possible = torch.ones_like(total, dtype=torch.bool).triu()
        if sizes[0] == 1:
            possible[0, 1:] = False
        return torch.where(possible, total, math.inf)

    def _subsets(self, d: int, cap: int) -> list[tuple[int, ...]]:
        forced, sizes = set(self.smallest(d)), self.sizes[d]
        rest = [size for size in sizes if size not in forced]
        most = min(len(rest), cap - len(forced))
        return [tuple(sorted((*forced, *kept))) for n in range(most + 1) for kept in itertools.combinations(rest, n)]


def _traced_back(sizes: Sequence[int], came: Sequence[torch.Tensor]) -> tuple[int, ...]:
    boundaries, end = [sizes[-1]], len(sizes) - 1
    for origin in reversed(came):
        end = int(origin[end]) - 1
        boundaries.append(sizes[end])
    return tuple(reversed(boundaries))


def _above(size: int, boundaries: Sequence[int]) -> int:
    return boundaries[bisect.bisect_left(boundaries, size)]


def _joined(row: Sizes, others: Sequence[int], d: int, size: int) -> Sizes:
    every = {**dict(zip(others, row, strict=True)), d: size}
    return tuple(every[each] for each in range(len(every)))


def _remembered(cost: Cost) -> Cost:
    """`cost`, computed once for each size, without values that are not finite or below 0."""
    known: dict[Sizes, float] = {}

    def priced(sizes: Sizes) -> float:
        value = known.get(sizes)
        if value is None:
            value = cost(sizes)
            known[sizes] = value = value if math.isfinite(value) and value >= 0 else elements(sizes)
        return value

    return priced


@dataclass(frozen=True)
class MeasuredCost:
    """Seconds of a call by its sizes: measured at some sizes, else in proportion to the elements of the nearest."""

    seconds: Mapping[Sizes, float]

    def __call__(self, sizes: Sizes) -> float:
        if (known := self.seconds.get(sizes)) is not None:
            return known
        if not self.seconds:
            return elements(sizes)
        wanted = max(elements(sizes), 1.0)
        near = min(self.seconds, key=lambda each: abs(math.log(max(elements(each), 1.0) / wanted)))
        return self.seconds[near] * wanted / max(elements(near), 1.0)
