"""Matrix products and attention."""

from __future__ import annotations

import math
from typing import Any

from burnish.ir.dtypes import DType
from burnish.ir.expr import Dim, floordiv, product, substitute
from burnish.ir.graph import Attend, Contract, Node, TensorType, View, axes_for, axis_exprs
from burnish.lower.builder import Builder, NotLowered
from burnish.lower.registry import lowering

# Rows beyond which a half-precision product goes to the vendor library, which may have matrix units for it.
HALF_ROWS = 8


def contract(b: Builder, x: Node, y: Node) -> Node:
    """Batched product in the accumulator's type."""
    m, k, n = x.shape[-2], x.shape[-1], y.shape[-1]
    if b.device == "cuda" and (x.dtype is DType.f64 or not isinstance(k, int)):
        raise NotLowered("the library's, whatever its size")
    if not x.dtype.is_float or x.dtype is not y.dtype:
        raise NotLowered("a product of integers")
    if b.device == "cpu" and x.dtype.compute is not x.dtype and not (isinstance(m, int) and m <= HALF_ROWS):
        raise NotLowered("a large product in a half type")
    if product((*x.shape[:-2], m, n)) == 0 or k == 0:
        raise NotLowered("a product of nothing")
    if b.device == "cuda" and k == 1:  # every pair is multiplied; of a sum, the zero that it begins with remains
        shape = (*x.shape[:-2], m, n)
        products = b.map("mul", *(b.cast(b.expand(side, shape), x.dtype.compute) for side in (x, y)))
        return b.map("add", products, 0.0)
    return b.add(Contract(), (x, y), TensorType(x.dtype.compute, (*x.shape[:-2], m, n)))


@lowering("mm.default", "bmm.default")
def mm(b: Builder, x: Node, y: Node) -> Node:
    return b.cast(contract(b, x, y), b.out_dtype)


@lowering("addmm.default", "baddbmm.default")
def addmm(b: Builder, bias: Node, x: Node, y: Node, *, beta: Any = 1, alpha: Any = 1) -> Node:
    out = contract(b, x, y)
    if any(have not in (1, want) for have, want in zip(bias.shape[::-1], out.shape[::-1], strict=False)):
        raise NotLowered("a bias that does not expand to the product: eager says so")
    if alpha != 1:
        out = b.map("mul", out, alpha)
    if beta != 0:
        scaled = b.cast(bias, out.dtype)
        out = b.map("add", out, scaled if beta == 1 else b.map("mul", scaled, beta))
    return b.cast(out, b.out_dtype)


@lowering("mv.default")
def mv(b: Builder, x: Node, y: Node) -> Node:
    out = contract(b, x, b.unsqueeze(y, 1))
    return b.cast(b.reshape(out, (x.shape[0],)), b.out_dtype)


@lowering("_scaled_dot_product_flash_attention_for_cpu.default")
def flash_attention(
    b: Builder, q: Node, k: Node, v: Node, dropout: float = 0.0, causal: bool = False,
    *, attn_mask: Node | None = None, scale: float | None = None,
) -> list[Node | None]:  # fmt: skip
    if b.device == "cuda":  # captured on a CPU, lowered for a GPU: in tests on machines without one
        return _attend_on_cuda(b, q, k, v, attn_mask, dropout, causal, scale)
    if dropout or q.dtype is not DType.f32 or 0 in q.shape or 0 in k.shape:
        raise NotLowered("attention of this type")
    width: Dim = q.shape[-1]
    if not isinstance(width, int):
        raise NotLowered("a symbolic head size")
    masks = () if attn_mask is None else (b.expand(attn_mask, (*q.shape[:-1], k.shape[-2])),)
    k, v = once_per_group(b, k, v)
    op = Attend(causal, scale if scale is not None else 1 / math.sqrt(width), bool(masks))
    node = b.add(op, (q, k, v, *masks), b.out)
    return [b.pick(node, 0), b.pick(node, 1)]


# With more keys the library's kernels are faster: they overlap softmax and products by hand.
LONGEST_KEYS = 1024
# With fewer queries, reading the keys bounds the time: they are cut into splits, and read once for a group of heads.
FEWEST_QUERIES = 16


@lowering("_scaled_dot_product_flash_attention.default")
def flash_attention_on_cuda(
    b: Builder, q: Node, k: Node, v: Node, dropout: float = 0.0, causal: bool = False, debug: bool = False,
    *, scale: float | None = None,
) -> list[Node | None]:  # fmt: skip
    return _attend_on_cuda(b, q, k, v, None, dropout, causal, scale)


@lowering("_scaled_dot_product_efficient_attention.default")
def efficient_attention(
    b: Builder, q: Node, k: Node, v: Node, bias: Node | None, keep_sums: bool, dropout: float = 0.0,
    causal: bool = False, *, scale: float | None = None,
) -> list[Node | None]:  # fmt: skip
    return _attend_on_cuda(b, q, k, v, bias, dropout, causal, scale)


@lowering("_scaled_dot_product_cudnn_attention.default")
def cudnn_attention(
    b: Builder, q: Node, k: Node, v: Node, bias: Node | None, keep_sums: bool, dropout: float = 0.0,
    causal: bool = False, debug: bool = False, *, scale: float | None = None,
) -> list[Node | None]:  # fmt: skip
    return _attend_on_cuda(b, q, k, v, bias, dropout, causal, scale)


def _attend_on_cuda(
    b: Builder, q: Node, k: Node, v: Node, bias: Node | None, dropout: float, causal: bool, scale: float | None
) -> list[Node | None]:
    """Our operation, if only the result has readers: the library's backward needs what its own forward saves."""
    queries, keys, width = q.shape[-2], k.shape[-2], q.shape[-1]
    if dropout or b.wanted - {0}:
        raise NotLowered("attention whose backward pass is the library's")
    if q.dtype not in (DType.f16, DType.bf16) or 0 in q.shape or 0 in k.shape:
        raise NotLowered("attention of this type")
    if not isinstance(width, int) or v.shape[-1] != width or width % 8:
        raise NotLowered("a head of this size")
    masks = () if bias is None else (b.expand(bias, (*q.shape[:-1], keys)),)
    k, v = once_per_group(b, k, v)
    if not (isinstance(queries, int) and isinstance(keys, int)):
        raise NotLowered("attention of this length")
    few = not causal and queries < FEWEST_QUERIES and width <= 256
    if not few and (queries < FEWEST_QUERIES or keys > LONGEST_KEYS or width > 128):
        raise NotLowered("attention of this length")
    op = Attend(causal, scale if scale is not None else 1 / math.sqrt(width), bool(masks))
    node = b.add(op, (q, k, v, *masks), (b.out[0], TensorType(DType.f32, q.shape[:-1])))
    return [b.pick(node, 0), *([None] * (b.results - 1))]


def once_per_group(b: Builder, k: Node, v: Node) -> tuple[Node, Node]:
    """Keys and values without their repetition for groups of query heads: the kernel shares them itself."""
    heads = k.shape[1]
    for group in range(heads, 1, -1) if isinstance(heads, int) else ():
        if heads % group == 0:
            keys, values = _one_in(b, k, group), _one_in(b, v, group)
            if keys is not None and values is not None:
                return keys, values
    return k, v


def _one_in(b: Builder, x: Node, group: int) -> Node | None:
    """Every `group`-th head of a view, if the heads between are repeats of it."""
    if not isinstance(x.op, View) or x.op.fill is not None:
        return None
    shape = (x.shape[0], floordiv(x.shape[1], group), *x.shape[2:])
    axes = axis_exprs(axes_for(shape))
    inside = {a.name: e * group if d == 1 else e for d, (a, e) in enumerate(zip(x.op.axes, axes, strict=True))}
    index = [substitute(i, inside) for i in x.op.index]
    heads = floordiv(axis_exprs(x.op.axes)[1], group)
    if tuple(substitute(i, {axes_for(shape)[1].name: heads}) for i in index) != x.op.index:
        return None
    return b.view(x.inputs[0], shape, lambda *_: index)
