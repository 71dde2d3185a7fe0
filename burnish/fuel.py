"""Fuel: the number of optimisation steps that one compile may take, each with a name."""

from __future__ import annotations


class Fuel:
    """A budget of optimisation steps. A bisection over it finds a miscompile: the step that takes the last unit is the
    culprit.

    `spent` names every step taken, so that the culprit has a name (`burnish verify` does the bisection)."""

    def __init__(self, units: int | None = None) -> None:
        self.left = units
        self.spent: list[str] = []

    @property
    def last(self) -> str:
        return self.spent[-1] if self.spent else ""

    def spend(self, what: str) -> bool:
        if self.left is not None:
            if self.left <= 0:
                return False
            self.left -= 1
        self.spent.append(what)
        return True
