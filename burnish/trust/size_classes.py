"""Selects the engine for each class of sizes of a graph with symbolic sizes: a race at size 4 does not predict size
20,000.

The work of a call is the product of the symbols that it binds. Work is divided into classes of a factor of two. A race
at one class also decides for its neighbours, so for a factor of at most four. The first call of a class that no race
covers is raced. After `MOST` races, the nearest race decides for all other classes.

The only cost per call is to look up its class in a list.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from burnish.trust.record import Engine, GateStats, SizeClass

Boxed = Callable[[list[Any]], Any]

MOST = 12  # races of one variant
_CLASSES = 64  # by the number of bits; sizes fit into as many


class SizeClasses:
    """The size classes of one variant. `unjudged` serves a call whose class no race covers."""

    def __init__(self, positions: Sequence[int], unjudged: Boxed) -> None:
        self._positions = tuple(positions)  # of the graph's inputs that are its symbols
        self._unjudged = unjudged
        self._table: list[Boxed] = [unjudged] * _CLASSES
        self._raced: dict[int, tuple[Boxed, Engine, GateStats | None]] = {}
        self.serve = self._make_serve()

    def _make_serve(self) -> Boxed:
        table, positions = self._table, self._positions
        if len(positions) == 1:
            (only,) = positions
            return lambda boxed: table[boxed[only].bit_length()](boxed)
        return lambda boxed: table[min(math.prod([boxed[i] for i in positions]).bit_length(), _CLASSES - 1)](boxed)

    def of(self, args: Sequence[Any]) -> int:
        """The class of a call."""
        return min(math.prod(args[i] for i in self._positions).bit_length(), _CLASSES - 1)

    def knows(self, size: int) -> bool:
        return self._table[size] is not self._unjudged

    @property
    def is_full(self) -> bool:
        return len(self._raced) >= MOST

    def put(self, size: int, serve: Boxed, engine: Engine, gate: GateStats | None) -> None:
        """Record the result of a race at `size`."""
        self._raced[size] = serve, engine, gate
        self._table[size] = serve
        for near in (size - 1, size + 1):
            if 0 <= near < _CLASSES and not self.knows(near):
                self._table[near] = serve

    def follow_nearest(self, size: int) -> None:
        """Without a race: use the engine of the most similar class."""
        nearest = min(self._raced, key=lambda raced: abs(raced - size))
        self._table[size] = self._raced[nearest][0]

    def clear(self) -> None:
        self._raced.clear()
        self._table[:] = [self._unjudged] * _CLASSES

    def serve_by(self, served_by: Callable[[Engine], Boxed]) -> None:
        """Replace the serving function of each engine that serves any class."""
        ways = {id(serve): served_by(engine) for serve, engine, _ in self._raced.values()}
        self._table[:] = [ways.get(id(serve), serve) for serve in self._table]
        self._raced = {size: (ways[id(serve)], engine, gate) for size, (serve, engine, gate) in self._raced.items()}

    def engine_of(self, args: Sequence[Any]) -> Engine | None:
        """The engine for such a call; None if no race covers it."""
        serve = self._table[self.of(args)]
        return next((engine for raced, engine, _ in self._raced.values() if raced is serve), None)

    def engines(self) -> set[Engine]:
        return {engine for _, engine, _ in self._raced.values()}

    def serving(self, size: int) -> Boxed:
        return self._table[size]

    def found(self, size: int) -> SizeClass:
        """The result of the race for this class."""
        _, engine, gate = self._raced[size]
        return SizeClass(1 << size >> 1, engine, gate)

    def stats(self) -> tuple[SizeClass, ...]:
        return tuple(self.found(size) for size in sorted(self._raced))
