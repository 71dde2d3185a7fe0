"""Convolutions. On a CPU they stay ATen calls, because the library is faster, except for two kinds that fuse with their
epilogues: 1×1 convolutions, which are matrix products, and small depthwise ones, which are a few products and sums per
point. Both only in the contiguous layout; for channels-last the library has its own kernels.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from burnish.ir.dtypes import DType
from burnish.ir.expr import Dim, contiguous_strides
from burnish.ir.graph import Convolve, Node, TensorType, View, axes_for, axis_exprs
from burnish.lower.builder import Builder, NotLowered
from burnish.lower.contractions import contract
from burnish.lower.registry import lowering

_MOST_TAPS = 9  # of a convolution that is written out
_SMALL_IMAGE, _MANY_WEIGHTS = 256, 1 << 18


@lowering("convolution.default")
def convolution(
    b: Builder, x: Node, k: Node, bias: Node | None, stride: Sequence[int], padding: Sequence[int],
    dilation: Sequence[int], transposed: bool, output_padding: Sequence[int], groups: int,
) -> Node:  # fmt: skip
    if b.device == "cpu" and not transposed and _is_plain(b, x, k):
        if groups == 1 and _taps(k) == 1 and not any(padding) and not _is_of_small_images(b, k):
            return _pointwise(b, x, k, bias, stride)
        if groups > 1 and groups == x.shape[1] == k.shape[0] and _taps(k) <= _MOST_TAPS:
            return _depthwise(b, x, k, bias, stride, padding, dilation)
    if b.device != "cuda" or x.dtype not in (DType.f16, DType.bf16) or k.dtype is not x.dtype:
        raise NotLowered("the library's, on this device and in this type")
    if transposed or groups != 1 or len(x.shape) != 4:
        raise NotLowered("a convolution that is transposed, in groups, or not over two dimensions")
    out = b.out[0].shape
    if not all(isinstance(d, int) for d in (*x.shape[1:], *k.shape, *out[1:])) or 0 in (*x.shape, *k.shape, *out):
        raise NotLowered("a convolution over sizes not known before, or over nothing")
    (sh, sw), (ph, pw), (dh, dw) = (_pair(v) for v in (stride, padding, dilation))
    op = Convolve((sh, sw), (ph, pw), (dh, dw))
    result = b.add(op, (x, k), TensorType(x.dtype.compute, out))
    return b.cast(_with_bias(b, result, bias), b.out_dtype)


def _with_bias(b: Builder, result: Node, bias: Node | None) -> Node:
    if bias is None:
        return result
    return b.map("add", result, b.reshape(b.cast(bias, result.dtype), (1, bias.shape[0], 1, 1)))


def _is_plain(b: Builder, x: Node, k: Node) -> bool:
    if len(x.shape) != 4 or x.dtype is not DType.f32 or k.dtype is not DType.f32:
        return False
    sizes = (*x.shape, *k.shape, *b.out[0].shape)
    return all(isinstance(d, int) and d > 0 for d in sizes) and b.strides[0] == contiguous_strides(b.out[0].shape)


def _is_of_small_images(b: Builder, k: Node) -> bool:
    """Whether the input is a batch of small images with many channels: the library batches them, while our product
    computes each image separately."""
    height, width = _pair(b.out[0].shape[2:])
    outputs, inputs = _pair(k.shape[:2])
    return b.out[0].shape[0] != 1 and height * width < _SMALL_IMAGE and outputs * inputs >= _MANY_WEIGHTS


def _taps(k: Node) -> int:
    rows, columns = _pair(k.shape[2:])
    return rows * columns


def _pointwise(b: Builder, x: Node, k: Node, bias: Node | None, stride: Sequence[int]) -> Node:
    (sh, sw), (n, channels, height, width) = _pair(stride), b.out[0].shape
    x = b.view(x, (n, x.shape[1], height, width), lambda n, c, h, w: [n, c, h * sh, w * sw])
    weight = b.expand(b.reshape(k, (1, *k.shape[:2])), (n, *k.shape[:2]))
    summed = contract(b, weight, b.reshape(x, (n, x.shape[1], height * width)))
    return _with_bias(b, b.reshape(summed, (n, channels, height, width)), bias)


def _depthwise(
    b: Builder, x: Node, k: Node, bias: Node | None, stride: Sequence[int], padding: Sequence[int],
    dilation: Sequence[int],
) -> Node:  # fmt: skip
    (sh, sw), (ph, pw), (dh, dw) = (_pair(v) for v in (stride, padding, dilation))
    n, channels, height, width = x.shape
    out = b.out[0].shape
    if ph or pw:
        x = b.view(
            x, (n, channels, height + 2 * ph, width + 2 * pw), lambda n, c, h, w: [n, c, h - ph, w - pw], fill=0.0
        )
    axes = axes_for(out)
    at_n, at_c, at_h, at_w = axis_exprs(axes)
    result: Node | None = None
    for i, j in itertools.product(*map(range, _pair(k.shape[2:]))):
        place = (at_n, at_c, at_h * sh + i * dh, at_w * sw + j * dw)
        # Not `b.view`, which would look through the padding: every read would ask whether it is inside.
        window = b.add(View(axes, place, None), (x,), TensorType(x.dtype, out))
        weight = b.add(View(axes, (at_c, 0, i, j), None), (k,), TensorType(k.dtype, out))
        part = b.map("mul", window, weight)
        result = part if result is None else b.map("add", result, part)
    assert result is not None
    return _with_bias(b, result, bias)


def _pair(values: Sequence[Dim]) -> tuple[int, int]:
    first, second = values if len(values) == 2 else (values[0], values[0])
    if not (isinstance(first, int) and isinstance(second, int)):
        raise NotLowered("a step not known before")
    return first, second
