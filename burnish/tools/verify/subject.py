"""Runs a model repeatedly from the same state; records the outcome of a run tensor by tensor, by name."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch

from burnish.tools.draws import RecordDraws, ReplayDraws
from burnish.tools.float64 import float64_everywhere
from burnish.tools.model_state import DEEPEST, State, members, named_tensors, own_copy, same
from burnish.tools.random_state import SEED, generators, same_draws
from burnish.tools.targets import split_inputs
from burnish.tools.workloads import Inputs

Phase = Literal["inference", "gradients"]
Drawn = Sequence[tuple[str, list[torch.Tensor]]]


@dataclass(frozen=True)
class Outcome:
    """Everything a run left behind that a caller could see."""

    tensors: Mapping[str, torch.Tensor]  # "output.0", "state.bn.running_mean", "input.cache", "grad.linear.weight"
    values: Mapping[str, object]  # results that are no tensors
    generators: tuple[Any, ...]  # where the random generators stood afterwards
    drew: bool  # whether one moved


@dataclass(frozen=True)
class Subject:
    """`model` as given; runs use `pristine` state and a copy of the inputs, so that none sees another's traces."""

    model: Callable[..., Any]
    state: State

    @staticmethod
    def of(model: Callable[..., Any]) -> Subject:
        return Subject(model, State.of(_module(model)))

    @property
    def module(self) -> torch.nn.Module | None:
        return _module(self.model)

    def run(
        self,
        inputs: Inputs,
        phase: Phase,
        call: Callable[..., Any] | None = None,
        *,
        seed: int = SEED,
        record: RecordDraws | None = None,
    ) -> Outcome:
        """One run of `call` (the model itself, or a compiled version over the same state)."""
        self.state.restore()
        module = self.module
        if module is not None:
            module.zero_grad(set_to_none=True)
        mine = own_copy(inputs, self._inputs_need_gradients(phase))
        before = {name: t.detach().clone() for name, t in named_tensors(mine, "input")}
        try:
            with same_draws(seed), record or contextlib.nullcontext():
                start = generators()
                result = self._step(call or self.model, mine, phase)
                end = generators()
            drew = start != end or self.state.drew()
            found = self._left_behind(result, mine, before, phase)
            return Outcome(found, dict(_plain_values(result, "output")), end, drew)
        finally:
            self.state.restore()
            if module is not None:
                module.zero_grad(set_to_none=True)

    def _step(self, call: Callable[..., Any], inputs: Inputs, phase: Phase) -> Any:
        args, kwargs = split_inputs(inputs)
        if phase == "inference":
            with torch.no_grad():
                return call(*args, **kwargs)
        with torch.enable_grad():
            result = call(*args, **kwargs)
            outputs = [t for _, t in named_tensors(result, "output") if t.requires_grad and t.is_floating_point()]
            if outputs:
                torch.autograd.backward(outputs, [_cotangent(t) for t in outputs])
        return result

    def _inputs_need_gradients(self, phase: Phase) -> bool:
        """A function without parameters has gradients with respect to its arguments only."""
        module = self.module
        trains = module is not None and any(p.requires_grad for p in module.parameters())
        return phase == "gradients" and not trains

    def _left_behind(
        self, result: Any, inputs: Inputs, before: Mapping[str, torch.Tensor], phase: Phase
    ) -> dict[str, torch.Tensor]:
        found = {name: t.detach().clone() for name, t in named_tensors(result, "output")}
        for name, t in self.state.changed():
            found[f"state.{name}"] = t
        for name, t in named_tensors(inputs, "input"):
            if name not in before or not same(t, before[name]):
                found[f"{name} (written)"] = t.detach().clone()
        if phase == "gradients":
            for name, t in named_tensors(inputs, "input"):
                if t.grad is not None:
                    found[f"grad.{name}"] = t.grad.detach().clone()
            for name, p in self.module.named_parameters() if self.module is not None else ():
                if p.grad is not None:
                    found[f"grad.{name}"] = p.grad.detach().clone()
        return found

    def in_float64(self, inputs: Inputs, phase: Phase, drawn: Drawn | None) -> Outcome:
        """The referee: the same run in float64, with eager's own random numbers. Raises where that cannot be."""
        self.state.restore()
        module = self.module
        wide: Any = self.model
        if module is not None:
            wide = copy.deepcopy(module).double()
            method = getattr(self.model, "__func__", None)
            wide = wide if module is self.model else method.__get__(wide)  # type: ignore[union-attr]
        with float64_everywhere(), ReplayDraws(drawn) if drawn else contextlib.nullcontext():
            return Subject.of(wide).run(_doubled(inputs), phase)


def _plain_values(value: object, path: str, depth: int = 0) -> Iterator[tuple[str, object]]:
    if isinstance(value, bool | int | float | str):
        yield path, value
    elif depth < DEEPEST and isinstance(value, tuple | list | Mapping):
        for name, item in members(value):
            yield from _plain_values(item, f"{path}.{name}", depth + 1)


def _module(model: Callable[..., Any]) -> torch.nn.Module | None:
    owner = model if isinstance(model, torch.nn.Module) else getattr(model, "__self__", None)
    return owner if isinstance(owner, torch.nn.Module) else None


def _doubled(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        wide = value.detach().double() if value.is_floating_point() else value.detach().clone()
        return wide.requires_grad_(value.requires_grad) if value.is_floating_point() else wide
    if isinstance(value, Mapping):
        return type(value)({name: _doubled(item) for name, item in value.items()})  # type: ignore[call-arg]
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(_doubled(item) for item in value))
    if isinstance(value, tuple | list):
        return type(value)(_doubled(item) for item in value)
    if dataclasses.is_dataclass(value) or hasattr(value, "__dict__"):
        wide = copy.deepcopy(value)
        for name, item in members(wide):
            with contextlib.suppress(AttributeError, TypeError):
                setattr(wide, name, _doubled(item))
        return wide
    return value


def _cotangent(output: torch.Tensor) -> torch.Tensor:
    """Weights for the outputs, so that no part of a gradient cancels another by chance; 1 for a loss. Seven bits each:
    the same number in every type, so that the referee differentiates the same sum."""
    if output.dim() == 0:
        return torch.ones_like(output)
    steps = torch.arange(output.numel(), device=output.device) * 37 % 64
    return (steps.reshape(output.shape).double() / 64 + 0.5).to(output.dtype)
