"""What a model holds and what it is given, so that it can be run again and again from the same state."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from burnish.tools.workloads import Inputs

DEEPEST = 5  # how far into objects of unknown classes tensors are looked for


class State:
    """What a module holds besides its submodules: parameters, buffers, and plain attributes (caches, counts, random
    generators). Without `weights`, what is in the parameters is left out: a call seldom writes it, and it is large."""

    def __init__(self, module: torch.nn.Module | None, weights: bool = True) -> None:
        self._module = module
        self._generators: list[tuple[torch.Generator, torch.Tensor]] = []
        self._attributes: list[tuple[dict[str, Any], dict[str, tuple[Any, Any]]]] = []
        self._tensors: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        for part in module.modules() if module is not None else ():
            for table in (part.__dict__, part._parameters, part._buffers):
                kept = {name: value for name, value in table.items() if not _is_machinery(name)}
                self._attributes.append((table, {name: (value, _shallow(value)) for name, value in kept.items()}))
                for _, tensor in named_tensors(kept, "") if weights or table is not part._parameters else ():
                    self._tensors[id(tensor)] = (tensor, tensor.detach().clone())
                found = (value for value in kept.values() if isinstance(value, torch.Generator))
                self._generators += [(generator, generator.get_state()) for generator in found]

    @staticmethod
    def of(module: torch.nn.Module | None, weights: bool = True) -> State:
        return State(module, weights)

    def restore(self) -> None:
        for table, kept in self._attributes:
            for name in [name for name in table if name not in kept and not _is_machinery(name)]:
                del table[name]
            for name, (value, content) in kept.items():
                _refill(value, content)  # the same object: compiled code may hold on to it
                if name not in table or table[name] is not value:
                    table[name] = value
        for generator, position in self._generators:
            generator.set_state(position)
        with torch.no_grad():
            for tensor, value in self._tensors.values():
                if tensor.grad_fn is not None:  # a cache that was written in grad mode holds on to that run's graph
                    with contextlib.suppress(RuntimeError):  # a view cannot be let go
                        tensor.detach_()
                if not same(tensor, value):
                    tensor.detach().copy_(value)

    def drew(self) -> bool:
        """Whether a generator of the model's own is not where it was."""
        return any(not torch.equal(generator.get_state(), position) for generator, position in self._generators)

    def changed(self) -> Iterator[tuple[str, torch.Tensor]]:
        """State that is not what it was: written in place, replaced, or new."""
        for path, part in self._module.named_modules() if self._module is not None else ():
            for table in (part._parameters, part._buffers, part.__dict__):
                kept = {name: value for name, value in table.items() if not _is_machinery(name)}
                for name, tensor in named_tensors(kept, path):
                    known = self._tensors.get(id(tensor))
                    if known is None or not same(tensor, known[1]):
                        yield name.removeprefix("."), tensor.detach().clone()


def named_tensors(value: object, path: str, depth: int = 0) -> Iterator[tuple[str, torch.Tensor]]:
    """Every tensor in containers, dataclasses and plain objects (a key/value cache), with the way to it."""
    if isinstance(value, torch.Tensor):
        yield path, value
    elif depth < DEEPEST:
        for name, item in members(value):
            yield from named_tensors(item, f"{path}.{name}", depth + 1)


def members(value: object) -> Iterator[tuple[str, object]]:
    """What a container, dataclass or plain object holds, by name."""
    if isinstance(value, Mapping):
        yield from ((str(name), item) for name, item in value.items())
    elif isinstance(value, tuple | list):
        yield from ((str(index), item) for index, item in enumerate(value))
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        yield from ((entry.name, getattr(value, entry.name)) for entry in dataclasses.fields(value))
    elif hasattr(value, "__dict__") and not isinstance(value, torch.nn.Module | type) and not callable(value):
        yield from vars(value).items()


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


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    """NaNs in the same places are."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    a, b = a.detach(), b.detach()
    return bool(torch.equal(a, b)) or bool(a.is_floating_point() and torch.allclose(a, b, 0.0, 0.0, equal_nan=True))


def own_copy(inputs: Inputs, need_gradients: bool = False) -> Inputs:
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
