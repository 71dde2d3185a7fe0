"""Traffic: the sizes of calls, counted online, read from a trace file, or drawn from a distribution."""

from __future__ import annotations

import json
import math
import random
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from burnish.errors import BadDistribution, BadTrace

Sizes = tuple[int, ...]
Request = Mapping[str, int]  # the name of a dimension -> its size in one call

_MOST_SIZES = 1024  # different sizes that a histogram holds
_WINDOW = 8192.0  # calls after which older ones count half


class SizeHistogram:
    """Counts of size tuples. It is bounded in memory, and old calls fade, so that it follows traffic that drifts."""

    def __init__(self, most: int = _MOST_SIZES, window: float = _WINDOW) -> None:
        self._most = most
        self._window = window
        self._counts: dict[Sizes, float] = {}
        self._total = 0.0
        self._lock = threading.Lock()
        self.calls = 0

    def add(self, sizes: Sizes) -> None:
        with self._lock:
            self.calls += 1
            self._total += 1.0
            self._counts[sizes] = self._counts.get(sizes, 0.0) + 1.0
            if self._total > self._window:
                self._fade()
            if len(self._counts) > self._most:
                self._drop()

    def _fade(self) -> None:
        self._counts = {sizes: count / 2 for sizes, count in self._counts.items() if count >= 0.25}
        self._total = sum(self._counts.values())

    def _drop(self) -> None:
        """The rarest quarter; the largest sizes stay, because a plan must have a bucket for them."""
        largest = {max(self._counts, key=lambda sizes: sizes[d]) for d in range(len(next(iter(self._counts))))}
        kept = sorted(self._counts, key=lambda sizes: (sizes in largest, self._counts[sizes]), reverse=True)
        self._counts = {sizes: self._counts[sizes] for sizes in kept[: max(1, self._most * 3 // 4)]}
        self._total = sum(self._counts.values())

    def counts(self) -> dict[Sizes, float]:
        with self._lock:
            return dict(self._counts)


# -- a trace file -------------------------------------------------------------------------------------------------


def read_trace(path: Path | str) -> list[dict[str, int]]:
    """A JSON list with one entry for each call: a dict of the sizes of its dimensions, by name."""
    try:
        data = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise BadTrace(str(path), f"it cannot be read: {error.strerror or error}") from error
    except ValueError as error:
        raise BadTrace(str(path), f"it is not JSON: {error}") from error
    return checked_trace(data, str(path))


def checked_trace(data: object, name: str = "the trace") -> list[dict[str, int]]:
    if not isinstance(data, list) or not data:
        raise BadTrace(name, "it must be a list with at least one entry")
    names = None
    for n, entry in enumerate(data):
        if not isinstance(entry, Mapping) or not entry:
            raise BadTrace(name, f"entry {n} is not a dict of sizes")
        for key, size in entry.items():
            if not isinstance(key, str) or isinstance(size, bool) or not isinstance(size, int) or size < 0:
                raise BadTrace(name, f"entry {n} has {key!r}: {size!r}, which is no size")
        names = names or sorted(entry)
        if sorted(entry) != names:
            raise BadTrace(name, f"entry {n} has the dimensions {sorted(entry)}, the first has {names}")
    return [dict(entry) for entry in data]


def write_trace(path: Path | str, requests: Iterable[Request]) -> None:
    Path(path).write_text(json.dumps([dict(each) for each in requests]) + "\n", encoding="utf-8")


# -- distributions ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Distribution:
    """Sizes from `low` to `high`. `lognormal`: 95 % of the draws are within the range before they are clipped to it,
    and its geometric mean is the median. `zipf`: small sizes are frequent."""

    kind: str
    low: int
    high: int

    def draw(self, random_numbers: random.Random) -> int:
        if self.low == self.high or self.kind == "constant":
            return self.low
        if self.kind == "uniform":
            return random_numbers.randint(self.low, self.high)
        if self.kind == "zipf":
            span = self.high - self.low + 1
            return min(self.low + int(span ** random_numbers.random()) - 1, self.high)
        low, high = math.log(max(self.low, 0.5)), math.log(self.high)
        drawn = random_numbers.lognormvariate((low + high) / 2, (high - low) / 4)
        return min(max(round(drawn), self.low), self.high)

    def __str__(self) -> str:
        return str(self.low) if self.kind == "constant" else f"{self.kind}:{self.low}-{self.high}"


KINDS = ("lognormal", "uniform", "zipf", "constant")


def distribution(text: str) -> Distribution:
    """`lognormal:8-512`, `uniform:1-8`, `1-8` (uniform), `16` (constant)."""
    kind, colon, span = text.strip().partition(":")
    if not colon:
        kind, span = ("uniform" if "-" in kind else "constant"), kind
    low, dash, high = span.partition("-")
    if kind not in KINDS or not low.isdigit() or (dash and not high.isdigit()) or (kind != "constant" and not dash):
        raise BadDistribution(text, KINDS)
    ends = int(low), int(high) if dash else int(low)
    if ends[0] > ends[1]:
        raise BadDistribution(text, KINDS)
    return Distribution(kind, *ends)


def distributions(text: str, default: str = "sequence") -> dict[str, Distribution]:
    """`lognormal:8-512,batch=1-8`: the part without a name is the dimension `default`."""
    found: dict[str, Distribution] = {}
    for part in text.split(","):
        name, equals, rest = part.partition("=")
        name, rest = (name.strip(), rest) if equals else (default, part)
        if name in found or not name:
            raise BadDistribution(text, KINDS)
        found[name] = distribution(rest)
    return found


def drawn(text: str, requests: int, seed: int = 0) -> list[dict[str, int]]:
    """A trace of so many requests, the same for the same seed."""
    parts, numbers = distributions(text), random.Random(seed)
    return [{name: each.draw(numbers) for name, each in parts.items()} for _ in range(requests)]


def counted(requests: Sequence[Request], names: Sequence[str]) -> dict[Sizes, float]:
    """The histogram of a trace over these dimensions."""
    counts: dict[Sizes, float] = {}
    for request in requests:
        sizes = tuple(request[name] for name in names)
        counts[sizes] = counts.get(sizes, 0.0) + 1.0
    return counts
