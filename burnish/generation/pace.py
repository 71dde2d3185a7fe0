"""The number of steps between two host reads of the token buffer."""

from __future__ import annotations

import time
from collections.abc import Callable

_BETWEEN_LOOKS = 0.010  # seconds: often enough for a reader, seldom enough to cost nothing
_MOST = 64


class Pace:
    """One step at first, then doubling until reads are about 10 ms apart. If steps run on the host itself, a read is
    free and steps beyond an end are not: read after every step."""

    def __init__(self, ahead: bool, clock: Callable[[], float] = time.perf_counter) -> None:
        self.ahead = ahead
        self.clock = clock
        self._steps = 1

    def steps(self, left: int) -> int:
        return min(self._steps, left)

    def took(self, seconds: float, steps: int) -> None:
        """A look came `seconds` after the one before, `steps` steps later."""
        if not self.ahead:
            return
        fitting = int(_BETWEEN_LOOKS / max(seconds / max(steps, 1), 1e-6))
        self._steps = max(1, min(2 * self._steps, fitting, _MOST))
