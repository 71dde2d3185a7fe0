"""The allowed error of a right result, for each judge.

All judges use the same rule: the result's distance from float64 may exceed eager's own by as much as another order of
the same sums explains. They differ in the cost of a wrong verdict, and so in the allowed multiple of eager's error.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Strictness:
    """`times_eager`: the allowed mean distance from float64, as a multiple of eager's; `worst`: the same for the worst
    element."""

    times_eager: float
    worst: float


# A call, whose result is not checked again: `referee.py`, on all elements of a result.
GATE = Strictness(1.5, 3.0)
# A test: `tests/against_eager.py`, element by element, each beside eager's worst.
TESTS = Strictness(2.0, 2.0)
# `burnish verify`, which compares every intermediate tensor and names the first wrong one: `tools/verify/judge.py`.
VERIFY = Strictness(3.0, 3.0)
# A whole model's worst figure in a table: `tools/parity.py`. Engines that only sum in another order stay below 3.
BENCH = Strictness(8.0, 8.0)
