"""Passes over a row: a reduction's result is known only after a pass, so its readers belong to the next one."""

from __future__ import annotations

from burnish.ir.body import Apply, Instr, Load, Loop, Reduced, Store, instr_args
from burnish.ir.scalar import SCALAR_OPS


class Phases:
    """Which values each pass over a loop's rows computes."""

    def __init__(self, loop: Loop) -> None:
        self.body = loop.body
        self.level = loop.element_level()
        self.ready = self._ready_phases()
        self.last = max(self.ready, default=0)

    def _ready_phases(self) -> list[int]:
        """The number of passes that must be over before a value can be computed."""
        ready: list[int] = []
        for i in self.body:
            known = max((ready[a] for a in instr_args(i)), default=0)
            ready.append(known + 1 if isinstance(i, Reduced) else known)
        return ready

    def reductions(self, phase: int) -> list[int]:
        return [n for n, i in enumerate(self.body) if isinstance(i, Reduced) and self.ready[n] == phase + 1]

    def element_stores(self, phase: int) -> list[int]:
        return [n for n, i in enumerate(self.body) if isinstance(i, Store) and self.level[n] and self.ready[n] == phase]

    def row_values(self, phase: int) -> list[int]:
        return [
            n for n, i in enumerate(self.body)
            if not self.level[n] and not isinstance(i, Reduced) and self.ready[n] == phase
        ]  # fmt: skip

    def needed(self, roots: list[int], stop: set[int]) -> list[int]:
        """Element-level values a pass computes for `roots`; those in `stop` are already available."""
        seen: set[int] = set()
        stack = list(roots)
        while stack:
            n = stack.pop()
            if n in seen:
                continue
            seen.add(n)
            if n not in stop or n in roots:
                stack.extend(a for a in instr_args(self.body[n]) if self.level[a])
        return sorted(seen)

    def pass_roots(self, phase: int) -> list[int]:
        args = [self.body[n].arg for n in self.reductions(phase)]  # type: ignore[union-attr]
        return [a for a in args if self.level[a]] + self.element_stores(phase)

    def full_cost(self, value: int) -> int:
        return sum(cost(self.body[n]) for n in self.needed([value], set()))


def cost(i: Instr) -> int:
    """Scalar work of one instruction, in units of one add."""
    if isinstance(i, Apply):
        return SCALAR_OPS[i.fn].cost
    return 1 if isinstance(i, Load | Store | Reduced) else 0
