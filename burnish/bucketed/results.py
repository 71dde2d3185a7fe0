"""The results of a padded call, sliced back to the sizes that the call's own arguments give them."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from burnish.torch_private.operators import pytree

Cut = tuple[tuple[int, ...], tuple[int, ...]]  # sizes and strides of one result


@dataclass(frozen=True)
class Results:
    """How the Python result of a call is made of its graph's results: `outputs[k]` is the graph's result that leaf k
    is; None for a leaf that is the same in every call (None, a truth value)."""

    spec: Any
    outputs: tuple[int | None, ...]


def results_of(result: Any, produced: Sequence[Any]) -> Results | str:
    """Where the leaves of `result` come from; or why that cannot be told."""
    position = {id(x): k for k, x in reversed(list(enumerate(produced))) if isinstance(x, torch.Tensor)}
    leaves, spec = pytree.tree_flatten(result)
    found: list[int | None] = []
    for leaf in leaves:
        if isinstance(leaf, torch.Tensor):
            if id(leaf) not in position:
                return "a result is an argument, a parameter or a constant"
            found.append(position[id(leaf)])
        elif leaf is None or isinstance(leaf, (bool, str)):
            found.append(None)
        elif isinstance(leaf, (int, float)):
            return "a result is a number, which may depend on sizes"
        else:
            return f"a result is a {type(leaf).__name__}, which cannot be sliced"
    tensors = [x for x in produced if isinstance(x, torch.Tensor)]
    if any(not isinstance(x, torch.Tensor) for x in produced):
        return "a result is a number, which may depend on sizes"
    if len(set(found) - {None}) != len(tensors):
        return "it stores tensors in an object: they would stay padded"
    if any(x.requires_grad for x in tensors):
        return "results require gradients"
    if any(map(_overlaps, tensors)):
        return "a result overlaps itself in memory"
    memory = [x.untyped_storage().data_ptr() for x in tensors if x.numel()]
    if len(set(memory)) != len(memory):
        return "results share memory"
    return Results(spec, tuple(found))


def _overlaps(x: torch.Tensor) -> bool:
    """Whether elements may share memory, as those of `expand` do. Then there is nothing to copy a slice into."""
    reach = 0
    for stride, size in sorted((stride, size) for stride, size in zip(x.stride(), x.shape, strict=True) if size > 1):
        if stride <= reach:
            return True
        reach += stride * (size - 1)
    return False


class ResultsDiffer(Exception):
    """A padded call returned another structure than the traced one."""


class NotFinite(Exception):
    """A padded call returned an infinity or a NaN, which may come from its padding."""


class Slicing:
    """Slices the result of a padded call for one set of sizes. `finite`: results that are not raise NotFinite."""

    def __init__(self, results: Results, cuts: Sequence[Cut], finite: bool = False) -> None:
        self._finite = finite
        self._spec = results.spec
        self._cuts = tuple(None if k is None else cuts[k] for k in results.outputs)

    def of(self, result: Any) -> Any:
        leaves, spec = pytree.tree_flatten(result)
        if len(leaves) != len(self._cuts) or spec != self._spec:
            raise ResultsDiffer
        done: dict[int, torch.Tensor] = {}
        for k, cut in enumerate(self._cuts):
            if cut is not None:
                leaf = leaves[k]
                if not isinstance(leaf, torch.Tensor):
                    raise ResultsDiffer
                if id(leaf) not in done:
                    done[id(leaf)] = sliced(leaf, *cut)
                    if self._finite and not _is_finite(done[id(leaf)]):
                        raise NotFinite
                leaves[k] = done[id(leaf)]
        return pytree.tree_unflatten(leaves, spec)


def _is_finite(x: torch.Tensor) -> bool:
    """Exact for sums that do not overflow; others are taken for not finite."""
    return bool(x.sum().isfinite())


def sliced(x: torch.Tensor, sizes: Sequence[int], strides: Sequence[int]) -> torch.Tensor:
    """The beginning of each dimension, with eager's strides."""
    if x.dim() != len(sizes) or any(have < want for have, want in zip(x.shape, sizes, strict=True)):
        raise ResultsDiffer
    if tuple(x.shape) == tuple(sizes) and x.stride() == tuple(strides):
        return x
    for d, size in enumerate(sizes):
        if x.shape[d] != size:
            x = x.narrow(d, 0, size)
    if x.stride() == tuple(strides):
        return x
    out = torch.empty_strided(tuple(sizes), tuple(strides), dtype=x.dtype, device=x.device)
    return out.copy_(x)


def as_made(x: torch.Tensor) -> contextlib.AbstractContextManager[object]:
    """In this context tensors are made as `x` was, in inference mode or not: guards look at that, too."""
    if x.is_inference() == torch.is_inference_mode_enabled():
        return contextlib.nullcontext()
    return torch.inference_mode(x.is_inference())


def repeated(x: torch.Tensor, dim: int, size: int) -> torch.Tensor:
    """`x` with this size of a dimension: cut, or repeated from its beginning."""
    index = torch.arange(size, device=x.device) % max(x.shape[dim], 1)
    with as_made(x):
        return x.detach().index_select(dim, index).requires_grad_(x.requires_grad)


def padded(x: torch.Tensor, sizes: Sequence[int], fill: float) -> torch.Tensor:
    """`x` at the beginning of each dimension of a larger tensor."""
    if tuple(x.shape) == tuple(sizes):
        return x
    pads: list[int] = []
    for have, want in zip(reversed(x.shape), reversed(sizes), strict=False):
        pads += (0, want - have)
    with as_made(x):
        made = torch.constant_pad_nd(x.detach(), pads, fill)
    return made.requires_grad_() if x.requires_grad else made  # which guards look at
