"""How far from float64 is a whole target? One figure for each engine, for `bench`, `explain`, `doctor` and benchmarks.

Every run starts from the same state: the model's buffers and attributes, its inputs, and all random generators. The
float64 run is given the random numbers that eager drew. An engine that draws others by design (Inductor, unless it is
told to fall back) is not compared, and the answer says so.

What decides tensor by tensor is `tools/verify/judge.py`, and in the midst of a call `trust/referee.py`.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from burnish.tools.draws import RecordDraws, ReplayDraws
from burnish.tools.float64 import float64_everywhere
from burnish.tools.model_state import State, own_copy
from burnish.tools.random_state import generators, same_draws
from burnish.tools.targets import Target
from burnish.trust.strictness import BENCH

OTHER_DRAWS = "draws random numbers of its own: not compared"
NOT_REPEATABLE = "eager's results differ from run to run: not compared"
NO_REFEREE = "the target cannot run in float64: not compared"
_LEAST = 1e-6  # as an error
_TINY = 1e-3  # of the largest value in any of a step's tensors
_ROUNDINGS = 64  # of the coarsest type, between two runs of eager on a device that adds up in any order ...
_WIDEST = 0.01  # ... but no more than this


@dataclass(frozen=True)
class Run:
    """The tensors one step left behind: outputs and, for a training step, gradients."""

    tensors: list[torch.Tensor]
    generators: tuple[Any, ...]  # where the random generators stood afterwards
    drew: bool  # whether one moved


@dataclass(frozen=True)
class Compared:
    """An engine's error against float64; None with the reason where there is none."""

    error: float | None
    reason: str = ""


class Trials:
    """Runs of a target, or of a compiled version over the same state, of which none sees another's traces."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._state = State.of(_module(target.model), weights=False)

    def run(self, model: Callable[..., Any] | None = None, record: RecordDraws | None = None) -> Run:
        target = dataclasses.replace(self._target, inputs=own_copy(self._target.inputs))
        self._state.restore()
        try:
            with same_draws(), record or contextlib.nullcontext():
                start = generators()
                tensors = left_behind(target, model)
                end = generators()
            return Run(tensors, end, start != end or self._state.drew())
        finally:
            self._state.restore()

    def in_float64(self) -> list[torch.Tensor]:
        """What the target computes in float64, with the random numbers that eager draws. Raises where it cannot."""
        recorder = RecordDraws()
        drew = self.run(record=recorder).drew
        model, method = self._target.model, getattr(self._target.model, "__func__", None)
        module = _module(model)
        if module is not None:
            wide = copy.deepcopy(module).double()
            model = wide if module is model or method is None else method.__get__(wide)
        target = dataclasses.replace(self._target, model=model, inputs=_double(own_copy(self._target.inputs)))
        with same_draws(), float64_everywhere(), ReplayDraws(recorder.drawn) if drew else contextlib.nullcontext():
            return left_behind(target)


def compare(
    target: Target, models: Mapping[str, Callable[..., Any]], own_draws: Container[str] = ()
) -> dict[str, Compared]:
    """Each model's error on the target. `own_draws` names those that may draw other random numbers than eager."""
    trials = Trials(target)
    eager, again = trials.run(), trials.run()
    if relative_error(again.tensors, eager.tensors) > _spread(eager.tensors):
        return dict.fromkeys(models, Compared(None, NOT_REPEATABLE))
    try:
        truth = trials.in_float64()
        limit = BENCH.times_eager * max(relative_error(eager.tensors, truth), _LEAST)
    except Exception:  # e.g. a function that closes over float32 tensors, or an op without a float64 kernel
        return dict.fromkeys(models, Compared(None, NO_REFEREE))

    def compared(name: str, model: Callable[..., Any]) -> Compared:
        run = trials.run(model)
        error = relative_error(run.tensors, truth)
        others = run.generators != eager.generators or name in own_draws
        return Compared(None, OTHER_DRAWS) if eager.drew and others and not error <= limit else Compared(error)

    return {name: compared(name, model) for name, model in models.items()}


def float64_errors(target: Target, models: Mapping[str, Callable[..., Any]]) -> dict[str, float | None]:
    """Each model's error on the target; None where it cannot be compared."""
    return {name: found.error for name, found in compare(target, models).items()}


def reference(target: Target) -> list[torch.Tensor]:
    """What the target computes in float64: its outputs and, for a training step, its gradients."""
    return Trials(target).in_float64()


def outcome(target: Target, model: Callable[..., Any] | None = None) -> list[torch.Tensor]:
    """The same of the target itself or a compiled version of it."""
    return Trials(target).run(model).tensors


def left_behind(target: Target, model: Callable[..., Any] | None = None) -> list[torch.Tensor]:
    """One step, from whatever state the model and the generators are in, and the tensors it leaves behind."""
    model = target.model if model is None else model
    with target.grad_mode():
        found = list(tensors_in(target.step(model)()))
    if target.kind == "train" and isinstance(model, torch.nn.Module):
        found += [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    return [tensor.detach().clone() for tensor in found]


def _module(model: Callable[..., Any]) -> torch.nn.Module | None:
    owner = model if isinstance(model, torch.nn.Module) else getattr(model, "__self__", None)
    return owner if isinstance(owner, torch.nn.Module) else None


def _spread(tensors: Sequence[torch.Tensor]) -> float:
    """What two runs may differ by without a random number: sums in another order."""
    types = [tensor.dtype for tensor in tensors if tensor.is_floating_point() and tensor.dtype.itemsize > 1]
    return min(_ROUNDINGS * max((torch.finfo(dtype).eps for dtype in types), default=0.0), _WIDEST)


def relative_error(candidate: Sequence[torch.Tensor], truth: Sequence[torch.Tensor]) -> float:
    """The largest absolute error over the largest absolute value, of the worst tensor. What is tiny beside the others
    is measured by them: a gradient that is zero but for rounding would be all error."""
    if len(candidate) != len(truth):
        raise ValueError(f"{len(candidate)} tensors to compare with {len(truth)}")
    scales = [_scale(tensor) for tensor in truth]
    least = max(_TINY * max(scales, default=0.0), torch.finfo(torch.float32).tiny)
    pairs = zip(candidate, truth, scales, strict=True)
    return max((_tensor_error(one, other, max(scale, least)) for one, other, scale in pairs), default=0.0)


def _scale(truth: torch.Tensor) -> float:
    finite = truth[torch.isfinite(truth)] if truth.is_floating_point() else truth[:0]
    return finite.abs().max().item() if finite.numel() else 0.0


def _tensor_error(candidate: torch.Tensor, truth: torch.Tensor, scale: float) -> float:
    if candidate.shape != truth.shape:
        raise ValueError(f"shape {tuple(candidate.shape)} to compare with {tuple(truth.shape)}")
    if candidate.numel() == 0:
        return 0.0
    if not truth.is_floating_point():
        return 0.0 if torch.equal(candidate, truth) else float("inf")
    candidate = candidate.to(truth.dtype)
    finite = torch.isfinite(truth)
    if not torch.isclose(candidate[~finite], truth[~finite], equal_nan=True).all():
        return float("inf")
    worst = (candidate - truth)[finite].abs().max().item() if finite.any() else 0.0
    return float("inf") if worst != worst else worst / scale


def tensors_in(value: object) -> Iterator[torch.Tensor]:
    """Every tensor in nested tuples, lists, dicts and dataclasses, in a fixed order."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from tensors_in(item)
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from tensors_in(item)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            yield from tensors_in(getattr(value, field.name))


def _double(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.double() if value.is_floating_point() else value.clone()
    if isinstance(value, dict):
        return {name: _double(item) for name, item in value.items()}
    if isinstance(value, (tuple, list)):
        return type(value)(_double(item) for item in value)
    return value
