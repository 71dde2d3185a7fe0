"""State: how a tensor of a run on padded inputs relates to the same tensor of a run on the inputs as they are.

An axis is a number in mixed radix. Most have one digit; a view that joins batch and sequence makes an axis with two. An
element is real if each of its digits is below that digit's real extent, and the claim of a state is: real elements are
the same in both runs. Of the others, which lie in the padding, the state knows contents: one for each set of digits
that are in the padding while all others are real.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from burnish.ir.expr import Dim, Expr, Sym, floordiv, mentions, mod, of, substitute, sym, symbols
from burnish.shapes.content import UNKNOWN, Content, Need, join

Digits = tuple[Dim, ...]
Place = tuple[int, int]  # axis, digit
Region = frozenset[Place]
REAL: Region = frozenset()
_MOST_PLACES = 6


@dataclass(frozen=True)
class Refusal:
    """An operation that mixes padding into real results."""

    operation: str
    line: str
    reason: str

    def __str__(self) -> str:
        return f"{self.operation}{f' ({self.line})' if self.line else ''} {self.reason}"


@dataclass(frozen=True)
class State:
    """`axes` has an axis' digits, or None where all elements along it are the same. `mixed` says why real elements may
    differ; nothing else holds then. `position` is the value as an expression of the digits, where it is one. `given` is
    whether values in the padding depend on what the caller passes."""

    axes: tuple[Digits | None, ...]
    contents: Mapping[Region, Content] = field(default_factory=dict)
    needs: frozenset[Need] = frozenset()
    mixed: tuple[Refusal, ...] = ()
    position: Dim | None = None
    given: bool = False

    def at(self, region: Region) -> Content:
        return self.contents.get(region, UNKNOWN)

    def within(self, region: Region, axis_to: Mapping[int, int] | None = None) -> Content:
        """The content where a result is in `region`: of places that this state has no digits for it is independent.
        `axis_to` has this state's axis for one of the result's."""
        at = frozenset(
            (axis, digit)
            for out, digit in region
            if (axis := out if axis_to is None else axis_to.get(out, -1)) >= 0 and self.axes[axis] is not None
        )
        return self.at(at)

    @property
    def whole(self) -> Content:
        """Of real elements and padding alike."""
        return UNKNOWN if self.mixed or not self.contents else join(self.contents.values())


class Padding:
    """The symbols that are padded, and what is asked about sizes made of them."""

    def __init__(self, names: Mapping[str, str]) -> None:
        self.labels = dict(names)
        self.names = frozenset(names)

    def is_padded(self, size: Dim) -> bool:
        return mentions(size, self.names)

    def label(self, size: Dim) -> str:
        """The dimensions that a size is made of, as the caller named them."""
        found = dict.fromkeys(self.labels[s.name] for s in symbols(size) if s.name in self.names)
        return " and ".join(found)

    def places(self, axes: Sequence[Digits | None]) -> tuple[Place, ...]:
        return tuple(
            (a, d) for a, digits in enumerate(axes) for d, extent in enumerate(digits or ()) if self.is_padded(extent)
        )

    def regions(self, axes: Sequence[Digits | None]) -> list[Region]:
        """Every set of digits that may be in the padding at once; the first is none."""
        places = self.places(axes)
        return [frozenset(c) for n in range(len(places) + 1) for c in itertools.combinations(places, n)]

    def too_many(self, axes: Sequence[Digits | None]) -> bool:
        return len(self.places(axes)) > _MOST_PLACES

    def canonical(self, digits: Digits) -> Digits:
        """Digits that are not padded join the one before them, which changes no element's place."""
        out: list[Dim] = [digits[0]]
        for extent in digits[1:]:
            if self.is_padded(extent):
                out.append(extent)
            else:
                out[-1] = out[-1] * extent
        return tuple(out)

    def is_linear(self, axis: Digits | None, extent: Dim) -> bool:
        """Whether an axis is real up to its real extent, and padding from there."""
        return axis is not None and (len(axis) == 1 or not self.is_padded(extent))

    def joined(self, all_axes: Iterable[Sequence[Digits | None]]) -> tuple[Digits | None, ...] | None:
        """The axes of operands of one shape; None where they do not fit."""
        out: list[Digits | None] = []
        for axes in zip(*all_axes, strict=True):
            found = {a for a in axes if a is not None and any(map(self.is_padded, a))}
            if len(found) > 1:
                return None
            out.append(found.pop() if found else next((a for a in axes if a is not None), None))
        return tuple(out)


def digit_name(axis: int, digit: int) -> str:
    return f"a{axis}.{digit}"


def digit_symbols(axis: int, digits: Digits) -> tuple[Expr, ...]:
    return tuple(sym(digit_name(axis, d), 0, extent - 1) for d, extent in enumerate(digits))


def value_of(digits: Digits, places: Sequence[Dim]) -> Dim:
    """The index along an axis that its digits are."""
    total: Dim = 0
    for extent, at in zip(digits, places, strict=True):
        total = total * extent + at
    return total


def digits_of(index: Dim, digits: Digits) -> tuple[Dim, ...]:
    """The digits of an index."""
    found: list[Dim] = []
    for extent in reversed(digits[1:]):
        found.append(mod(index, extent))
        index = floordiv(index, extent)
    return (index, *reversed(found))


def beyond(index: Dim, axes: Sequence[Digits | None], region: Region) -> Dim:
    """An index with the digits of a region in the padding: each is its real extent and something more."""
    env: dict[str, Dim] = {}
    for axis, digit in region:
        digits = axes[axis]
        assert digits is not None
        name = digit_name(axis, digit)
        env[name] = digits[digit] + of(Sym(f"{name}+", 0))
    return substitute(index, env)
