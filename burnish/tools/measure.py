"""Timing candidates against each other honestly: interleaved in one process, warmed up, budgeted by time.

Machines drift (clocks, neighbours, caches), so candidates take turns in short blocks and are compared block by
block: what slows one round down slows all of its candidates. Absolute times are reported, ratios are trusted.
"""

from __future__ import annotations

import functools
import gc
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

NOISY_SPREAD = 0.05
BLOCK_SECONDS = 0.004  # a turn lasts at least this long, so that µs-sized calls do not meet cold caches every time
MIN_ROUNDS = 8


def quantile(values: Sequence[float], q: float) -> float:
    """The q-quantile with linear interpolation between the two nearest ranks."""
    ordered = sorted(values)
    if not ordered:
        raise ValueError("a quantile needs at least one value")
    place = q * (len(ordered) - 1)
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def duration(seconds: float) -> str:
    """Seconds as a person reads them."""
    if seconds < 1e-3:
        return f"{seconds * 1e6:.1f} µs"
    if seconds < 2.0:
        return f"{seconds * 1e3:.2f} ms" if seconds < 0.1 else f"{seconds * 1e3:.0f} ms"
    return f"{seconds:.2f} s"


@dataclass(frozen=True)
class Timing:
    """One candidate's calls, in seconds."""

    n: int
    mean: float
    std: float
    p50: float
    p95: float
    p99: float

    @staticmethod
    def of(samples: Sequence[float]) -> Timing:
        n = len(samples)
        mean = math.fsum(samples) / n
        variance = math.fsum((sample - mean) ** 2 for sample in samples) / max(n - 1, 1)
        p50, p95, p99 = (quantile(samples, q) for q in (0.50, 0.95, 0.99))
        return Timing(n, mean, math.sqrt(variance), p50, p95, p99)


@dataclass(frozen=True)
class Ratio:
    """How many times longer one candidate takes than another: the median over rounds, and the rounds' middle half."""

    value: float
    low: float
    high: float
    rounds: int

    @property
    def spread(self) -> float:
        return (self.high - self.low) / self.value

    @property
    def noisy(self) -> bool:
        """The rounds disagree by more than 5 %: a difference of that size proves nothing."""
        return self.spread > NOISY_SPREAD


@dataclass(frozen=True)
class Race:
    """What `interleave` measured: every candidate's call times, grouped by round."""

    rounds: Mapping[str, tuple[tuple[float, ...], ...]]
    # Where calls are asynchronous: the times until they returned, in the same grouping. Empty elsewhere.
    host: Mapping[str, tuple[tuple[float, ...], ...]] = field(default_factory=dict)
    interrupted: bool = False  # Ctrl-C: the rounds that were complete by then

    def timing(self, name: str) -> Timing:
        return Timing.of([sample for block in self.rounds[name] for sample in block])

    def ratio(self, slow: str, fast: str) -> Ratio:
        """How many times faster `fast` is than `slow` (below 1: it is slower)."""
        pairs = zip(self.rounds[slow], self.rounds[fast], strict=True)
        ratios = [quantile(one, 0.5) / quantile(other, 0.5) for one, other in pairs]
        return Ratio(quantile(ratios, 0.5), quantile(ratios, 0.25), quantile(ratios, 0.75), len(ratios))


def interleave(
    candidates: Mapping[str, Callable[[], object]],
    *,
    seconds: float,
    on_round: Callable[[float], None] | None = None,
    synchronize: Callable[[], None] | None = None,
    keep_on_interrupt: bool = False,
) -> Race:
    """Give every candidate turns until `seconds` have passed (and at least a few rounds are done).

    `on_round` is told, after each round, which fraction of the budget is used. `synchronize` waits for a device whose
    calls return before they are done; a call's time then ends after it. With `keep_on_interrupt`, Ctrl-C ends the race
    instead of the program, once there is a complete round.
    """
    take_turn = functools.partial(_turn, synchronize=synchronize)
    rounds: dict[str, list[tuple[float, ...]]] = {name: [] for name in candidates}
    host: dict[str, list[tuple[float, ...]]] = {name: [] for name in candidates}
    order = list(candidates)
    done, interrupted = 0, False
    try:
        blocks = {name: _calls_per_block(call, take_turn) for name, call in candidates.items()}  # also the warm-up
        gc.collect()
        start = time.perf_counter()
        while done < MIN_ROUNDS or time.perf_counter() - start < seconds:
            for name in order:
                samples, until_return = take_turn(candidates[name], blocks[name])
                rounds[name].append(samples)
                host[name].append(until_return)
            order = order[1:] + order[:1]  # nobody always runs after the same neighbour
            done += 1
            if on_round is not None:
                on_round(min(1.0, (time.perf_counter() - start) / seconds) if seconds > 0 else 1.0)
    except KeyboardInterrupt:
        if not keep_on_interrupt or done == 0:
            raise
        interrupted = True
    return Race(
        {name: tuple(turns[:done]) for name, turns in rounds.items()},
        {name: tuple(turns[:done]) for name, turns in host.items()} if synchronize else {},
        interrupted,
    )


Turn = Callable[[Callable[[], object], int], tuple[tuple[float, ...], tuple[float, ...]]]


def _turn(
    call: Callable[[], object], calls: int, synchronize: Callable[[], None] | None
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    if calls > 1:
        call()  # the neighbour has evicted our data: what a service in a loop sees starts with the second call
    if synchronize is None:
        return _block(call, calls), ()
    clock = time.perf_counter
    whole, until_return = [], []
    for _ in range(calls):
        synchronize()
        begin = clock()
        call()
        returned = clock()
        synchronize()
        whole.append(clock() - begin)
        until_return.append(returned - begin)
    return tuple(whole), tuple(until_return)


def _block(call: Callable[[], object], calls: int) -> tuple[float, ...]:
    clock = time.perf_counter
    samples = []
    for _ in range(calls):
        begin = clock()
        call()
        samples.append(clock() - begin)
    return tuple(samples)


def _calls_per_block(call: Callable[[], object], take_turn: Turn) -> int:
    """Warm up, and find how many calls fill a block."""
    for _ in range(2):
        call()
    (once,), _ = take_turn(call, 1)
    if once >= BLOCK_SECONDS:
        return 1
    for _ in range(math.ceil(BLOCK_SECONDS / max(once, 1e-7))):
        call()
    return math.ceil(BLOCK_SECONDS / max(min(take_turn(call, 5)[0]), 1e-7))
