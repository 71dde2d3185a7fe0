"""Norms, dropout and pooling."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

from burnish.ir.dtypes import DType
from burnish.ir.expr import Dim, product
from burnish.ir.graph import Node
from burnish.lower.builder import Builder, NotLowered
from burnish.lower.reductions import count, moments, wide
from burnish.lower.registry import lowering


def _normalise(b: Builder, x: Node, axes: Sequence[int], eps: float) -> tuple[Node, Node, Node]:
    """(normalised x, mean, reciprocal deviation), the last two keepdim."""
    center, squares = moments(b, x, axes)
    spread = b.map("div", squares, count(b, x, axes, x.dtype))
    inverse = b.map("rsqrt", b.map("add", spread, eps))
    return b.map("mul", b.map("sub", x, center), inverse), center, inverse


def _affine(b: Builder, y: Node, weight: Node | None, bias: Node | None) -> Node:
    if weight is not None:
        y = b.map("mul", y, b.cast(weight, y.dtype))
    return b.map("add", y, b.cast(bias, y.dtype)) if bias is not None else y


def _nonempty(x: Node) -> None:
    if 0 in x.shape:
        raise NotLowered("a norm of nothing")


@lowering("native_layer_norm.default")
def native_layer_norm(
    b: Builder, x: Node, shape: Sequence[Dim], weight: Node | None, bias: Node | None, eps: float
) -> list[Node]:
    _nonempty(x)
    work = wide(x.dtype)
    axes = list(range(len(x.shape) - len(shape), len(x.shape)))
    y, center, inverse = _normalise(b, b.cast(x, work), axes, eps)
    y = _affine(b, y, weight, bias)
    return [b.cast(v, t.dtype or work) for v, t in zip((y, center, inverse), b.out, strict=True)]


@lowering("native_layer_norm_backward.default")
def native_layer_norm_backward(
    b: Builder, grad: Node, x: Node, shape: Sequence[Dim], mean: Node, rstd: Node,
    weight: Node | None, bias: Node | None, mask: Sequence[bool],
) -> list[Node | None]:  # fmt: skip
    _nonempty(x)
    work = wide(x.dtype)
    rows = list(range(len(x.shape) - len(shape)))
    axes = list(range(len(rows), len(x.shape)))
    grad, mean, rstd = b.cast(grad, work), b.cast(mean, work), b.cast(rstd, work)
    normal = b.map("mul", b.map("sub", b.cast(x, work), mean), rstd)
    results: list[Node | None] = [None, None, None]
    if mask[0]:
        scaled = b.map("mul", grad, b.cast(weight, work)) if weight is not None else grad
        n = count(b, x, axes, work)
        a = b.map("div", b.reduce("sum", scaled, axes, True), n)
        c = b.map("div", b.reduce("sum", b.map("mul", scaled, normal), axes, True), n)
        inner = b.map("sub", b.map("sub", scaled, a), b.map("mul", normal, c))
        results[0] = b.cast(b.map("mul", inner, rstd), x.dtype)
    if mask[1] and weight is not None:
        results[1] = b.cast(b.reduce("sum", b.map("mul", grad, normal), rows), weight.dtype)
    if mask[2] and bias is not None:
        results[2] = b.cast(b.reduce("sum", grad, rows), bias.dtype)
    return results


@lowering("_fused_rms_norm.default")
def fused_rms_norm(b: Builder, x: Node, shape: Sequence[Dim], weight: Node | None, eps: float | None) -> list[Node]:
    _nonempty(x)
    work = wide(x.dtype)
    held = b.cast(x, work)
    axes = list(range(len(x.shape) - len(shape), len(x.shape)))
    if eps is None:
        eps = {DType.f64: 2.220446049250313e-16, DType.f32: 1.1920928955078125e-07}[work]
    square = b.map("div", b.reduce("sum", b.map("mul", held, held), axes, True), count(b, x, axes, work))
    inverse = b.map("rsqrt", b.map("add", square, eps))
    y = _affine(b, b.map("mul", held, inverse), weight, None)
    return [b.cast(v, t.dtype or work) for v, t in zip((y, inverse), b.out, strict=True)]


def _per_channel(b: Builder, v: Node, rank: int, work: DType) -> Node:
    return b.reshape(b.cast(v, work), (1, v.shape[0], *[1] * (rank - 2)))


@lowering("_native_batch_norm_legit_no_training.default")
def batch_norm_inference(
    b: Builder, x: Node, weight: Node | None, bias: Node | None, mean: Node, var: Node, momentum: float, eps: float
) -> list[Node]:
    work, rank = wide(x.dtype), len(x.shape)
    inverse = b.map("rsqrt", b.map("add", _per_channel(b, var, rank, work), eps))
    scale = b.map("mul", inverse, _per_channel(b, weight, rank, work)) if weight is not None else inverse
    shift = b.map("mul", b.map("neg", _per_channel(b, mean, rank, work)), scale)
    if bias is not None:
        shift = b.map("add", shift, _per_channel(b, bias, rank, work))
    y = b.map("add", b.map("mul", b.cast(x, work), scale), shift)
    empty = [b.full(0, t.shape, t.dtype or work) for t in b.out[1:]]
    return [b.cast(y, x.dtype), *empty]


@lowering("_native_batch_norm_legit_functional.default")
def batch_norm_training(
    b: Builder, x: Node, weight: Node | None, bias: Node | None, mean: Node, var: Node,
    training: bool, momentum: float, eps: float,
) -> list[Node]:  # fmt: skip
    _nonempty(x)
    if not training:
        raise NotLowered("batch norm in inference has its own op")
    work, rank = wide(x.dtype), len(x.shape)
    axes = [0, *range(2, rank)]
    n = product([x.shape[a] for a in axes])
    if not isinstance(n, int) or n < 2:
        raise NotLowered("batch statistics over a symbolic count")
    held = b.cast(x, work)
    center, squares = moments(b, held, axes)
    spread = b.map("div", squares, float(n))
    inverse = b.map("rsqrt", b.map("add", spread, eps))
    y = b.map("mul", b.map("sub", held, center), inverse)
    if weight is not None:
        y = b.map("mul", y, _per_channel(b, weight, rank, work))
    if bias is not None:
        y = b.map("add", y, _per_channel(b, bias, rank, work))
    flat = [b.reshape(v, (x.shape[1],)) for v in (center, inverse, spread)]

    def blend(old: Node, new: Node) -> Node:
        kept = b.map("mul", b.cast(old, work), 1.0 - momentum)
        return b.cast(b.map("add", kept, b.map("mul", new, momentum)), old.dtype)

    unbiased = b.map("mul", flat[2], n / (n - 1))
    saved = [b.cast(v, t.dtype or work) for v, t in zip(flat[:2], b.out[1:3], strict=True)]
    return [b.cast(y, x.dtype), *saved, blend(mean, flat[0]), blend(var, unbiased)]


@lowering("native_batch_norm_backward.default")
def batch_norm_backward(
    b: Builder, grad: Node, x: Node, weight: Node | None, mean: Node | None, var: Node | None,
    saved_mean: Node | None, saved_inverse: Node | None, training: bool, eps: float, mask: Sequence[bool],
) -> list[Node | None]:  # fmt: skip
    _nonempty(x)
    work, rank = wide(x.dtype), len(x.shape)
    axes = [0, *range(2, rank)]
    if training:
        assert saved_mean is not None and saved_inverse is not None
        center, inverse = _per_channel(b, saved_mean, rank, work), _per_channel(b, saved_inverse, rank, work)
    else:
        assert mean is not None and var is not None
        center = _per_channel(b, mean, rank, work)
        inverse = b.map("rsqrt", b.map("add", _per_channel(b, var, rank, work), eps))
    g = b.cast(grad, work)
    away = b.map("sub", b.cast(x, work), center)
    grad_sum = b.reduce("sum", g, axes, True)
    dot = b.reduce("sum", b.map("mul", g, away), axes, True)
    scale = b.map("mul", inverse, _per_channel(b, weight, rank, work)) if weight is not None else inverse
    results: list[Node | None] = [None, None, None]
    if mask[0]:
        inner = g
        if training:
            n = count(b, x, axes, work)
            projection = b.map("mul", b.map("div", dot, n), b.map("mul", inverse, inverse))
            inner = b.map("sub", b.map("sub", g, b.map("mul", away, projection)), b.map("div", grad_sum, n))
        results[0] = b.cast(b.map("mul", inner, scale), x.dtype)
    if mask[1]:
        results[1] = b.cast(b.reshape(b.map("mul", dot, inverse), (x.shape[1],)), b.out[1].dtype or work)
    if mask[2]:
        results[2] = b.cast(b.reshape(grad_sum, (x.shape[1],)), b.out[2].dtype or work)
    return results


@lowering("native_group_norm.default")
def native_group_norm(
    b: Builder, x: Node, weight: Node | None, bias: Node | None, n: Dim, c: Dim, hw: Dim, groups: int, eps: float
) -> list[Node]:
    _nonempty(x)
    work, rank = wide(x.dtype), len(x.shape)
    if not isinstance(c, int):
        raise NotLowered("symbolic channels")
    grouped = b.reshape(b.cast(x, work), (x.shape[0], groups, c // groups, *x.shape[2:]))
    axes = list(range(2, len(grouped.shape)))
    y, center, inverse = _normalise(b, grouped, axes, eps)
    shape = (1, groups, c // groups, *[1] * (rank - 2))
    y = _affine(
        b,
        y,
        b.reshape(weight, shape) if weight is not None else None,
        b.reshape(bias, shape) if bias is not None else None,
    )
    stats = [b.reshape(v, (x.shape[0], groups)) for v in (center, inverse)]
    return [
        b.cast(b.reshape(y, x.shape), x.dtype),
        *(b.cast(v, t.dtype or work) for v, t in zip(stats, b.out[1:], strict=True)),
    ]


# --- pooling ----------------------------------------------------------------------------------------------------


def _pair(v: Any, rank: int, default: Any = None) -> list[int]:
    if v is None or (isinstance(v, list | tuple) and not v):
        return list(default)
    return list(v) * (rank // len(v)) if isinstance(v, list | tuple) else [v] * rank


def _taps(
    b: Builder,
    x: Node,
    kernel: Sequence[int],
    stride: Sequence[int],
    pad: Sequence[int],
    dilation: Sequence[int],
    fill: Any,
) -> list[Node]:
    """x as seen from each output position through each tap of the window."""
    rank = len(kernel)
    lead = len(x.shape) - rank
    if math.prod(kernel) > 25:
        raise NotLowered("a window of more than 25 taps")
    views = []
    for tap in itertools.product(*(range(k) for k in kernel)):

        def index(*a: Any, tap: tuple[int, ...] = tap) -> list[Dim]:
            moved = [a[lead + i] * stride[i] + tap[i] * dilation[i] - pad[i] for i in range(rank)]
            return [*a[:lead], *moved]

        views.append(b.view(x, b.out[0].shape, index, fill=fill))
    return views


@lowering("avg_pool2d.default", "avg_pool1d.default", "avg_pool3d.default")
def avg_pool(
    b: Builder, x: Node, kernel: Any, stride: Any = None, padding: Any = 0,
    ceil_mode: bool = False, count_include_pad: bool = True, divisor: int | None = None,
) -> Node:  # fmt: skip
    rank = len(kernel)
    size = _pair(kernel, rank)
    pad = _pair(padding, rank)
    if ceil_mode or (any(pad) and not count_include_pad) or 0 in b.out[0].shape or not x.dtype.is_float:
        raise NotLowered("windows of unequal size")
    taps = _taps(b, b.cast(x, wide(x.dtype)), size, _pair(stride, rank, size), pad, [1] * rank, 0.0)
    total = taps[0]
    for t in taps[1:]:
        total = b.map("add", total, t)
    return b.cast(b.map("div", total, float(divisor or math.prod(size))), x.dtype)


@lowering("_adaptive_avg_pool2d.default", "adaptive_avg_pool1d.default")
def adaptive_avg_pool(b: Builder, x: Node, size: Any) -> Node:
    rank = len(size)
    if any(s != 1 for s in size) or not x.dtype.is_float:
        raise NotLowered("adaptive pooling to more than one cell")
    axes = list(range(len(x.shape) - rank, len(x.shape)))
    held = b.cast(x, wide(x.dtype))
    return b.cast(b.map("div", b.reduce("sum", held, axes, True), count(b, x, axes, held.dtype)), x.dtype)


@lowering("max_pool2d_with_indices.default")
def max_pool2d_with_indices(
    b: Builder, x: Node, kernel: Any, stride: Any = None, padding: Any = 0, dilation: Any = 1, ceil_mode: bool = False
) -> list[Node]:
    size, pad, dil = _pair(kernel, 2), _pair(padding, 2), _pair(dilation, 2)
    step = _pair(stride, 2, size)
    if ceil_mode or 0 in b.out[0].shape or not x.dtype.is_float:
        raise NotLowered("windows that hang over the edge")
    taps = _taps(b, x, size, step, pad, dil, -math.inf)
    best, where_best = taps[0], None
    positions = [
        b.iota(
            b.out[0].shape,
            lambda *a, u=u, v=v: (
                (a[-2] * step[0] + u * dil[0] - pad[0]) * x.shape[-1] + a[-1] * step[1] + v * dil[1] - pad[1]
            ),
        )
        for u, v in itertools.product(range(size[0]), range(size[1]))
    ]
    where_best = positions[0]
    for tap, at in zip(taps[1:], positions[1:], strict=True):
        better = b.map("or", b.compare("gt", tap, best), b.map("isnan", tap, dtype=DType.bool))
        best, where_best = b.where(better, tap, best), b.where(better, at, where_best)
    if any(pad):  # a window whose first taps lie in the padding starts at its first real element
        raise_start = b.compare("lt", where_best, 0)
        where_best = b.where(raise_start, b.full(0, (), DType.i64), where_best)
    return [best, where_best]


@lowering("native_dropout.default")
def native_dropout(b: Builder, x: Node, p: float, train: bool | None) -> list[Node]:
    if train and p == 1:  # eager draws nothing there
        return [b.map("mul", x, b.full(0, (), x.dtype)), b.full(False, x.shape, DType.bool)]
    if train and p:
        raise NotLowered("the mask must come from torch's own generator")
    return [x, b.full(True, x.shape, DType.bool)]


@lowering("native_dropout_backward.default")
def native_dropout_backward(b: Builder, grad: Node, mask: Node, scale: float) -> Node:
    return b.map("mul", b.map("mul", grad, b.cast(mask, grad.dtype)), scale)
