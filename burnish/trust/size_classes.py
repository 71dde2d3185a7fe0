"""Which engine serves which sizes of a graph whose sizes are symbols: what was raced at size 4 says nothing of 20,000.

The work of a call is measured by the product of the symbols that it binds. Work is put into classes of a factor of two;
a race at one of them speaks for its neighbours, too, so for a factor of at most four. The first call of a class that no
race speaks for is raced. After `MOST` races the nearest one speaks for whatever comes.

All that a call pays for this is to find its class in a list.
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
    """Of one variant. `unjudged` is called, in the place of what serves, where no race speaks for a call's class."""

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
        """What a race at `size` has decided."""
        self._raced[size] = serve, engine, gate
        self._table[size] = serve
        for near in (size - 1, size + 1):
            if 0 <= near < _CLASSES and not self.knows(near):
                self._table[near] = serve

    def follow_nearest(self, size: int) -> None:
        """Without a race: as in the class that is most like it."""
        nearest = min(self._raced, key=lambda raced: abs(raced - size))
        self._table[size] = self._raced[nearest][0]

    def clear(self) -> None:
        self._raced.clear()
        self._table[:] = [self._unjudged] * _CLASSES

    def serve_by(self, served_by: Callable[[Engine], Boxed]) -> None:
        """Have each engine that serves any class served in another way."""
        ways = {id(serve): served_by(engine) for serve, engine, _ in self._raced.values()}
        self._table[:] = [ways.get(id(serve), serve) for serve in self._table]
        self._raced = {size: (ways[id(serve)], engine, gate) for size, (serve, engine, gate) in self._raced.items()}

    def engine_of(self, args: Sequence[Any]) -> Engine | None:
        """What serves such a call; None where no race speaks for it."""
        serve = self._table[self.of(args)]
        return next((engine for raced, engine, _ in self._raced.values() if raced is serve), None)

    def engines(self) -> set[Engine]:
        return {engine for _, engine, _ in self._raced.values()}

    def serving(self, size: int) -> Boxed:
        return self._table[size]

    def found(self, size: int) -> SizeClass:
        """What a race there has found."""
        _, engine, gate = self._raced[size]
        return SizeClass(1 << size >> 1, engine, gate)

    def stats(self) -> tuple[SizeClass, ...]:
        return tuple(self.found(size) for size in sorted(self._raced))
