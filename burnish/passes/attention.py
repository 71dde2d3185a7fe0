"""Attention that a model writes out, as one operation: product, scale, soft-cap, mask, softmax, product.

Models do so for what torch's call does not have (scores that a tanh keeps within a cap), and torch itself does where
its kernels do not fit (one key head for many query heads). Only for a GPU and few queries: then the keys are read once,
by all multiprocessors, and only as far as the mask makes them visible. Eager's roundings between the steps are dropped.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from burnish.ir.dtypes import DType
from burnish.ir.expr import Dim, product, substitute
from burnish.ir.graph import Attend, Contract, Full, Map, Node, Reduce, TensorType, View, axis_exprs
from burnish.lower.builder import Builder
from burnish.lower.contractions import FEWEST_QUERIES, once_per_group

_HALF = (DType.f16, DType.bf16)
_WIDEST_HEAD = 256


def attend(b: Builder, node: Node, inputs: tuple[Node, ...]) -> Node | None:
    if not isinstance(node.op, Contract) or len(node.shape) != 3:
        return None
    scores = _softmax_of(inputs[0])
    found = None if scores is None else _scores(scores)
    if scores is None or found is None:
        return None
    q, k, v = _plain(b, found.product.inputs[0]), _plain(b, found.product.inputs[1]), _plain(b, inputs[1])
    if not _fits(q.node, k.node, v.node, scores):
        return None
    heads = scores.shape[:2]
    queries = b.reshape(q.node, (*heads, *q.node.shape[1:]))
    keys = b.permute(b.reshape(k.node, (*heads, *k.node.shape[1:])), (0, 1, 3, 2))
    values = b.reshape(v.node, (*heads, *v.node.shape[1:]))
    keys, values = once_per_group(b, keys, values)
    masks = () if found.mask is None else (_plain(b, found.mask).node,)
    op = Attend(False, found.scale * q.times * k.times, bool(masks), found.cap)
    types = (TensorType(q.node.dtype, queries.shape), TensorType(DType.f32, queries.shape[:-1]))
    made = b.pick(b.add(op, (queries, keys, values, *masks), types), 0)
    out = b.cast(b.reshape(made, node.shape), node.dtype)
    return out if v.times == 1 else b.map("mul", out, v.times)


def _fits(q: Node, k: Node, v: Node, scores: Node) -> bool:
    known = all(isinstance(d, int) for x in (q, k, v, scores) for d in x.shape)
    if not known or len(scores.shape) != 4 or not (q.dtype is k.dtype is v.dtype) or q.dtype not in _HALF:
        return False
    (_, queries, width), depth = q.shape, v.shape[-1]
    assert isinstance(queries, int) and isinstance(width, int)
    return queries < FEWEST_QUERIES and width == depth and width % 8 == 0 and width <= _WIDEST_HEAD


@dataclass(frozen=True)
class _Plain:
    """A tensor in the type it is stored in, and the number that every element of it is multiplied with."""

    node: Node
    times: float = 1.0


def _plain(b: Builder, x: Node) -> _Plain:
    if _is(x, "cast") and x.dtype is DType.f32 and x.inputs[0].dtype in _HALF:
        return _plain(b, x.inputs[0])
    factor = _factor(x)
    if factor is not None:
        inner = _plain(b, factor.node)
        return _Plain(inner.node, inner.times * factor.times)
    if isinstance(x.op, View) and x.op.fill is None:
        inner, index = _plain(b, x.inputs[0]), x.op.index
        if inner.node is x.inputs[0]:
            return _Plain(x)
        return _Plain(b.view(inner.node, x.shape, lambda *_: index), inner.times)
    return _Plain(x)


def _factor(x: Node) -> _Plain | None:
    """The factor of a product with a number, or of a quotient by one."""
    if not (_is(x, "mul") or _is(x, "div")):
        return None
    for at in (1, 0) if _is(x, "mul") else (1,):
        value = x.inputs[at].op
        if isinstance(value, Full) and isinstance(value.value, int | float) and value.value:
            times = float(value.value)
            return _Plain(x.inputs[1 - at], times if _is(x, "mul") else 1 / times)
    return None


# --- the softmax ------------------------------------------------------------------------------------------------


def _softmax_of(weights: Node) -> Node | None:
    """The scores whose softmax over the last dimension the weights are, rounded or reshaped or not."""
    x = weights
    while _is(x, "cast") or (isinstance(x.op, View) and x.op.fill is None):
        if isinstance(x.op, View) and not _is_reshape(x):
            return None
        x = x.inputs[0]
    if _is(x, "where") and isinstance(x.inputs[1].op, Full) and x.inputs[1].op.value == 0:
        x = x.inputs[2]  # rows that see nothing at all are zeros, which ours are anyway
    if not _is(x, "div") or not _is(x.inputs[0], "exp"):
        return None
    raised, total = x.inputs
    below = raised.inputs[0]
    if not _is(below, "sub") or _reduced(total, "sum") is not raised:
        return None
    return below.inputs[0] if _reduced(below.inputs[1], "max") is below.inputs[0] else None


def _reduced(x: Node, kind: str) -> Node | None:
    """The operand of a reduction over the last dimension, if x broadcasts its result along that dimension."""
    if not isinstance(x.op, View) or x.op.fill is not None:
        return None
    (made,) = x.inputs
    if not isinstance(made.op, Reduce) or made.op.kind != kind:
        return None
    (source,) = made.inputs
    rows = axis_exprs(x.op.axes)[:-1]
    if made.op.axes != (len(source.shape) - 1,) or source.shape != x.shape or len(x.op.index) != len(rows):
        return None
    return source if _settled(x.op.index, x.op) == _settled(rows, x.op) else None


# --- the scores -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Scores:
    """`product * scale`, kept within `cap` (0: not at all), plus the mask."""

    product: Node
    scale: float
    cap: float
    mask: Node | None


def _scores(x: Node) -> _Scores | None:
    x = _uncast(x)
    if not _is(x, "add"):
        return _capped(x, None)
    for score, mask in (x.inputs, x.inputs[::-1]):
        found = _capped(_uncast(score), mask)
        if found is not None:
            return found
    return None


def _capped(x: Node, mask: Node | None) -> _Scores | None:
    factor = _factor(x)
    bent = _uncast(factor.node) if factor is not None else x
    if factor is None or not _is(bent, "tanh"):
        found = _scaled(x)
        return None if found is None else _Scores(found.node, found.times, 0.0, mask)
    found = _scaled(_uncast(bent.inputs[0]))
    return None if found is None else _Scores(found.node, found.times * factor.times, factor.times, mask)


def _scaled(x: Node) -> _Plain | None:
    """The product of queries and keys that numbers are multiplied with, in the order in which it was computed."""
    times = 1.0
    while True:
        factor = _factor(x)
        if factor is not None:
            x, times = factor.node, times * factor.times
        elif _is(x, "cast") or (isinstance(x.op, View) and x.op.fill is None and _is_reshape(x)):
            x = x.inputs[0]
        else:
            return _Plain(x, times) if isinstance(x.op, Contract) and len(x.shape) == 3 else None


def _is(x: Node, fn: str) -> bool:
    return isinstance(x.op, Map) and x.op.fn == fn


def _uncast(x: Node) -> Node:
    while _is(x, "cast"):
        x = x.inputs[0]
    return x


def _is_reshape(x: Node) -> bool:
    """Whether a view has all elements of its source in their order."""
    assert isinstance(x.op, View)
    (source,) = x.inputs
    here, there = _settled(axis_exprs(x.op.axes), x.op), _settled(x.op.index, x.op)
    return product(x.shape) == product(source.shape) and _linear(here, x.shape) == _linear(there, source.shape)


def _linear(index: Sequence[Dim], shape: Sequence[Dim]) -> Dim:
    at: Dim = 0
    for i, size in zip(index, shape, strict=True):
        at = at * size + i
    return at


def _settled(index: Sequence[Dim], view: View) -> tuple[Dim, ...]:
    """Axes of one element are at it."""
    zeros: dict[str, Dim] = {a.name: 0 for a in view.axes if a.hi == 0}
    return tuple(substitute(i, zeros) for i in index)
