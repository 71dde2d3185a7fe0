"""Reductions and scans."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from burnish.ir.dtypes import DType
from burnish.ir.expr import Dim, product
from burnish.ir.graph import Node
from burnish.lower.builder import Builder, NotLowered
from burnish.lower.pointwise import truth
from burnish.lower.registry import lowering


def axes_of(x: Node, dims: Any) -> list[int]:
    if dims is None or (isinstance(dims, list | tuple) and not dims):
        return list(range(len(x.shape)))
    dims = dims if isinstance(dims, list | tuple) else [dims]
    return [d % max(len(x.shape), 1) for d in dims] if x.shape else []


def wide(dtype: DType) -> DType:
    """Sums of half types accumulate in float."""
    return dtype.compute


def converted(b: Builder, x: Node, dtype: DType) -> Node:
    """The operand of a reduction in its result's type, to be accumulated: eager converts it first, by `dtype=`, too."""
    return b.cast(b.cast(x, dtype), wide(dtype))


def count(b: Builder, x: Node, axes: Sequence[int], dtype: DType) -> Node:
    return b.full(_as_number(product([x.shape[a] for a in axes])), (), dtype)


def _as_number(d: Dim) -> Any:
    return d


@lowering("sum.default", "sum.dim_IntList")
def sum_(b: Builder, x: Node, dims: Any = None, keepdim: bool = False, dtype: Any = None) -> Node:
    out = b.out_dtype
    return b.cast(b.reduce("sum", converted(b, x, out), axes_of(x, dims), keepdim), out)


@lowering("mean.default", "mean.dim")
def mean(b: Builder, x: Node, dims: Any = None, keepdim: bool = False, dtype: Any = None) -> Node:
    out = b.out_dtype
    axes = axes_of(x, dims)
    # A CPU's adds up halves as floats, and divides, before it rounds.
    held = b.cast(x, wide(out)) if b.device == "cpu" else converted(b, x, out)
    total = b.reduce("sum", held, axes, keepdim)
    return b.cast(b.map("div", total, count(b, x, axes, wide(out))), out)


@lowering("prod.default", "prod.dim_int")
def prod(b: Builder, x: Node, dims: Any = None, keepdim: bool = False, dtype: Any = None) -> Node:
    out = b.out_dtype
    if out is DType.bool:
        return b.reduce("all", x, axes_of(x, dims), keepdim)
    return b.cast(b.reduce("prod", converted(b, x, out), axes_of(x, dims), keepdim), out)


def _extreme(name: str, kind: str) -> None:
    def lower(b: Builder, x: Node, dims: Any = None, keepdim: bool = False) -> Node:
        if 0 in x.shape:
            raise NotLowered("the largest of nothing")
        if x.dtype is DType.bool:
            return b.reduce("any" if kind == "max" else "all", x, axes_of(x, dims), keepdim)
        return b.reduce(kind, x, axes_of(x, dims), keepdim)

    lowering(name)(lower)


for _name, _kind in (("amax.default", "max"), ("amin.default", "min"), ("max.default", "max"), ("min.default", "min")):
    _extreme(_name, _kind)


def _extreme_with_index(name: str, kind: str) -> None:
    def lower(b: Builder, x: Node, dim: int, keepdim: bool = False) -> list[Node]:
        if x.dtype is DType.bool or 0 in x.shape or not x.shape:
            raise NotLowered("values with indices of this type")
        axes = axes_of(x, dim)
        return [b.reduce(kind, x, axes, keepdim), b.reduce(f"arg{kind}", x, axes, keepdim)]

    lowering(name)(lower)


_extreme_with_index("max.dim", "max")
_extreme_with_index("min.dim", "min")


_MOST_TAKEN = 16  # elements of a row that are found one after another
_LONGEST_RANKED = 1024  # elements of a row in which they are


@lowering("topk.default")
def topk(b: Builder, x: Node, k: Any, dim: int = -1, largest: bool = True, sorted: bool = True) -> list[Node]:
    """A few of a short row (the experts a token goes to): the greatest, then the greatest of what is left. Of equal
    ones the first, which is how a GPU's eager chooses (a CPU's does not say); not-a-number counts as the greatest."""
    if b.device != "cuda":
        raise NotLowered("another choice among equal ones")
    axis = dim % max(len(x.shape), 1)
    length = x.shape[axis] if x.shape else None
    if not largest or not isinstance(k, int) or not isinstance(length, int) or axis != len(x.shape) - 1:
        raise NotLowered("the least ones, or of another dimension than the last")
    if not 0 < k <= min(length, _MOST_TAKEN) or length > _LONGEST_RANKED or not x.dtype.is_float:
        raise NotLowered("many, or of a long row")
    place = b.iota(x.shape, lambda *at: at[axis], DType.i32)
    taken: Node | None = None
    values, places = [], []
    for _ in range(k):
        left = x if taken is None else b.where(taken, b.full(-math.inf, (), x.dtype), x)
        best = b.reduce("max", left, [axis], True)
        missing = b.map("and", b.map("isnan", x, dtype=DType.bool), b.map("isnan", best, dtype=DType.bool))
        found = b.map("or", b.compare("eq", x, best), missing)
        if taken is not None:
            found = b.map("and", found, b.map("not", taken, dtype=DType.bool))
        first = b.reduce("min", b.where(found, place, b.full(length, (), DType.i32)), [axis], True)
        here = b.compare("eq", place, first)
        taken = here if taken is None else b.map("or", taken, here)
        values.append(best)
        places.append(first)
    return [b.concat(values, axis), b.cast(b.concat(places, axis), DType.i64)]


def _arg_extreme(name: str, kind: str) -> None:
    def lower(b: Builder, x: Node, dim: int | None = None, keepdim: bool = False) -> Node:
        if x.dtype is DType.bool or 0 in x.shape:
            raise NotLowered("argmax of this type")
        if dim is None:
            flat = b.reshape(x, (product(x.shape),)) if x.shape else x
            return b.reshape(b.reduce(kind, flat, axes_of(flat, None)), b.out[0].shape)
        return b.reduce(kind, x, axes_of(x, dim), keepdim)

    lowering(name)(lower)


_arg_extreme("argmax.default", "argmax")
_arg_extreme("argmin.default", "argmin")


def _truth_reduction(kind: str) -> None:
    def lower(b: Builder, x: Node, dims: Any = None, keepdim: bool = False) -> Node:
        return b.cast(b.reduce(kind, truth(b, x), axes_of(x, dims), keepdim), b.out_dtype)

    for overload in ("default", "dim", "dims"):
        lowering(f"{kind}.{overload}")(lower)


_truth_reduction("any")
_truth_reduction("all")


def moments(b: Builder, x: Node, axes: Sequence[int]) -> tuple[Node, Node]:
    """Mean and sum of squared deviations, keepdim, in two passes over the row (one read of memory once fused)."""
    n = count(b, x, axes, x.dtype)
    center = b.map("div", b.reduce("sum", x, axes, True), n)
    away = b.map("sub", x, center)
    return center, b.reduce("sum", b.map("mul", away, away), axes, True)


def drop_axes(b: Builder, x: Node, axes: Sequence[int], keepdim: bool) -> Node:
    if keepdim:
        return x
    return b.reshape(x, tuple(d for i, d in enumerate(x.shape) if i not in axes))


def _variance(b: Builder, x: Node, dims: Any, correction: Any, keepdim: bool, root: bool = False) -> tuple[Node, Node]:
    """On a CPU in double, as in eager: squares of floats beyond 1e19 overflow float32, but their root does not."""
    dtype = b.out_dtype
    x = b.cast(x, DType.f64 if b.device == "cpu" else wide(dtype))
    axes = axes_of(x, dims)
    n = product([x.shape[a] for a in axes])
    if not isinstance(n, int):
        raise NotLowered("variance over a symbolic count")
    center, squares = moments(b, x, axes)
    degrees = max(n - (1 if correction is None else correction), 0)
    spread = b.map("div", squares, float(degrees))
    spread = b.map("sqrt", spread) if root else spread
    return b.cast(drop_axes(b, spread, axes, keepdim), dtype), b.cast(drop_axes(b, center, axes, keepdim), dtype)


def _spread(name: str, root: bool) -> None:
    def spread(b: Builder, x: Node, dims: Any = None, *, correction: Any = None, keepdim: bool = False) -> Node:
        return _variance(b, x, dims, correction, keepdim, root)[0]

    def unbiased_or_not(b: Builder, x: Node, dims: Any, unbiased: bool = True, keepdim: bool = False) -> Node:
        return _variance(b, x, dims, int(unbiased), keepdim, root)[0]

    def both(b: Builder, x: Node, dims: Any = None, *, correction: Any = None, keepdim: bool = False) -> list[Node]:
        return list(_variance(b, x, dims, correction, keepdim, root))

    lowering(f"{name}.correction")(spread)
    lowering(f"{name}.dim")(unbiased_or_not)
    lowering(f"{name}_mean.correction")(both)


_spread("var", root=False)
_spread("std", root=True)


@lowering("logsumexp.default")
def logsumexp(b: Builder, x: Node, dims: Any, keepdim: bool = False) -> Node:
    if 0 in x.shape or not x.dtype.is_float:
        raise NotLowered("logsumexp of nothing")
    axes = axes_of(x, dims)
    out = b.out_dtype
    x = b.cast(x, wide(out))
    top = b.reduce("max", x, axes, True)
    finite = b.where(b.compare("eq", b.map("abs", top), math.inf), b.full(0, (), top.dtype), top)
    total = b.reduce("sum", b.map("exp", b.map("sub", x, finite)), axes, True)
    return b.cast(drop_axes(b, b.map("add", b.map("log", total), finite), axes, keepdim), out)


@lowering("_softmax.default")
def softmax(b: Builder, x: Node, dim: int, half_to_float: bool = False) -> Node:
    if 0 in x.shape:
        raise NotLowered("softmax of nothing")
    out = b.out_dtype
    x = b.cast(x, wide(out))
    axes = axes_of(x, dim)
    top = b.reduce("max", x, axes, True)
    e = b.map("exp", b.map("sub", x, top))
    return b.cast(b.map("div", e, b.reduce("sum", e, axes, True)), out)


@lowering("_safe_softmax.default")
def safe_softmax(b: Builder, x: Node, dim: int, dtype: Any = None) -> Node:
    """A row that is masked everywhere gives zeros."""
    weights = softmax(b, x, dim)
    hidden = b.reduce("all", b.compare("eq", x, -math.inf), axes_of(x, dim), True)
    return b.where(b.expand(hidden, x.shape), b.full(0, (), weights.dtype), weights)


@lowering("_log_softmax.default")
def log_softmax(b: Builder, x: Node, dim: int, half_to_float: bool = False) -> Node:
    if 0 in x.shape:
        raise NotLowered("softmax of nothing")
    out = b.out_dtype
    x = b.cast(x, wide(out))
    axes = axes_of(x, dim)
    shifted = b.map("sub", x, b.reduce("max", x, axes, True))
    total = b.reduce("sum", b.map("exp", shifted), axes, True)
    return b.cast(b.map("sub", shifted, b.map("log", total)), out)


@lowering("_softmax_backward_data.default")
def softmax_backward(b: Builder, grad: Node, out: Node, dim: int, input_dtype: Any) -> Node:
    work = wide(out.dtype)
    grad, y = b.cast(grad, work), b.cast(out, work)
    weighted = b.map("mul", grad, y)
    total = b.reduce("sum", weighted, axes_of(y, dim), True)
    return b.cast(b.map("sub", weighted, b.map("mul", y, total)), b.out_dtype)


@lowering("_log_softmax_backward_data.default")
def log_softmax_backward(b: Builder, grad: Node, out: Node, dim: int, input_dtype: Any) -> Node:
    work = wide(out.dtype)
    grad, y = b.cast(grad, work), b.cast(out, work)
    total = b.reduce("sum", grad, axes_of(y, dim), True)
    return b.cast(b.map("sub", grad, b.map("mul", b.map("exp", y), total)), b.out_dtype)


def _scan(name: str, kind: str) -> None:
    def lower(b: Builder, x: Node, dim: int, dtype: Any = None) -> Node:
        out = b.out_dtype
        if not x.shape:
            return b.cast(x, out)
        return b.cast(b.scan(kind, converted(b, x, out), dim % len(x.shape)), out)

    lowering(name)(lower)


_scan("cumsum.default", "sum")
_scan("cumprod.default", "prod")
