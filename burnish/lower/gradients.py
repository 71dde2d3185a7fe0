"""Gradients whose torch decomposition differs from eager's kernels: it fills zeros and scatters, where here each
element is computed directly; or it uses a sign, which is zero at NaN, where eager's gradient is NaN."""

from __future__ import annotations

from collections.abc import Sequence

from burnish.ir.expr import Dim
from burnish.ir.graph import Node
from burnish.lower.builder import Builder, NotLowered
from burnish.lower.reductions import count
from burnish.lower.registry import lowering

_MEAN, _SUM = 1, 2  # at::Reduction; 0 is none


@lowering("nll_loss_backward.default")
def nll_loss_backward(
    b: Builder, grad: Node, x: Node, target: Node, weight: Node | None, reduction: int, ignore: int, total: Node
) -> Node:
    """-weight[c] * grad in the target's column, zero elsewhere."""
    if len(x.shape) not in (1, 2) or 0 in x.shape:
        raise NotLowered("a loss over an image, or over nothing")
    shape, axis = x.shape, len(x.shape) - 1
    column = b.iota(shape, lambda *at: at[axis])
    chosen = b.expand(b.unsqueeze(target, axis) if axis else b.reshape(target, (1,)), shape)
    value = b.cast(grad, x.dtype)
    if reduction == _MEAN:
        value = b.map("div", value, b.cast(total, x.dtype))
    if value.shape and axis:
        value = b.unsqueeze(value, 1)
    value = b.expand(b.map("neg", value), shape)
    if weight is not None:
        value = b.map("mul", value, b.expand(b.cast(weight, x.dtype), shape))
    hit = b.map("and", b.compare("eq", column, chosen), b.compare("ne", chosen, ignore))
    return b.where(hit, value, 0.0)


@lowering("smooth_l1_loss_backward.default")
def smooth_l1_loss_backward(b: Builder, grad: Node, x: Node, target: Node, reduction: int, beta: float) -> Node:
    """One beyond beta, the share of beta before it, and NaN at NaN."""
    if len({grad.dtype, x.dtype, target.dtype}) > 1 or x.shape != target.shape or not x.dtype.is_float:
        raise NotLowered("a loss of several types or shapes")
    away = b.map("sub", x, target)
    if reduction == _MEAN:
        grad = b.map("div", grad, count(b, x, range(len(x.shape)), grad.dtype))
    share = b.map("div", b.map("mul", away, grad), beta)
    inside = b.where(b.compare("ge", away, beta), grad, share)
    return b.where(b.compare("le", away, -beta), b.map("neg", grad), inside)


@lowering("slice_backward.default")
def slice_backward(b: Builder, grad: Node, sizes: Sequence[Dim], dim: int, start: int, end: int, step: int) -> Node:
    whole, part = sizes[dim], grad.shape[dim]
    if step != 1 or not isinstance(whole, int) or not isinstance(part, int) or 0 in grad.shape:
        raise NotLowered("a slice of this kind")
    dim %= len(sizes)
    first = max(start + whole, 0) if start < 0 else min(start, whole)
    if part == whole:
        return grad
    if 4 * part < 3 * whole:  # read in place, with zeros around: cheap if several of these are added
        at = lambda *i: [e - first if d == dim else e for d, e in enumerate(i)]  # noqa: E731
        return b.view(grad, tuple(sizes), at, fill=0)
    rest = [first, whole - first - part]
    before, after = ([b.full(0, (*sizes[:dim], n, *sizes[dim + 1 :]), grad.dtype)] if n else [] for n in rest)
    return b.concat([*before, grad, *after], dim)
