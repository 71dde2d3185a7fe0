"""Finds equal blocks of a model: modules of the same class and structure, with parameters and buffers of the same
kinds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, Literal, TypeVar

import torch
from torch import nn
from torch.nn.parameter import is_lazy

Block = TypeVar("Block", bound=nn.Module)
_FEWEST_PARTS = 3  # least number of modules in a block


def repeated_blocks(model: nn.Module, wanted: Literal["auto"] | tuple[type | str, ...]) -> dict[int, object]:
    """A key, by module id, for each module that has an equal in the model; modules inside such a module have none.
    `wanted` names the classes and modules that are blocks, instead of all that are large enough."""
    shapes: dict[int, Any] = {}
    for module in _from_the_leaves(model):
        shapes[id(module)] = _shape(module, shapes)
    count = Counter(shapes[id(m)] for m in model.modules())
    found: dict[int, object] = {}
    chosen = None if wanted == "auto" else _chosen(model, wanted)
    _collect(model, lambda m: _is_block(m) if chosen is None else id(m) in chosen, shapes, count, found, set())
    return found


def _chosen(model: nn.Module, wanted: tuple[type | str, ...]) -> set[int]:
    names = {w if isinstance(w, str) else w.__qualname__ for w in wanted}
    return {
        id(module)
        for name, module in model.named_modules(remove_duplicate=False)
        if name in names or type(module).__qualname__ in names or type(module).__name__ in names
    }


def _from_the_leaves(model: nn.Module) -> Iterator[nn.Module]:
    return iter(list(model.modules())[::-1])


def _shape(module: nn.Module, shapes: dict[int, Any]) -> Any:
    children = tuple((name, shapes.get(id(child))) for name, child in module._modules.items())
    tensors = tuple((name, _kind(t)) for held in (module._parameters, module._buffers) for name, t in held.items())
    return (type(module), children, tensors, module.training)


def _kind(tensor: torch.Tensor | None) -> Any:
    if tensor is not None and is_lazy(tensor):  # before the first call: no shape
        return type(tensor), id(tensor)
    if tensor is None:
        return None
    return (tuple(tensor.shape), tensor.stride(), tensor.dtype, tensor.device, tensor.requires_grad)


def _collect(
    module: nn.Module,
    is_block: Callable[[nn.Module], bool],
    shapes: dict[int, Any],
    count: Counter[Any],
    found: dict[int, object],
    seen: set[int],
) -> None:
    for child in module._modules.values():
        if child is None or id(child) in seen:
            continue
        seen.add(id(child))
        shape = shapes[id(child)]
        if count[shape] > 1 and is_block(child):
            found[id(child)] = shape
        else:
            _collect(child, is_block, shapes, count, found, seen)


def region(block: type[Block]) -> type[Block]:
    """A class decorator: equal instances within a compiled model are traced once, however small they are."""
    block.burnish_region = True  # type: ignore[attr-defined]
    return block


def _is_block(module: nn.Module) -> bool:
    if getattr(type(module), "burnish_region", False):
        return True
    if isinstance(module, nn.ModuleList | nn.ModuleDict | nn.ParameterList | nn.ParameterDict):
        return False
    return sum(1 for _ in module.modules()) > _FEWEST_PARTS and any(True for _ in module.parameters())
