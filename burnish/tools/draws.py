"""Records the random numbers of one run and replays them in another, so that a float64 run gets eager's dropout
masks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from burnish.torch_private.dispatch import TorchDispatchMode


class DrawsDiffer(Exception):
    """The second run asked for other random numbers than the first drew."""


def draws_random_numbers(op: Any) -> bool:
    return torch.Tag.nondeterministic_seeded in getattr(op, "tags", ())


class RecordDraws(TorchDispatchMode):
    """Keeps what every random operation returned, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.drawn: list[tuple[str, list[torch.Tensor]]] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if draws_random_numbers(func):
            self.drawn.append((_name(func), [t.detach().clone() for t in _tensors(result)]))
        return result


class ReplayDraws(TorchDispatchMode):
    """Hands out what was recorded, in the types asked for now."""

    def __init__(self, drawn: Sequence[tuple[str, list[torch.Tensor]]]) -> None:
        super().__init__()
        self._left = list(reversed(drawn))

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if not draws_random_numbers(func):
            return func(*args, **(kwargs or {}))
        if not self._left or self._left[-1][0] != _name(func):
            raise DrawsDiffer(_name(func))
        _, recorded = self._left.pop()
        fresh = func(*args, **(kwargs or {}))
        return replayed(func, args, fresh, recorded)


def replayed(func: Callable[..., Any], args: Sequence[Any], fresh: Any, recorded: Sequence[torch.Tensor]) -> Any:
    """`fresh`, what the operation returned just now, with the recorded numbers in it."""
    results = _tensors(fresh)
    if [t.shape for t in results] != [t.shape for t in recorded]:
        raise DrawsDiffer(_name(func))
    if func is torch.ops.aten.native_dropout.default:  # only its mask is drawn
        kept = 1.0 - float(args[1])
        results[0].copy_(args[0] * recorded[1] / kept if kept else torch.zeros_like(args[0]))
        results[1].copy_(recorded[1])
        return fresh
    for result, value in zip(results, recorded, strict=True):
        result.copy_(value)
    return fresh


def _tensors(value: Any) -> list[torch.Tensor]:
    items = value if isinstance(value, tuple | list) else [value]
    return [item for item in items if isinstance(item, torch.Tensor)]


def _name(func: Any) -> str:
    return str(func)
