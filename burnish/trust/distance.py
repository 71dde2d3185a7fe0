"""The distance between two tensors, measured in chunks so that it takes little memory.

All gradients together are as large as their model. `distance` compares two existing tensors. `Nearness` compares
results with eager's, which arrive once, in chunks and in any order, and are never held whole.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from burnish.trust.strictness import GATE

# The relative distance that rounding explains: a unit in the last place for half types, another order of sums for other
# types.
FLOOR = {torch.float64: 1e-11, torch.float32: 1e-5, torch.float16: 1e-3, torch.bfloat16: 4e-3}
FLOOR |= {torch.complex128: 1e-11, torch.complex64: 1e-5}
_OTHER_FLOOR = 6e-2  # eight-bit floats
_WORST_FLOORS = 8.0  # the worst element may be this many floors away
_TINY = torch.finfo(torch.float32).tiny
# Elements compared in one operation. On a CPU: few enough that the operation stays in one thread and in its cache,
# because waiting for other threads takes long on a busy machine. On a GPU: enough that launch time does not matter.
_CHUNK, _DEVICE_CHUNK = 1 << 15, 1 << 24


@dataclass(frozen=True)
class Distance:
    """`rms` and `worst` are relative to the values' size; `lost` counts elements that should be finite and are not; for
    exact values it counts unequal elements."""

    rms: float
    worst: float
    lost: int
    floor: float

    def within(self, floors: float) -> bool:
        return not self.lost and self.rms <= floors * self.floor and self.worst <= _WORST_FLOORS * floors * self.floor

    def is_as_good_as(self, eagers: Distance) -> bool:
        return (
            self.lost <= 2 * eagers.lost
            and self.rms <= max(GATE.times_eager * eagers.rms, self.floor)
            and self.worst <= max(GATE.worst * eagers.worst, _WORST_FLOORS * self.floor)
        )

    def at_least(self, other: Distance) -> Distance:
        return Distance(max(self.rms, other.rms), max(self.worst, other.worst), max(self.lost, other.lost), self.floor)

    def beside(self, eagers: Distance | None) -> str:
        if self.lost:
            what = "has NaNs or infinities" if self.floor else "differs"
            return f"{what} in {self.lost} elements where eager has none"
        of_eager = f", eager's own is {eagers.rms:.2g}" if eagers else " from eager"
        return f"is off by {self.rms:.2g} of its size{of_eager}"


def distance(candidate: torch.Tensor, truth: torch.Tensor, like: torch.Tensor) -> Distance:
    """`like` is eager's result: `truth` may be in float64."""
    so_far = _Sums(like.dtype, _size(truth) if _is_rounded(like.dtype) else 0.0)
    so_far.add(candidate, truth, like)
    return so_far.distance()


def unequal(ours: torch.Tensor, theirs: torch.Tensor, signs: bool) -> int:
    """The number of elements of exact results that differ. All NaNs are equal. `signs`: the signs of zeros count."""
    count = 0
    for a, b in _chunks(ours.detach(), theirs.detach()):
        a, b = _readable(a), _readable(b)
        differs = a != b
        if a.is_floating_point():
            differs &= ~((a != a) & (b != b))
            if signs:
                differs |= (a.signbit() != b.signbit()) & (a == a)
        count += int(differs.sum())
    return count


class Nearness:
    """Compares results with eager's. The worst element is relative to the size of our values; if that size differs from
    eager's, the mean distance shows it."""

    def __init__(self, ours: Sequence[Any]) -> None:
        self._ours = ours
        self._sums: dict[int, _Sums] = {}
        self._spread: dict[int, _Sums] = {}
        self.unlike = ""  # errors that need no distance (a wrong type or shape)

    def see(self, index: int, theirs: Any, dim: int = 0, start: int | None = None, again: Any = None) -> None:
        """Take eager's result or, with `start`, the chunk of it from there on along `dim`. `again` is the same from a
        second run, which shows how far eager itself may be off."""
        ours = self._ours[index]
        if not isinstance(ours, torch.Tensor) and not isinstance(theirs, torch.Tensor):
            return
        if not isinstance(ours, torch.Tensor) or not isinstance(theirs, torch.Tensor) or ours.dtype != theirs.dtype:
            self.unlike = self.unlike or f"result {index} is {_kind(ours)}, eager's is {_kind(theirs)}"
            return
        part = ours if start is None else ours.narrow(dim, start, theirs.shape[dim])
        if part.shape != theirs.shape:
            self.unlike = self.unlike or f"result {index} is {list(ours.shape)}, eager's is {list(theirs.shape)}"
            return
        if index not in self._sums:
            size = _size(ours) if _is_rounded(ours.dtype) else 0.0
            self._sums[index], self._spread[index] = _Sums(ours.dtype, size), _Sums(ours.dtype, size)
        self._sums[index].add(part, theirs, theirs, roughly=True)
        if isinstance(again, torch.Tensor):
            self._spread[index].add(again, theirs, theirs)

    def distances(self) -> list[Distance]:
        return [so_far.distance() for so_far in self._sums.values()]

    def spreads(self) -> list[Distance]:
        """The distance of eager's results from those of the second run."""
        return [so_far.distance() for so_far in self._spread.values()]

    @property
    def is_complete(self) -> bool:
        """Whether every element of every result was compared."""
        seen = {index: so_far.count for index, so_far in self._sums.items()}
        return not self.unlike and seen == {
            index: ours.numel() for index, ours in enumerate(self._ours) if isinstance(ours, torch.Tensor)
        }


def _kind(value: Any) -> str:
    return f"{value.dtype} {list(value.shape)}" if isinstance(value, torch.Tensor) else f"a {type(value).__name__}"


def _is_rounded(kind: torch.dtype) -> bool:
    return kind.is_floating_point or kind.is_complex


class _Sums:
    """Running sums over the chunks of two tensors so far. `size` is the magnitude of a typical element."""

    def __init__(self, kind: torch.dtype, size: float) -> None:
        self._is_rounded = _is_rounded(kind)
        self._floor = FLOOR.get(kind, _OTHER_FLOOR) if self._is_rounded else 0.0
        self._size = max(size, _TINY)
        self._apart = self._truth = self._worst = 0.0  # squares of the first two
        self._finite = self._lost = self.count = 0

    def add(self, candidate: torch.Tensor, truth: torch.Tensor, like: torch.Tensor, roughly: bool = False) -> None:
        """`roughly`: an upper bound suffices for the worst element, if even that is near enough."""
        self.count += truth.numel()
        wide = torch.promote_types(_wide(candidate.dtype), _wide(truth.dtype))
        for ours, exact, theirs in _chunks(candidate.detach(), truth.detach(), like.detach()):
            if self._is_rounded:
                self._add_numbers(ours.to(wide), exact.to(wide), _readable(theirs), roughly)
            else:
                self._lost += int((ours != exact).sum())

    def _add_numbers(self, candidate: torch.Tensor, truth: torch.Tensor, like: torch.Tensor, roughly: bool) -> None:
        apart = candidate - truth
        squares = _square_sum(apart)
        if not math.isfinite(squares):
            wanted = truth.isfinite() & like.isfinite()
            self._lost += int((wanted & ~candidate.isfinite()).sum())
            both = wanted & candidate.isfinite()  # an overflow in eager is not our error
            apart, truth = apart[both], truth[both]
            if truth.numel() == 0:
                return
            squares = _square_sum(apart)
        self._finite += truth.numel()
        self._apart += squares
        self._truth += _square_sum(truth)
        self._worst = max(self._worst, self._worst_of(apart, truth, roughly))

    def _worst_of(self, apart: torch.Tensor, truth: torch.Tensor, roughly: bool) -> float:
        if apart.is_complex():
            apart = apart.abs()
        if roughly and (most := _most(apart) / self._size) <= _WORST_FLOORS * self._floor:
            return most
        return float(apart.abs_().div_(truth.abs().add_(self._size)).max())

    def distance(self) -> Distance:
        if not self._finite:
            return Distance(0.0, 0.0, self._lost, self._floor)
        size = max(math.sqrt(self._truth / self._finite), _TINY)
        return Distance(math.sqrt(self._apart / self._finite) / size, self._worst, self._lost, self._floor)


def _size(values: torch.Tensor) -> float:
    """The root mean square of the finite elements."""
    total, count = 0.0, values.numel()
    for (chunk,) in _chunks(values.detach()):
        wide = chunk.to(_wide(chunk.dtype))
        squares = _square_sum(wide)
        if not math.isfinite(squares):
            wide = wide[wide.isfinite()]
            count -= chunk.numel() - wide.numel()
            squares = _square_sum(wide)
        total += squares
    return math.sqrt(total / count) if count else 0.0


def _wide(kind: torch.dtype) -> torch.dtype:
    """The type to measure in. torch does not promote eight-bit floats."""
    return torch.float32 if _is_eight_bit_float(kind) else torch.promote_types(kind, torch.float32)


def _readable(chunk: torch.Tensor) -> torch.Tensor:
    """The same values in a type that supports comparison."""
    return chunk.float() if _is_eight_bit_float(chunk.dtype) else chunk


def _is_eight_bit_float(kind: torch.dtype) -> bool:
    return kind.is_floating_point and kind.itemsize == 1


def _most(values: torch.Tensor) -> float:
    low, high = torch.aminmax(values)
    return max(-float(low), float(high))


def _square_sum(values: torch.Tensor) -> float:
    """The sum for one chunk: a float32 sum of many millions of squares would be off by percents. It may overflow to
    infinity for very large finite values."""
    norm = float(torch.linalg.vector_norm(values))
    return norm * norm


def _chunks(*tensors: torch.Tensor) -> Iterator[tuple[torch.Tensor, ...]]:
    """Corresponding chunks of tensors of the same shape."""
    first = tensors[0]
    most = _CHUNK if first.device.type == "cpu" else _DEVICE_CHUNK
    if first.numel() <= most:
        if first.numel():
            yield tensors
    elif all(tensor.is_contiguous() for tensor in tensors):
        yield from zip(*(tensor.view(-1).split(most) for tensor in tensors), strict=True)
    else:
        rows = max(1, most * first.shape[0] // first.numel())
        yield from zip(*(tensor.split(rows) for tensor in tensors), strict=True)
