"""Convolutions. On a CPU they stay ATen calls: its library is ahead of us there."""

from __future__ import annotations

from collections.abc import Sequence

from burnish.ir.dtypes import DType
from burnish.ir.graph import Convolve, Node, TensorType
from burnish.lower.builder import Builder, NotLowered
from burnish.lower.registry import lowering


@lowering("convolution.default")
def convolution(
    b: Builder, x: Node, k: Node, bias: Node | None, stride: Sequence[int], padding: Sequence[int],
    dilation: Sequence[int], transposed: bool, output_padding: Sequence[int], groups: int,
) -> Node:  # fmt: skip
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
    if bias is not None:
        result = b.map("add", result, b.reshape(b.cast(bias, result.dtype), (1, bias.shape[0], 1, 1)))
    return b.cast(result, b.out_dtype)


def _pair(values: Sequence[int]) -> tuple[int, int]:
    first, second = values if len(values) == 2 else (values[0], values[0])
    if not (isinstance(first, int) and isinstance(second, int)):
        raise NotLowered("a step not known before")
    return first, second
