"""The input sets a model is verified on: the ones given, and others made from them where that is cheap."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from burnish.errors import UnknownInputSet
from burnish.options import nearest
from burnish.tools.model_state import named_tensors
from burnish.tools.workloads import Inputs

_SEED = 7


@dataclass(frozen=True)
class InputSet:
    name: str
    inputs: Inputs
    what: str


@dataclass(frozen=True)
class NoSuchSet:
    """A set that these inputs do not allow, and why."""

    name: str
    reason: str


def input_sets(inputs: Inputs, names: Iterable[str]) -> Iterator[InputSet | NoSuchSet]:
    for name in names:
        if name not in SETS:
            raise UnknownInputSet(name, nearest(name, SETS), tuple(SETS))
        yield SETS[name](inputs)


def _given(inputs: Inputs) -> InputSet:
    return InputSet("given", inputs, "the inputs as given")


def _random(inputs: Inputs) -> InputSet | NoSuchSet:
    generator = torch.Generator().manual_seed(_SEED)
    if not any(True for _ in named_tensors(inputs, "")):
        return NoSuchSet("random", "the inputs hold no tensor")
    changed = _replaced(inputs, lambda tensor: _like(tensor, generator))
    return InputSet("random", changed, "other values of the same shapes, ranges and spread")


def _special(inputs: Inputs) -> InputSet | NoSuchSet:
    if not any(tensor.is_floating_point() and tensor.numel() for _, tensor in named_tensors(inputs, "")):
        return NoSuchSet("special", "no input holds floating-point numbers")
    return InputSet("special", _replaced(inputs, _with_special_values), "NaN, infinities and signed zeros among them")


def _batch(inputs: Inputs) -> InputSet | NoSuchSet:
    tensors = [tensor for _, tensor in named_tensors(inputs, "") if tensor.dim() > 0]
    sizes = {tensor.shape[0] for tensor in tensors}
    if len(sizes) != 1 or sizes & {0, 1}:
        return NoSuchSet("batch", "the inputs have no first dimension of more than 1 in common")
    size = sizes.pop()
    more = _replaced(inputs, lambda tensor: torch.cat([tensor, tensor[:1]]) if tensor.dim() > 0 else tensor)
    return InputSet("batch", more, f"{size + 1} in the first dimension instead of {size}")


SETS: Mapping[str, Callable[[Inputs], InputSet | NoSuchSet]] = {
    "given": _given,
    "random": _random,
    "special": _special,
    "batch": _batch,
}


def _like(tensor: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Other values that the model takes: floats of the same mean and spread, integers of the same range."""
    if tensor.numel() == 0 or tensor.is_complex():
        return tensor
    if tensor.is_floating_point():
        finite = tensor[torch.isfinite(tensor)].double()
        if not finite.numel() or (bool((finite == finite[0]).all()) and finite.numel() > 1):
            return tensor  # a constant: a mask, a scale
        spread = finite.std().item() if finite.numel() > 1 else 1.0
        drawn = torch.randn(tensor.shape, generator=generator, dtype=torch.float64) * spread + finite.mean().item()
        drawn = drawn.clamp(finite.min().item(), finite.max().item()) if finite.numel() > 8 else drawn
        return _in_place_of(tensor, drawn)
    if tensor.dtype is torch.bool:
        flat = tensor.flatten().cpu()
        return _in_place_of(tensor, flat[torch.randperm(flat.numel(), generator=generator)].reshape(tensor.shape))
    low, high = int(tensor.min()), int(tensor.max())
    return _in_place_of(tensor, torch.randint(low, high + 1, tensor.shape, generator=generator))


def _with_special_values(tensor: torch.Tensor) -> torch.Tensor:
    if not tensor.is_floating_point() or not tensor.numel():
        return tensor
    changed = tensor.detach().cpu().clone(memory_format=torch.contiguous_format)
    flat = changed.view(-1)
    values = [float("nan"), float("inf"), float("-inf"), -0.0, 0.0]
    step = max(flat.numel() // len(values), 1)
    for place, value in zip(range(0, flat.numel(), step), values, strict=False):
        flat[place] = value
    return _in_place_of(tensor, changed)


def _in_place_of(tensor: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """`values` in the type, strides and place of `tensor`."""
    dense = tensor.is_contiguous() or not _overlaps(tensor)
    made = (
        torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype) if dense else torch.empty(tensor.shape)
    )
    made = made.to(tensor.dtype).copy_(values).to(tensor.device)
    return made.requires_grad_(tensor.requires_grad) if made.is_floating_point() else made


def _overlaps(tensor: torch.Tensor) -> bool:
    return any(stride == 0 and size > 1 for stride, size in zip(tensor.stride(), tensor.shape, strict=True))


def _replaced(value: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """A copy of the inputs with every tensor changed; tensors that are one object stay one."""
    memo: dict[int, Any] = {}
    for _, tensor in named_tensors(value, ""):
        if id(tensor) not in memo:
            memo[id(tensor)] = change(tensor.detach()).requires_grad_(tensor.requires_grad)
    return copy.deepcopy(value, memo)
