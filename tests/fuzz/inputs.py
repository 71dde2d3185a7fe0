"""Arguments made from their description, as often as wanted: the same values, strides, offsets and aliasing each time,
and layouts to choose from."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from random import Random
from typing import Any

import torch

from tests.fuzz.case import Arg, Call, Case, Storage
from tests.fuzz.values import dtype_of, filled, literal


def built(call: Call, device: str = "cpu", wide: bool = False, spread: bool = False) -> list[Any]:
    """The call's arguments. `wide`: floats as float64. `spread`: every tensor over a storage of its own with gaps,
    which tells what eager computes from where it computes it."""
    storages = [_storage(s, device, wide) for s in call.storages]
    made: list[Any] = []
    for arg in call.args:
        if arg.number is not None:
            made.append(arg.number)
        elif arg.same_as >= 0:
            made.append(made[arg.same_as])
        else:
            made.append(_tensor(arg, storages[arg.storage], spread))
    return made


def with_values(case: Case) -> Case:
    """The same case with its numbers in it: what a seed makes of them may change, a kept case must not."""

    def spelled(call: Call) -> Call:
        kinds = [literal(s.size, dtype_of(s.dtype), s.kind, s.seed) for s in call.storages]
        storages = [dataclasses.replace(s, kind=kind) for s, kind in zip(call.storages, kinds, strict=True)]
        return dataclasses.replace(call, storages=tuple(storages))

    calls, prelude = (tuple(spelled(c) for c in some) for some in (case.calls, case.prelude))
    return dataclasses.replace(case, calls=calls, prelude=prelude)


def _storage(storage: Storage, device: str, wide: bool) -> torch.Tensor:
    flat = filled(storage.size, dtype_of(storage.dtype), storage.kind, storage.seed).to(device)
    return flat.double() if wide and flat.is_floating_point() else flat


def _tensor(arg: Arg, flat: torch.Tensor, spread: bool) -> torch.Tensor:
    if "inference" in arg.flags:
        with torch.inference_mode():
            return _flagged(_laid_out(flat.clone(), arg, spread), arg)
    return _flagged(_laid_out(flat, arg, spread), arg)


def _laid_out(flat: torch.Tensor, arg: Arg, spread: bool) -> torch.Tensor:
    view = flat.as_strided(arg.shape, arg.stride, arg.offset)
    if spread:
        return torch.stack([view, view], -1)[..., 0] if view.dim() else view.clone()
    if "whole" in arg.flags:
        return torch.empty(0, dtype=flat.dtype, device=flat.device).set_(
            flat.untyped_storage(), arg.offset, arg.shape, arg.stride
        )
    return view


def _flagged(t: torch.Tensor, arg: Arg) -> torch.Tensor:
    if "neg" in arg.flags:
        t = torch._neg_view(t)
    if "parameter" in arg.flags:
        return torch.nn.Parameter(t, requires_grad="grad" in arg.flags)
    return t.requires_grad_() if "grad" in arg.flags else t


def extent(shape: Sequence[int], stride: Sequence[int]) -> int:
    return 1 + sum((d - 1) * s for d, s in zip(shape, stride, strict=True)) if math.prod(shape) else 0


def contiguous(shape: Sequence[int]) -> tuple[int, ...]:
    strides, step = [], 1
    for d in reversed(shape):
        strides.append(step)
        step *= max(d, 1)
    return tuple(reversed(strides))


LAYOUTS = ("plain", "offset", "moved", "gaps", "columns", "expanded", "windows", "odd ones", "channels last")


def laid_out(rng: Random, shape: Sequence[int], layout: str) -> tuple[tuple[int, ...], int, int]:
    """Strides, offset and the storage's size."""
    stride, offset = list(contiguous(shape)), 0
    rank = len(shape)
    if layout == "offset":
        offset = rng.choice([1, 2, 3, 4, 5, 8, 16, 31])
    elif layout == "moved" and rank > 1:
        order = rng.sample(range(rank), rank)
        held = contiguous([shape[d] for d in order])
        for k, d in enumerate(order):
            stride[d] = held[k]
    elif layout == "gaps" and rank:
        stride = [s * 2 for s in stride]
        offset = rng.choice([0, 1, 3])
    elif layout == "columns" and rank > 1:
        wide = [*shape[:-1], shape[-1] + rng.randint(1, 3)]
        stride, offset = list(contiguous(wide)), rng.randint(0, 1)
    elif layout == "expanded" and rank:
        d = rng.randrange(rank)
        stride = list(contiguous([1 if e == d else n for e, n in enumerate(shape)]))
        stride[d] = 0
    elif layout == "windows" and rank > 1:
        stride = list(contiguous([1] * (rank - 1) + [shape[-1]]))
        stride[-2] = rng.choice([1, 2])
    elif layout == "odd ones":
        stride = [rng.choice([0, 1, 7, 100]) if n == 1 else s for n, s in zip(shape, stride, strict=True)]
    elif layout == "channels last" and rank == 4:
        _, c, h, w = (max(d, 1) for d in shape)
        stride = [c * h * w, 1, w * c, c]
    return tuple(stride), offset, offset + extent(shape, stride) + rng.choice([0, 0, 1])
