"""Who decides that a result is right, and how strictly.

Everybody asks the same question: is the result further from float64 than eager's own is, beyond what another order of
the same sums explains? They differ in what a wrong answer costs, and so in how many times eager's error they allow.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Strictness:
    """`times_eager`: eager's own errors that a result may be away from float64, on average; `worst`: so many of its
    worst element's."""

    times_eager: float
    worst: float


# A call, which nobody looks at again: `referee.py`, on all elements of a result.
GATE = Strictness(1.5, 3.0)
# A test: `tests/against_eager.py`, element by element, each beside eager's worst.
TESTS = Strictness(2.0, 2.0)
# `burnish verify`, which has compared every tensor on the way and names the first that is off: `tools/verify/judge.py`.
VERIFY = Strictness(3.0, 3.0)
# A whole model's worst figure in a table: `tools/parity.py`. Engines that only sum in another order stay below 3.
BENCH = Strictness(8.0, 8.0)
