"""The form of a call: all that distinguishes it from other calls but the sizes of its tensors."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from burnish.runtime.host.signature import BY_VALUE, TENSORS
from burnish.runtime.host.thread_state import autocast_here
from burnish.shapes.strategy import Fill

Place = int | str  # of an argument: its position, or its keyword
Shapes = tuple[torch.Size, ...]
_grad_mode, _inference_mode = torch.is_grad_enabled, torch.is_inference_mode_enabled
_VALUES = frozenset((*BY_VALUE, float))
_TENSORS = frozenset(TENSORS)
_UNUSUAL: Hashable = "unusual"


@dataclass
class Call:
    """One call, taken apart. `tensors` are the arguments that are plain tensors, `places` where they are."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    form: Hashable
    tensors: list[torch.Tensor]
    places: list[Place]
    is_usual: bool  # tensors are contiguous and distinct, no number is -0.0
    shapes: Shapes = field(init=False)

    def __post_init__(self) -> None:
        self.shapes = tuple([x.shape for x in self.tensors])

    def with_tensors(self, tensors: Sequence[torch.Tensor]) -> Call:
        args, kwargs = list(self.args), dict(self.kwargs)
        for place, x in zip(self.places, tensors, strict=True):
            if isinstance(place, int):
                args[place] = x
            else:
                kwargs[place] = x
        return Call(tuple(args), kwargs, self.form, list(tensors), self.places, True)


@dataclass(frozen=True)
class Padded:
    """What is padded in a graph: the input at `position`, in these dimensions, with `fill`."""

    position: int
    name: str
    dims: Mapping[int, str]  # dimension -> the axis's name
    fill: Fill


class Reader:
    """Takes the calls of one target apart."""

    def __init__(self, target: Callable[..., Any]) -> None:
        self._target = target
        self._is_module = isinstance(target, torch.nn.Module)
        self._names, self._taken = _parameters(target)

    def read(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call:
        tensors: list[torch.Tensor] = []
        places: list[Place] = []
        parts: list[Hashable] = []
        usual = True
        given: list[tuple[Place, Any]] = [*enumerate(args), *kwargs.items()]
        for place, x in given:
            kind = type(x)
            if kind in _TENSORS:
                tensors.append(x)
                places.append(place)
                if x.layout is not torch.strided or not x.is_contiguous():
                    usual = False
                    parts.append(_UNUSUAL)
                else:
                    parts.append((place, x.dtype, x.device, x.dim(), x.requires_grad, x.is_inference()))
            elif kind in _VALUES:
                parts.append((place, kind, x))
                if kind is float and x == 0 and math.copysign(1, x) < 0:  # guards take it for 0.0
                    usual = False
            else:
                parts.append((place, kind))
        if len(tensors) > 1 and len(set(map(id, tensors))) != len(tensors):
            usual = False
        training = self._target.training if self._is_module else None  # type: ignore[attr-defined]
        form = (tuple(parts), _grad_mode(), _inference_mode(), autocast_here(), training)
        return Call(args, kwargs, form, tensors, places, usual)

    def name(self, place: Place) -> str:
        """The parameter that an argument is for."""
        if isinstance(place, str):
            return place
        return self._names[place] if place < len(self._names) else f"args[{place}]"

    def has(self, name: str, call: Call) -> bool:
        """Whether the call gives this argument something other than None, or the target takes no such argument."""
        if name not in self._taken:
            return True
        given = {self.name(k): x for k, x in enumerate(call.args)} | call.kwargs
        return given.get(name) is not None

    def with_argument(self, name: str, value: Any, call: Call) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The call's arguments, and this one."""
        position = self._names.index(name) if name in self._names else len(call.args)
        if position < len(call.args):
            return (*call.args[:position], value, *call.args[position + 1 :]), call.kwargs
        return call.args, {**call.kwargs, name: value}


def _parameters(target: Callable[..., Any]) -> tuple[tuple[str, ...], frozenset[str]]:
    """The names of the positional parameters in order, and of all."""
    function = target.forward if isinstance(target, torch.nn.Module) else target
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return (), frozenset()
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    every = frozenset(each.name for each in parameters)
    return tuple(each.name for each in parameters if each.kind in kinds), every
