"""Content: what is known of the numbers in one part of a tensor: an interval, and whether NaN may be among them.

A content may rely on facts that the program does not guarantee (`Need`): that no number overflows, that a mask leaves
something visible. It carries them, so that a proof names exactly what it used.
"""

from __future__ import annotations

import functools
import math
import sys
from collections.abc import Iterable
from dataclasses import dataclass, replace

import torch

from burnish.ir.dtypes import DType

Number = bool | int | float
LARGEST = sys.float_info.max
# exp of this or less is 0 in every type: float64's least positive number is above exp(-746).
VANISHES = -1000.0
# Added to scores by masks that do not use an infinity. Scores themselves are far smaller.
MASKED = -1e4


@dataclass(frozen=True)
class Need:
    """A fact that a proof relies on and the caller has to guarantee."""

    kind: str  # fill | finite | unseen | unmasked | bounded | size
    text: str

    def __str__(self) -> str:
        return self.text


FINITE = Need(
    "finite",
    "inputs and weights hold no infinity and no NaN, and nothing overflows: what is computed in the padding is "
    "multiplied by zero, or masked, which only finite numbers survive",
)
UNMASKED = Need("unmasked", "every row of real attention scores has one that no mask hides")
_NONE: frozenset[Need] = frozenset()


@dataclass(frozen=True)
class Content:
    """Numbers between `low` and `high`, and NaN if `nan`. With `bits`, a single number is known with its sign: 0.0 is
    not -0.0."""

    low: Number
    high: Number
    nan: bool = False
    bits: bool = False
    needs: frozenset[Need] = _NONE

    def __str__(self) -> str:
        if self == UNKNOWN:
            return "what may be infinite or NaN"
        if (self.low, self.high) == (-LARGEST, LARGEST):
            return "numbers or NaN" if self.nan else "numbers that are not known"
        span = str(self.low) if self.low == self.high else f"{self.low}..{self.high}"
        return f"{span} or NaN" if self.nan else span

    @property
    def is_finite(self) -> bool:
        return not self.nan and -math.inf < self.low and self.high < math.inf

    @property
    def is_exact(self) -> bool:
        return not self.nan and self.low == self.high

    def holds(self, value: Number) -> bool:
        """Whether this is one number, and which."""
        return self.is_exact and self.low == value

    def relying(self, *needs: Need) -> Content:
        return replace(self, needs=self.needs | frozenset(needs)) if needs else self


UNKNOWN = Content(-math.inf, math.inf, True)
TRUTH = Content(0, 1)
FINITE_NUMBERS = Content(-LARGEST, LARGEST, needs=frozenset({FINITE}))


@functools.lru_cache(maxsize=4096)
def exact(value: Number, dtype: DType) -> Content:
    """One number, as a tensor of the type holds it."""
    held = torch.tensor(value, dtype=dtype.torch).item()
    if isinstance(held, float) and math.isnan(held):
        return Content(math.inf, -math.inf, True)
    return Content(held, held, bits=True)


def anything(dtype: DType | None) -> Content:
    """Whatever the type can hold."""
    if dtype is None or dtype.is_float:
        return UNKNOWN
    return TRUTH if dtype is DType.bool else Content(*dtype.range)


def real(dtype: DType | None) -> Content:
    """What is assumed of real numbers: floats are finite, which is a need."""
    if dtype is not None and dtype.is_float:
        return FINITE_NUMBERS
    return anything(dtype)


def join(parts: Iterable[Content]) -> Content:
    first, *rest = parts
    for part in rest:
        first = _joined(first, part)
    return first


def _joined(a: Content, b: Content) -> Content:
    if a == b:
        return a
    bits = a.bits and b.bits and a.low == b.low and a.high == b.high and _sign(a.low) == _sign(b.low)
    return Content(min(a.low, b.low), max(a.high, b.high), a.nan or b.nan, bits, a.needs | b.needs)


def _sign(x: Number) -> float:
    return math.copysign(1, x)


def of_tensor(x: torch.Tensor, dtype: DType | None) -> Content:
    """A constant's numbers."""
    if dtype is None or x.numel() == 0 or x.numel() > 1 << 20:
        return anything(dtype)
    if x.dtype.is_floating_point and bool(x.isnan().any()):
        return UNKNOWN
    low, high = x.min().item(), x.max().item()
    return Content(low, high, bits=(low == high and low != 0) or not x.dtype.is_floating_point)


def below(mask: Content) -> Need:
    """That a number added to scores hides them."""
    return Need("unmasked", f"no attention score reaches {-float(mask.high) / 2:.4g}, half of what hides the padding")
