"""How far from float64 is a whole target? One figure for each engine, for `bench`, `explain`, `doctor` and benchmarks.

What decides tensor by tensor is `verify/judge.py`, and in the midst of a call `trust/referee.py`.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from burnish.targets import Target


class _Float64Everywhere(TorchFunctionMode):
    """Models cast to float32 inside (norms, rotary embeddings); a referee that followed them would not be one."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func is torch.Tensor.float:
            return torch.Tensor.double(*args)
        widened = [_widen(arg) for arg in args]
        return func(*widened, **{name: _widen(arg) for name, arg in (kwargs or {}).items()})


def _widen(value: Any) -> Any:
    return torch.float64 if value is torch.float32 else value


@contextmanager
def float64_everywhere() -> Iterator[None]:
    """New tensors, and casts to float32, are float64 here."""
    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with _Float64Everywhere():
            yield
    finally:
        torch.set_default_dtype(default)


def reference(target: Target) -> list[torch.Tensor]:
    """What the target computes in float64: its outputs and, for a training step, its gradients."""
    model = target.model
    if isinstance(model, torch.nn.Module):
        model = copy.deepcopy(model).double()
    wide = dataclasses.replace(target, model=model, inputs=_double(target.inputs))
    with float64_everywhere():
        return outcome(wide)


def float64_errors(target: Target, models: Mapping[str, Callable[..., Any]]) -> dict[str, float | None]:
    """Each model's error on the target; None for all where the target cannot run in float64."""
    try:
        truth = reference(target)
    except Exception:  # e.g. a function that closes over float32 tensors, or an op without a float64 kernel
        return dict.fromkeys(models)
    return {name: relative_error(outcome(target, model), truth) for name, model in models.items()}


def outcome(target: Target, model: Callable[..., Any] | None = None) -> list[torch.Tensor]:
    """The tensors one step of the target leaves behind: outputs and, for a training step, gradients."""
    model = target.model if model is None else model
    with target.grad_mode():
        found = list(tensors_in(target.step(model)()))
    if target.kind == "train" and isinstance(model, torch.nn.Module):
        found += [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    return [tensor.detach().clone() for tensor in found]


def relative_error(candidate: Sequence[torch.Tensor], truth: Sequence[torch.Tensor]) -> float:
    """The largest absolute error over the largest absolute value, of the worst tensor."""
    if len(candidate) != len(truth):
        raise ValueError(f"{len(candidate)} tensors to compare with {len(truth)}")
    return max((_tensor_error(one, other) for one, other in zip(candidate, truth, strict=True)), default=0.0)


def _tensor_error(candidate: torch.Tensor, truth: torch.Tensor) -> float:
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
    scale = truth[finite].abs().max().item() if finite.any() else 1.0
    return float("inf") if worst != worst else worst / max(scale, torch.finfo(torch.float32).tiny)


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
