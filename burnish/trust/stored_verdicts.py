"""Stored verdicts of earlier processes: the same program is not tried again on the same machine with the same versions.

A verdict's key is the program's data, eager's form of the graph, burnish's own source, the options that programs depend
on, torch, Python, processor and device. Weights are not in the key. So a verdict says that this code computes eager's
results and is faster. To check the results for the current weights, the first call is compared in the sampling thread
(`Variant`).
"""

from __future__ import annotations

import dataclasses
import datetime
import hashlib
import json
import math
import time
from collections.abc import Callable
from typing import Any, Literal, NewType

from burnish.runtime.cache.store import Cache, CacheKey
from burnish.trust.record import GateStats

KIND = "verdict"
KEPT_SECONDS = 30 * 86400.0
# A fraction of eager's time. A win by less is raced again, unless there were enough rounds for an interval that
# confirms the win. With few rounds a win must be clear. Such a verdict has no ratio to show; the race of whole calls,
# which every process holds, still detects a program that is slower after all.
_CLEARLY, _WON = 0.8, 1.0
_RACES = 3  # processes in which it won, by any margin, after which it is not raced again

# graph: the full gate, comparison and race. forward, backward: the comparisons of a training step's halves.
Part = Literal["graph", "forward", "backward"]
ClassPart = NewType("ClassPart", str)  # the graph at other sizes


def class_part(size: int) -> ClassPart:
    return ClassPart(f"size class {size}")


class Verdicts:
    """The stored verdicts of one graph. `now` is a clock that processes share."""

    def __init__(
        self, cache: Cache, factors: tuple[tuple[str, str], ...], now: Callable[[], float] = time.time
    ) -> None:
        self._cache = cache
        self._factors = factors
        self._now = now

    def of_backward(self, program: bytes) -> Verdicts:
        """The backward's program is made after the forward's, or never."""
        factor = ("backward", hashlib.sha256(program).hexdigest())
        return Verdicts(self._cache, (*self._factors, factor), self._now)

    def passed(self, part: Part | ClassPart, *, compared: bool, raced: bool) -> GateStats | None:
        """The stored verdict, if it covers the requested checks and is not too old."""
        found = self._read(part)
        if found is None or (compared and found.compiled_error is None):
            return None
        return None if raced and not _was_won(found) else found

    def _read(self, part: Part | ClassPart) -> GateStats | None:
        data = self._cache.get(KIND, self._key(part))
        if data is None:
            return None
        try:
            stored = json.loads(data)
            stats, when = _as_stats(stored["gate"]), float(stored["when"])
            day = datetime.datetime.fromtimestamp(when, datetime.UTC).date().isoformat()
        except (ValueError, TypeError, KeyError, OverflowError, OSError, RecursionError):
            self._cache.discard(KIND, self._key(part))
            return None
        if not 0 <= self._now() - when < KEPT_SECONDS:
            self._cache.discard(KIND, self._key(part))
            return None
        note = f"judged by an earlier process, on {day}"
        return dataclasses.replace(stats, seconds=0.0, source="remembered", note=note)

    def keep(self, part: Part | ClassPart, stats: GateStats) -> None:
        """Store that the graph passed. A decision by a rule, or a verdict that was itself loaded, is not stored."""
        if stats.note or stats.source != "measured":
            return
        before = self._read(part)
        stats = dataclasses.replace(stats, races=before.races + 1 if before is not None else stats.races)
        self._cache.discard(KIND, self._key(part))  # the first of two writers wins, and this one is newer
        data = {"gate": dataclasses.asdict(stats), "when": self._now()}
        self._cache.put(KIND, self._key(part), json.dumps(data).encode())

    def forget(self) -> None:
        for part in ("graph", "forward", "backward", *map(class_part, range(64))):
            self._cache.discard(KIND, self._key(part))

    def _key(self, part: str) -> CacheKey:
        return CacheKey((*self._factors, ("part", part)))


def _as_stats(stored: dict[str, Any]) -> GateStats:
    """Raises ValueError, TypeError or KeyError for data that `keep` did not write."""
    for name, value in stored.items():
        number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
        if not (number or value is None or name in ("engines_us", "note", "source")):
            raise ValueError(name)
    if not all(isinstance(stored[name], int | float) for name in ("capture_us", "modules_us", "rounds", "seconds")):
        raise ValueError("not a verdict")
    engines = tuple((str(name), float(us)) for name, us in stored["engines_us"])
    return GateStats(**{**stored, "engines_us": engines, "note": "", "source": "remembered"})


def _was_won(found: GateStats) -> bool:
    if found.ratio is None:
        return False
    if found.ratio_high is None:
        return found.ratio < (_CLEARLY if found.races < _RACES else _WON)
    return found.ratio < _WON and (found.ratio_high < _WON or found.races >= _RACES)
