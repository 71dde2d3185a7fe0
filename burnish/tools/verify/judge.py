"""Is a tensor right? Its error against float64 is judged beside eager's own, with a floor for the type's rounding.

Two measures, both relative to the tensor's size: the largest error finds one wrong element among millions, the root of
the mean square finds a small error everywhere (1 % in bfloat16, whose single roundings are nearly that large).

This is for a report: all runs are there, and each tensor gets its errors, its limit and its worst element.
`trust/referee.py` says in its head why the gate, which decides within a call, has another.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from burnish.trust.strictness import VERIFY

# (largest, root mean square) below which an error is rounding: in units of the type's spacing at 1
_FLOORS = {
    torch.float64: (2.0**19, 2.0**18),  # the referee itself rounds like this
    torch.float32: (32.0, 16.0),
    torch.float16: (2.0, 0.7),
    torch.bfloat16: (1.0, 0.35),
}
_WITHOUT_REFEREE = 64.0  # eager's own error is unknown then: this many floors
_ALL_NOISE = 10.0  # eager's error is this many times the value: that is 0, e.g. a bias's gradient before a batch norm
_NO_REFEREE = 0.01  # float32 that far from float64 means that the float64 run computed something else
_NOISE_FACTOR = 50.0
_TINY = torch.finfo(torch.float32).tiny


@dataclass(frozen=True)
class Errors:
    largest: float = 0.0
    mean: float = 0.0  # root of the mean square

    def plus(self, other: Errors, times: float = 1.0) -> Errors:
        return Errors(self.largest + times * other.largest, self.mean + times * other.mean)

    def exceeds(self, limit: Errors) -> bool:
        return not (self.largest <= limit.largest and self.mean <= limit.mean)


@dataclass(frozen=True)
class TensorVerdict:
    """One tensor of one run. `reason` is empty where it is right."""

    ok: bool
    error: Errors = Errors()
    eager: Errors = Errors()
    limit: Errors = Errors()
    reason: str = ""
    at: tuple[int, ...] = ()  # the worst element

    @property
    def times_limit(self) -> float:
        """How far beyond what is allowed: 1 is just right."""
        ratios = [
            e / max(allowed, _TINY)
            for e, allowed in ((self.error.largest, self.limit.largest), (self.error.mean, self.limit.mean))
        ]
        return max(ratios) if self.ok or self.error != Errors() else math.inf


def judge(
    candidate: torch.Tensor,
    eager: torch.Tensor,
    reference: torch.Tensor | None = None,
    again: torch.Tensor | None = None,
) -> TensorVerdict:
    """`reference` is the float64 result, `again` a second run of eager: what differs between its two is not held
    against the candidate."""
    if candidate.dtype != eager.dtype:
        return TensorVerdict(False, reason=f"type {_short(candidate.dtype)}, eager's is {_short(eager.dtype)}")
    if candidate.shape != eager.shape:
        return TensorVerdict(False, reason=f"shape {list(candidate.shape)}, eager's is {list(eager.shape)}")
    candidate, eager = _plain(candidate), _plain(eager)
    reference = None if reference is None or reference.shape != candidate.shape else _plain(reference)
    again = None if again is None or again.shape != candidate.shape else _plain(again)
    if candidate.numel() == 0:
        return TensorVerdict(True)
    if not candidate.dtype.is_floating_point:
        return _judge_exact(candidate, eager, reference, again)
    return _judge_close(candidate, eager, reference, again)


def _plain(x: torch.Tensor) -> torch.Tensor:
    x = x.detach()
    x = x.to_dense() if x.layout is not torch.strided else x
    x = torch.view_as_real(x.resolve_conj()) if x.is_complex() else x
    return x.dequantize() if x.is_quantized else x


def _judge_exact(
    candidate: torch.Tensor, eager: torch.Tensor, reference: torch.Tensor | None, again: torch.Tensor | None
) -> TensorVerdict:
    """Integers and booleans are equal or wrong. An element that float64 decides differently from eager (the larger of
    two nearly equal scores) may be either's."""
    wrong = candidate != eager
    for other in (reference, again):
        if other is not None:
            wrong &= candidate != other.to(candidate.dtype)
    count = int(wrong.sum())
    if not count:
        return TensorVerdict(True)
    share = count / candidate.numel()
    at = _first(wrong)
    told = f"{count} of {candidate.numel()} elements differ; at {list(at)}: {candidate[at].item()}"
    return TensorVerdict(False, Errors(1.0, math.sqrt(share)), reason=f"{told}, eager has {eager[at].item()}", at=at)


def _judge_close(
    candidate: torch.Tensor, eager: torch.Tensor, reference: torch.Tensor | None, again: torch.Tensor | None
) -> TensorVerdict:
    dtype = candidate.dtype
    candidate, eager = candidate.double(), eager.double()
    reference = None if reference is None else reference.double()
    again = None if again is None else again.double()
    misplaced = _misplaced(candidate, eager, reference, again)
    if misplaced is not None:
        told = f"{candidate[misplaced].item()} at {list(misplaced)}, where eager has {eager[misplaced].item()}"
        return TensorVerdict(False, reason=told, at=misplaced)
    truth = eager if reference is None else reference
    both = torch.isfinite(candidate) & torch.isfinite(truth) & torch.isfinite(eager)
    if not both.any():
        return TensorVerdict(True)
    scale = _Scale.of(truth[both])
    error, own = scale.errors((candidate - truth)[both]), scale.errors((eager - truth)[both])
    if reference is not None and dtype in (torch.float32, torch.float64) and _NO_REFEREE < own.mean < _ALL_NOISE:
        return _judge_close(candidate.to(dtype), eager.to(dtype), None, None if again is None else again.to(dtype))
    spread = Errors() if again is None else scale.errors((again - eager)[both & torch.isfinite(again)])
    limit = _limit(dtype, own, reference is not None).plus(spread, VERIFY.times_eager)
    if not error.exceeds(limit):
        return TensorVerdict(True, error, own, limit)
    at = _first((candidate - truth).abs().where(both, 0.0) == (candidate - truth)[both].abs().max())
    told = f"{candidate[at].item():.7g} at {list(at)}, eager {eager[at].item():.7g}"
    told += "" if reference is None else f", float64 {truth[at].item():.7g}"
    return TensorVerdict(False, error, own, limit, told, at)


def _limit(dtype: torch.dtype, own: Errors, refereed: bool) -> Errors:
    largest, mean = (units * torch.finfo(dtype).eps for units in _FLOORS.get(dtype, _FLOORS[torch.float32]))
    if not refereed:
        times = _WITHOUT_REFEREE if dtype in (torch.float32, torch.float64) else 4.0
        return Errors(times * largest, times * mean)
    factor = _NOISE_FACTOR if own.mean > _ALL_NOISE else VERIFY.times_eager
    return Errors(max(factor * own.largest, largest), max(factor * own.mean, mean))


@dataclass(frozen=True)
class _Scale:
    largest: float
    mean: float

    @staticmethod
    def of(truth: torch.Tensor) -> _Scale:
        return _Scale(max(truth.abs().max().item(), _TINY), max(truth.square().mean().sqrt().item(), _TINY))

    def errors(self, difference: torch.Tensor) -> Errors:
        if difference.numel() == 0:
            return Errors()
        return Errors(
            difference.abs().max().item() / self.largest, difference.square().mean().sqrt().item() / self.mean
        )


def _misplaced(
    candidate: torch.Tensor, eager: torch.Tensor, reference: torch.Tensor | None, again: torch.Tensor | None
) -> tuple[int, ...] | None:
    """Where the candidate is NaN or infinite and eager is not, or the other way round. Where eager itself overflows
    and float64 does not, or eager's two runs differ, both are right."""
    wrong = _kind(candidate) != _kind(eager)
    for other in (reference, again):
        if other is not None:
            wrong &= _kind(candidate) != _kind(other)
    return _first(wrong) if wrong.any() else None


def _kind(x: torch.Tensor) -> torch.Tensor:
    return torch.where(x.isnan(), 2.0, torch.where(x.isinf(), x.sign(), 0.0))


def _first(mask: torch.Tensor) -> tuple[int, ...]:
    return tuple(int(i) for i in mask.nonzero()[0])


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
