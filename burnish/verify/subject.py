"""A model that is run again and again from the same state: what one run leaves behind, tensor by tensor, by name."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch

from burnish.capture.draws import RecordDraws, ReplayDraws
from burnish.parity import float64_everywhere
from burnish.targets import split_inputs
from burnish.workloads import Inputs

Phase = Literal["inference", "gradients"]
Drawn = Sequence[tuple[str, list[torch.Tensor]]]
_SEED = 20240531
_DEEPEST = 5  # how far into objects of unknown classes tensors are looked for


@dataclass(frozen=True)
class Outcome:
    """Everything a run left behind that a caller could see."""

    tensors: Mapping[str, torch.Tensor]  # "output.0", "state.bn.running_mean", "input.cache", "grad.linear.weight"
    values: Mapping[str, object]  # results that are no tensors
    generator: torch.Tensor  # where the random generator stood afterwards
    drew: bool  # whether it moved


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
        seed: int = _SEED,
        record: RecordDraws | None = None,
    ) -> Outcome:
        """One run of `call` (the model itself, or a compiled version over the same state)."""
        self.state.restore()
        module = self.module
        if module is not None:
            module.zero_grad(set_to_none=True)
        mine = _own_copy(inputs, self._inputs_need_gradients(phase))
        before = {name: t.detach().clone() for name, t in named_tensors(mine, "input")}
        try:
            with _seeded(seed), record or contextlib.nullcontext():
                start = torch.get_rng_state()
                result = self._step(call or self.model, mine, phase)
                end = torch.get_rng_state()
            found = self._left_behind(result, mine, before, phase)
            return Outcome(found, dict(_plain_values(result, "output")), end, not torch.equal(start, end))
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
            if name not in before or not _same(t, before[name]):
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


class State:
    """What a module holds besides its submodules: parameters, buffers, and plain attributes (caches, counts)."""

    def __init__(self, module: torch.nn.Module | None) -> None:
        self._module = module
        self._attributes: list[tuple[dict[str, Any], dict[str, tuple[Any, Any]]]] = []
        self._tensors: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        for part in module.modules() if module is not None else ():
            for table in (part.__dict__, part._parameters, part._buffers):
                kept = {name: value for name, value in table.items() if not _is_machinery(name)}
                self._attributes.append((table, {name: (value, _shallow(value)) for name, value in kept.items()}))
                for _, tensor in named_tensors(kept, ""):
                    self._tensors[id(tensor)] = (tensor, tensor.detach().clone())

    @staticmethod
    def of(module: torch.nn.Module | None) -> State:
        return State(module)

    def restore(self) -> None:
        for table, kept in self._attributes:
            for name in [name for name in table if name not in kept and not _is_machinery(name)]:
                del table[name]
            for name, (value, content) in kept.items():
                _refill(value, content)  # the same object: compiled code may hold on to it
                if name not in table or table[name] is not value:
                    table[name] = value
        with torch.no_grad():
            for tensor, value in self._tensors.values():
                if tensor.grad_fn is not None:  # a cache that was written in grad mode holds on to that run's graph
                    with contextlib.suppress(RuntimeError):  # a view cannot be let go
                        tensor.detach_()
                if not _same(tensor, value):
                    tensor.detach().copy_(value)

    def changed(self) -> Iterator[tuple[str, torch.Tensor]]:
        """State that is not what it was: written in place, replaced, or new."""
        for path, part in self._module.named_modules() if self._module is not None else ():
            for table in (part._parameters, part._buffers, part.__dict__):
                kept = {name: value for name, value in table.items() if not _is_machinery(name)}
                for name, tensor in named_tensors(kept, path):
                    known = self._tensors.get(id(tensor))
                    if known is None or not _same(tensor, known[1]):
                        yield name.removeprefix("."), tensor.detach().clone()


def named_tensors(value: object, path: str, depth: int = 0) -> Iterator[tuple[str, torch.Tensor]]:
    """Every tensor in containers, dataclasses and plain objects (a key/value cache), with the way to it."""
    if isinstance(value, torch.Tensor):
        yield path, value
    elif depth < _DEEPEST:
        for name, item in _members(value):
            yield from named_tensors(item, f"{path}.{name}", depth + 1)


def _plain_values(value: object, path: str, depth: int = 0) -> Iterator[tuple[str, object]]:
    if isinstance(value, bool | int | float | str):
        yield path, value
    elif depth < _DEEPEST and isinstance(value, tuple | list | Mapping):
        for name, item in _members(value):
            yield from _plain_values(item, f"{path}.{name}", depth + 1)


def _members(value: object) -> Iterator[tuple[str, object]]:
    if isinstance(value, Mapping):
        yield from ((str(name), item) for name, item in value.items())
    elif isinstance(value, tuple | list):
        yield from ((str(index), item) for index, item in enumerate(value))
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        yield from ((entry.name, getattr(value, entry.name)) for entry in dataclasses.fields(value))
    elif hasattr(value, "__dict__") and not isinstance(value, torch.nn.Module | type) and not callable(value):
        yield from vars(value).items()


def _module(model: Callable[..., Any]) -> torch.nn.Module | None:
    owner = model if isinstance(model, torch.nn.Module) else getattr(model, "__self__", None)
    return owner if isinstance(owner, torch.nn.Module) else None


def _is_machinery(name: str) -> bool:
    return name in ("_parameters", "_buffers", "_modules", "training") or "_hooks" in name


def _shallow(value: Any) -> Any:
    """A list or dict is changed in place by the model; the copy keeps what was in it."""
    return copy.copy(value) if type(value) in (list, dict, set) else value


def _refill(value: Any, content: Any) -> None:
    if type(value) is list:
        value[:] = content
    elif type(value) in (dict, set):
        value.clear()
        value.update(content)


def _same(a: torch.Tensor, b: torch.Tensor) -> bool:
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    a, b = a.detach(), b.detach()
    return bool(torch.equal(a, b)) or bool(a.is_floating_point() and torch.allclose(a, b, 0.0, 0.0, equal_nan=True))


def _own_copy(inputs: Inputs, need_gradients: bool) -> Inputs:
    """Tensors that share memory, or are one object, do so in the copy."""
    mine: Inputs = copy.deepcopy(inputs, _detached_memo(inputs))
    for _, tensor in named_tensors(mine, "input"):
        if need_gradients and tensor.is_floating_point():
            tensor.requires_grad_(True)
    return mine


def _detached_memo(inputs: Inputs) -> dict[int, Any]:
    """Deep copies of what deepcopy refuses: results of a computation that carry a gradient."""
    memo: dict[int, Any] = {}
    for _, tensor in named_tensors(inputs, "input"):
        if not tensor.is_leaf:
            memo[id(tensor)] = tensor.detach().clone().requires_grad_(tensor.requires_grad)
    return memo


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
        for name, item in _members(wide):
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


@contextlib.contextmanager
def _seeded(seed: int) -> Iterator[None]:
    devices = list(range(torch.cuda.device_count())) if torch.cuda.is_available() else []
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(seed)
        yield
