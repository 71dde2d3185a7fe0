"""Where compiled code and eager draw different random numbers: compares the distributions."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from burnish.tools.verify.judge import Errors, TensorVerdict
from burnish.tools.verify.subject import Outcome, Phase, Subject
from burnish.tools.workloads import Inputs

_SEEDS = 12
_SIGMAS = 6.0  # a right model is called wrong about once in 10^8 tensors


def compare_statistics(
    subject: Subject, inputs: Inputs, phase: Phase, compiled: Callable[..., Any]
) -> dict[str, TensorVerdict]:
    eager = [subject.run(inputs, phase, seed=seed) for seed in range(_SEEDS)]
    ours = [subject.run(inputs, phase, compiled, seed=_SEEDS + seed) for seed in range(_SEEDS)]
    return {name: _judge(_stacked(ours, name), _stacked(eager, name)) for name in eager[0].tensors}


def _stacked(outcomes: list[Outcome], name: str) -> torch.Tensor:
    found = [outcome.tensors[name].double() for outcome in outcomes if name in outcome.tensors]
    return torch.stack(found) if found else torch.empty(0)


def _judge(ours: torch.Tensor, eager: torch.Tensor) -> TensorVerdict:
    if ours.shape != eager.shape:
        return TensorVerdict(False, reason=f"shape {list(ours.shape[1:])}, eager's is {list(eager.shape[1:])}")
    if eager.numel() == 0 or not bool(torch.isfinite(eager).all()):
        return TensorVerdict(True)
    size = max(eager.abs().max().item(), 1e-30)
    rounding = 1e-5 * size
    spread = eager.std(0).square().mean().sqrt().item()  # of one element over seeds
    elements = (ours.mean(0) - eager.mean(0)).square().mean().sqrt().item()
    means, eager_means = (x.flatten(1).mean(1) for x in (ours, eager))  # one number a seed: much less noisy
    whole = (means.mean() - eager_means.mean()).abs().item()
    noise = math.sqrt((means.var().item() + eager_means.var().item()) / _SEEDS)
    error, limit = Errors(elements / size, whole / size), Errors(spread / size, (_SIGMAS * noise + rounding) / size)
    if whole > _SIGMAS * noise + rounding:
        return TensorVerdict(False, error, limit=limit, reason=f"the mean over {_SEEDS} seeds is off by {whole:.3g}")
    if elements > 2 * math.sqrt(2 / _SEEDS) * spread + rounding:
        return TensorVerdict(
            False, error, limit=limit, reason=f"elements' means over {_SEEDS} seeds are off by {elements:.3g}"
        )
    ratio = ours.std(0).square().mean().sqrt().item() / max(spread, 1e-30)
    if spread > rounding and not 0.5 < ratio < 2.0:
        return TensorVerdict(
            False, error, limit=limit, reason=f"the spread over {_SEEDS} seeds is {ratio:.2f} times eager's"
        )
    return TensorVerdict(True, error, limit=limit)
