"""Simplifications that depend only on one node and its inputs."""

from __future__ import annotations

import math

import torch

from burnish.ir.dtypes import DType
from burnish.ir.expr import Dim, Expr, is_less, is_nonneg, of, substitute
from burnish.ir.graph import Constant, Full, Gather, Input, Iota, Map, Node, Scatter, axes_for
from burnish.ir.scalar import SCALAR_OPS
from burnish.lower.builder import Builder, is_safely

Number = bool | int | float


def constant(node: Node) -> Number | None:
    return node.op.value if isinstance(node.op, Full) and not isinstance(node.op.value, Expr) else None


def position(node: Node) -> Dim | None:
    """The index expression a node holds, over the canonical axes of its shape."""
    if isinstance(node.op, Iota) and node.dtype is DType.i64:
        return substitute(
            node.op.expr, {a.name: of(b) for a, b in zip(node.op.axes, axes_for(node.shape), strict=True)}
        )
    if isinstance(node.op, Full) and node.dtype is DType.i64:
        return node.op.value if isinstance(node.op.value, int | Expr) else None
    return None


def fold_constants(b: Builder, node: Node, inputs: tuple[Node, ...]) -> Node | None:
    if not isinstance(node.op, Map):
        return None
    values = [constant(x) for x in inputs]
    if all(v is not None for v in values):
        return _evaluated(b, node, inputs)
    return _decided(b, node, inputs)


def _evaluated(b: Builder, node: Node, inputs: tuple[Node, ...]) -> Node | None:
    assert isinstance(node.op, Map)
    if node.op.fn == "cast" and inputs[0].dtype is node.dtype:
        return None  # a copy, for a call that wants memory
    if node.op.fn == "cast" and inputs[0].dtype.is_float and not is_safely(constant(inputs[0]) or 0, node.dtype):
        return None  # the result depends on the device
    held = [torch.tensor(constant(x), dtype=x.dtype.compute.torch) for x in inputs]
    try:
        value = SCALAR_OPS[node.op.fn].reference(*held).to(node.dtype.torch).item()
    except RuntimeError:  # division of integers by zero: leave it to run time, as eager does
        return None
    return b.full(value, node.shape, node.dtype)


def _decided(b: Builder, node: Node, inputs: tuple[Node, ...]) -> Node | None:
    """Sums and comparisons of positions."""
    assert isinstance(node.op, Map)
    if len(inputs) != 2:
        return None
    x, y = position(inputs[0]), position(inputs[1])
    if x is None or y is None or not (_is_small(x) and _is_small(y)):
        return None
    match node.op.fn:
        case "add" | "sub" if node.dtype is DType.i64:
            total = x + y if node.op.fn == "add" else x - y
            if not _is_small(total):  # values wrap around, index expressions do not
                return None
            return b.iota(node.shape, lambda *a: total)
        case "lt":
            return _truth(b, node, is_less(x, y), is_nonneg(x - y))
        case "ge":
            return _truth(b, node, is_nonneg(x - y), is_less(x, y))
    return None


_LARGEST_POSITION = 1 << 40  # of any memory there is


def _is_small(x: Dim) -> bool:
    """Whether no factor or term of an index expression is so large that 64 bits might not hold it."""
    numbers = (x,) if isinstance(x, int) else x.terms.values()
    return all(abs(n) < _LARGEST_POSITION for n in numbers)


def _truth(b: Builder, node: Node, yes: bool, no: bool) -> Node | None:
    return b.full(yes, node.shape, DType.bool) if yes or no else None


def drop_identities(b: Builder, node: Node, inputs: tuple[Node, ...]) -> Node | None:
    if not isinstance(node.op, Map):
        return None
    match node.op.fn:
        case "mul" | "add" | "and" | "or":
            for x, y in ((inputs[0], inputs[1]), (inputs[1], inputs[0])):
                if _is_neutral(node.op.fn, constant(y), node.dtype):
                    return x
        case "sub" | "div" if _is_neutral(node.op.fn, constant(inputs[1]), node.dtype):
            return inputs[0]
        case "where" if constant(inputs[0]) is not None:
            return inputs[1] if constant(inputs[0]) else inputs[2]
        case "cast" if isinstance(inputs[0].op, Map) and inputs[0].op.fn == "cast":
            inner = inputs[0].inputs[0]  # x -> wider -> x holds x
            if inner.dtype is node.dtype and _holds(inputs[0].dtype, inner.dtype):
                return inner
    return None


def _is_neutral(fn: str, value: Number | None, dtype: DType) -> bool:
    if value is None:
        return False
    if fn in ("mul", "div"):
        return value == 1 and dtype is not DType.bool
    if fn == "and":
        return dtype is DType.bool and bool(value)
    if fn == "or":
        return dtype is DType.bool and not value
    if dtype.is_float:  # x + 0.0 turns -0.0 into 0.0; x + -0.0 and x - 0.0 change nothing
        return value == 0 and math.copysign(1, value) == (-1 if fn == "add" else 1)
    return value == 0


def _holds(wide: DType, narrow: DType) -> bool:
    order = {DType.f64: 3, DType.f32: 2, DType.bf16: 1, DType.f16: 1}
    return wide in order and narrow in order and order[wide] > order[narrow]


def gather_to_view(b: Builder, node: Node, inputs: tuple[Node, ...]) -> Node | None:
    if not isinstance(node.op, Gather):
        return None
    source, *indices = inputs
    env: dict[str, Dim] = {}
    for k, x in enumerate(indices):
        at = position(x)
        if at is None:
            return None
        env[f"%{k}"] = at
    moved = tuple(substitute(i, env) for i in node.op.index)
    if not all(is_nonneg(i) and is_less(i, d) for i, d in zip(moved, source.shape, strict=True)):
        return None
    return b.view(source, node.shape, lambda *a: moved)


def scatter_onto(b: Builder, node: Node, inputs: tuple[Node, ...]) -> Node | None:
    """x plus a scatter-add onto zeros becomes a scatter-add onto x, without writing and reading the zeros. Not for half
    types, where each addition would round, nor if x would have to be copied first."""
    if not isinstance(node.op, Map) or node.op.fn != "add" or node.dtype not in (DType.f32, DType.f64):
        return None
    for x, y in (inputs, inputs[::-1]):
        if isinstance(x.op, Input | Constant | Full) or x.types != y.types:
            continue
        if isinstance(y.op, Scatter) and y.op.mode == "add" and constant(y.inputs[0]) == 0:
            return b.add(y.op, (x, *y.inputs[1:]), node.types[0])
    return None
