"""Ops that only rearrange elements: index maps, padding and concatenation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from burnish.ir.dtypes import DType
from burnish.ir.expr import Dim, Expr, contiguous_strides, floordiv, is_nonneg, maximum, minimum, mod
from burnish.ir.graph import Full, Node
from burnish.lower.builder import Builder, NotLowered
from burnish.lower.registry import lowering


def dim_of(x: Node, dim: int) -> int:
    return dim % max(len(x.shape), 1)


@lowering("view.default", "reshape.default", "_unsafe_view.default", "_reshape_alias.default", "view_copy.default")
def view(b: Builder, x: Node, *shape: Any) -> Node:
    return b.reshape(x, b.out[0].shape)


@lowering("expand.default", "expand_copy.default", "broadcast_to.default")
def expand(b: Builder, x: Node, shape: Any, implicit: bool = False) -> Node:
    return b.expand(x, b.out[0].shape)


@lowering("prims::broadcast_in_dim.default")
def broadcast_in_dim(b: Builder, x: Node, shape: Sequence[Dim], dims: Sequence[int]) -> Node:
    out = b.out[0].shape
    return b.view(x, out, lambda *a: [0 if x.shape[i] == 1 and out[d] != 1 else a[d] for i, d in enumerate(dims)])


@lowering("permute.default", "permute_copy.default", "prims::transpose.default")
def permute(b: Builder, x: Node, order: Sequence[int]) -> Node:
    return b.permute(x, [dim_of(x, d) for d in order])


@lowering("t.default", "t_copy.default")
def t(b: Builder, x: Node) -> Node:
    return b.permute(x, list(range(len(x.shape)))[::-1])


@lowering("transpose.int", "transpose_copy.int")
def transpose(b: Builder, x: Node, d0: int, d1: int) -> Node:
    order = list(range(len(x.shape)))
    if order:
        i, j = dim_of(x, d0), dim_of(x, d1)
        order[i], order[j] = order[j], order[i]
    return b.permute(x, order)


@lowering(
    "squeeze.default", "squeeze.dim", "squeeze.dims", "squeeze_copy.default", "squeeze_copy.dim", "squeeze_copy.dims",
    "unsqueeze.default", "unsqueeze_copy.default",
)  # fmt: skip
def same_elements(b: Builder, x: Node, *dims: Any) -> Node:
    return b.reshape(x, b.out[0].shape)


@lowering("select.int", "select_copy.int")
def select(b: Builder, x: Node, dim: int, index: Dim) -> Node:
    dim = dim_of(x, dim)
    return b.select(x, dim, counted_from_start(index, x.shape[dim]))


def counted_from_start(index: Dim, size: Dim) -> Dim:
    """Convert a negative index, which counts from the end. For a symbol, the sign must be known."""
    if is_nonneg(index):
        return index
    if is_nonneg(-1 - index):
        return index + size
    raise NotLowered("an index of which nobody knows whether it counts from the end")


def slice_start(start: Dim | None, end: Dim | None, step: int, size: Dim, length: Dim) -> Dim:
    """The first element of a slice that has so many. Where it is not certain whether a symbol is negative, the length
    tells: torch has found it out, and guards it."""
    if start is None:
        return 0
    if isinstance(start, int) and start >= 2**62:
        return size
    if is_nonneg(start):
        return minimum(start, size)
    if is_nonneg(-1 - start):
        return maximum(start + size, 0)
    to_the_end = end is None or end == size or (isinstance(end, int) and end >= 2**62)
    fitting = [first for first in (start, start + size) if to_the_end and step == 1 and size - first == length]
    if len(fitting) != 1:
        raise NotLowered("a slice of which nobody knows whether it counts from the end")
    return fitting[0]


@lowering("slice.Tensor", "slice_copy.Tensor")
def slice_tensor(
    b: Builder, x: Node, dim: int = 0, start: Dim | None = None, end: Dim | None = None, step: Any = 1
) -> Node:
    dim = dim_of(x, dim)
    length = b.out[0].shape[dim]
    return b.slice(x, dim, slice_start(start, end, step, x.shape[dim], length), length, step)


@lowering("split_with_sizes.default", "split_with_sizes_copy.default", "split.Tensor", "unbind.int", "unbind_copy.int")
def split(b: Builder, x: Node, *args: Any) -> list[Node]:
    dim = dim_of(x, args[-1] if args and (len(args) > 1 or not b.out or len(b.out[0].shape) != len(x.shape)) else 0)
    parts: list[Node] = []
    start: Dim = 0
    for i, out in enumerate(b.out):
        if len(out.shape) < len(x.shape):
            parts.append(b.select(x, dim, i))
        else:
            parts.append(b.slice(x, dim, start, out.shape[dim]))
            start = start + out.shape[dim]
    return parts


@lowering("diagonal.default", "diagonal_copy.default")
def diagonal(b: Builder, x: Node, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Node:
    d1, d2 = dim_of(x, dim1), dim_of(x, dim2)
    rest = [d for d in range(len(x.shape)) if d not in (d1, d2)]

    def index(*a: Expr) -> list[Dim]:
        at: list[Dim] = [0] * len(x.shape)
        for i, d in enumerate(rest):
            at[d] = a[i]
        at[d1] = a[-1] + max(-offset, 0)
        at[d2] = a[-1] + max(offset, 0)
        return at

    return b.view(x, b.out[0].shape, index)


@lowering("unfold.default", "unfold_copy.default")
def unfold(b: Builder, x: Node, dim: int, size: int, step: int) -> Node:
    if not x.shape:
        raise NotLowered("unfold of a scalar")
    dim = dim_of(x, dim)
    return b.view(x, b.out[0].shape, lambda *a: [e * step + a[-1] if i == dim else e for i, e in enumerate(a[:-1])])


@lowering("flip.default")
def flip(b: Builder, x: Node, dims: Sequence[int]) -> Node:
    flipped = {dim_of(x, d) for d in dims}
    return b.view(x, x.shape, lambda *a: [x.shape[i] - 1 - e if i in flipped else e for i, e in enumerate(a)])


@lowering("roll.default")
def roll(b: Builder, x: Node, shifts: Any, dims: Any = ()) -> Node:
    shifts = shifts if isinstance(shifts, list | tuple) else [shifts]
    dims = dims if isinstance(dims, list | tuple) else [dims]
    if not dims or 0 in x.shape:
        raise NotLowered("roll of the flattened tensor")
    by = {dim_of(x, d): s for s, d in zip(shifts, dims, strict=True)}
    if len(by) != len(dims):
        raise NotLowered("roll twice along one axis")
    return b.view(
        x,
        x.shape,
        lambda *a: [mod(e - by[i] % x.shape[i] + x.shape[i], x.shape[i]) if i in by else e for i, e in enumerate(a)],
    )


@lowering("repeat.default")
def repeat(b: Builder, x: Node, repeats: Sequence[Dim]) -> Node:
    if 0 in x.shape or 0 in b.out[0].shape:
        raise NotLowered("repeat of nothing")
    lead = len(b.out[0].shape) - len(x.shape)
    return b.view(x, b.out[0].shape, lambda *a: [mod(a[lead + i], d) for i, d in enumerate(x.shape)])


@lowering("as_strided.default", "as_strided_copy.default")
def as_strided(b: Builder, x: Node, size: Sequence[Dim], stride: Sequence[Dim], offset: Dim | None = None) -> Node:
    """Only of elements of `x`, which lie one after the other in eager; `offset` counts from the first of them."""
    if 0 in x.shape or 0 in b.out[0].shape:
        raise NotLowered("as_strided of nothing")

    def index(*a: Expr) -> list[Dim]:
        linear: Dim = offset or 0
        for e, s in zip(a, stride, strict=True):
            linear = linear + e * s
        at: list[Dim] = []
        for d, unit in zip(x.shape, contiguous_strides(x.shape), strict=True):
            at.append(mod(floordiv(linear, unit), d))
        return at

    return b.view(x, b.out[0].shape, index)


@lowering("constant_pad_nd.default")
def constant_pad_nd(b: Builder, x: Node, pad: Sequence[int], value: Any = 0) -> Node:
    low = [0] * len(x.shape)
    for i in range(len(pad) // 2):
        low[len(x.shape) - 1 - i] = pad[2 * i]
    if 0 in x.shape or any(not isinstance(p, int) for p in pad):
        raise NotLowered("padding of nothing")
    held = b.full(value, (), x.dtype).op
    assert isinstance(held, Full)
    return b.view(x, b.out[0].shape, lambda *a: [e - p for e, p in zip(a, low, strict=True)], fill=held.value)


@lowering("cat.default")
def cat(b: Builder, parts: Sequence[Node], dim: int = 0) -> Node:
    kept = [p for p in parts if p.shape != (0,)] or list(parts[:1])
    return b.concat([b.cast(p, b.out_dtype) for p in kept], dim_of(kept[0], dim))


@lowering("stack.default")
def stack(b: Builder, parts: Sequence[Node], dim: int = 0) -> Node:
    dim = dim % (len(parts[0].shape) + 1)
    return b.concat([b.unsqueeze(b.cast(p, b.out_dtype), dim) for p in parts], dim)


@lowering("select_scatter.default")
def select_scatter(b: Builder, x: Node, src: Node, dim: int, index: Dim) -> Node:
    dim = dim_of(x, dim)
    at = counted_from_start(index, x.shape[dim])
    here = b.compare("eq", b.iota(x.shape, lambda *a: a[dim]), b.full(at, (), DType.i64))
    return b.where(here, b.expand(b.unsqueeze(b.cast(src, x.dtype), dim), x.shape), x)


@lowering("slice_scatter.default")
def slice_scatter(
    b: Builder, x: Node, src: Node, dim: int = 0, start: Dim | None = None, end: Dim | None = None, step: Any = 1
) -> Node:
    dim = dim_of(x, dim)
    first = slice_start(start, end, step, x.shape[dim], src.shape[dim])
    src = b.cast(src, x.dtype)
    if src.shape == x.shape and first == 0 and step == 1:
        return src
    return b.scatter(x, b.expand(src, (*x.shape[:dim], src.shape[dim], *x.shape[dim + 1 :])), (), lambda a, _: [
        e * step + first if i == dim else e for i, e in enumerate(a)
    ])  # fmt: skip


def _triangle(name: str, keep: str) -> None:
    def lower(b: Builder, x: Node, diagonal: int = 0) -> Node:
        distance = b.iota(x.shape, lambda *a: a[-1] - a[-2])
        return b.where(b.compare(keep, distance, diagonal), x, b.full(0, (), x.dtype))

    lowering(name)(lower)


_triangle("tril.default", "le")
_triangle("triu.default", "ge")


@lowering("pixel_shuffle.default")
def pixel_shuffle(b: Builder, x: Node, factor: int) -> Node:
    *lead, c, h, w = x.shape
    if 0 in x.shape:
        raise NotLowered("nothing to shuffle")
    n = len(lead)
    split_up = b.reshape(x, (*lead, floordiv(c, factor * factor), factor, factor, h, w))
    moved = b.permute(split_up, [*range(n), n, n + 3, n + 1, n + 4, n + 2])
    return b.reshape(moved, b.out[0].shape)


def _upsample_nearest(name: str, rank: int) -> None:
    def lower(b: Builder, x: Node, *args: Any) -> Node:
        out = b.out[0].shape
        ratios = [(out[-rank + i], x.shape[-rank + i]) for i in range(rank)]
        if not all(isinstance(o, int) and isinstance(s, int) and s and o % s == 0 for o, s in ratios):
            raise NotLowered("a scale that is not a whole number")
        if any(isinstance(v, float) and v != int(v) for a in args if isinstance(a, list | tuple) for v in a):
            raise NotLowered("a scale that is not a whole number")
        factors = [o // s for o, s in ratios]  # type: ignore[operator]
        lead = len(out) - rank
        return b.view(x, out, lambda *a: [*a[:lead], *(floordiv(e, f) for e, f in zip(a[lead:], factors, strict=True))])

    lowering(name)(lower)


for _rank in (1, 2, 3):
    for _overload in ("default", "vec"):
        _upsample_nearest(f"upsample_nearest{_rank}d.{_overload}", _rank)
