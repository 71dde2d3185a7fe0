"""Builder: the vocabulary lowerings are written in. Each method appends graph nodes and simplifies as it goes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from burnish.ir.dtypes import DType, from_torch
from burnish.ir.expr import Dim, Expr, floordiv, mod, substitute, sym
from burnish.ir.graph import (
    Concat,
    Full,
    Gather,
    Graph,
    Iota,
    Map,
    Node,
    Op,
    Pick,
    Reduce,
    Scan,
    Scatter,
    TensorType,
    View,
    axes_for,
    axis_exprs,
)
from burnish.ir.scalar import Mistake

Scalar = bool | int | float | Expr
Operand = Node | Scalar
_OF_NOTHING: dict[str, bool | int] = {"sum": 0, "prod": 1, "any": False, "all": True}


class NotLowered(Exception):
    """This call of an op has no lowering (a type, a flag): it becomes an ATen call."""


class Builder:
    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.out: tuple[TensorType, ...] = ()  # what eager says the op being lowered returns
        self.strides: tuple[tuple[Dim, ...], ...] = ()  # and its strides
        self.results = 1  # the number of its results, and those that have readers
        self.wanted: frozenset[int] = frozenset({0})
        self.origin = ""
        self.device = "cpu"  # the kind of device that the graph runs on

    def add(self, op: Op, inputs: Sequence[Node], types: TensorType | Sequence[TensorType]) -> Node:
        return self.graph.add(op, inputs, types, self.origin)

    @property
    def out_dtype(self) -> DType:
        dtype = self.out[0].dtype
        if dtype is None:
            raise NotLowered("result type is not computed by our kernels")
        return dtype

    # --- constants and positions --------------------------------------------------------------------------------

    def full(self, value: Scalar, shape: Sequence[Dim], dtype: DType) -> Node:
        """A tensor of one number, which the type must be able to hold: otherwise the op becomes an ATen call, which
        raises as in eager."""
        if not isinstance(value, Expr) and not _fits(value, dtype):
            raise NotLowered(f"{value} is no {dtype.value}")
        return self.number(rounded(value, dtype), shape, dtype)

    def number(self, value: Scalar, shape: Sequence[Dim], dtype: DType) -> Node:
        """An operand of arithmetic: integers wrap around, and half types have numbers between theirs, as in eager."""
        if not isinstance(value, Expr):
            value = bool(value) if dtype is DType.bool else float(value) if dtype.is_float else _wrapped(value, dtype)
        return self.add(Full(value), (), TensorType(dtype, tuple(shape)))

    def iota(self, shape: Sequence[Dim], expr: Callable[..., Dim], dtype: DType = DType.i64) -> Node:
        axes = axes_for(shape)
        node = self.add(Iota(axes, expr(*axis_exprs(axes))), (), TensorType(DType.i64, tuple(shape)))
        return self.cast(node, dtype)

    # --- elementwise --------------------------------------------------------------------------------------------

    def map(self, fn: str, *args: Operand, dtype: DType | None = None) -> Node:
        """Apply a scalar op; scalars take the type of the tensors, shapes broadcast."""
        nodes = [a for a in args if isinstance(a, Node)]
        shape = broadcast_shapes(*(n.shape for n in nodes))
        operand_type = next((n.dtype for n in nodes if not (fn == "where" and n is args[0])), None) or dtype
        assert operand_type is not None
        ready = [self.expand(a, shape) if isinstance(a, Node) else self.number(a, shape, operand_type) for a in args]
        return self.add(Map(fn), ready, TensorType(dtype or operand_type, shape))

    def compare(self, fn: str, a: Operand, b: Operand) -> Node:
        return self.map(fn, a, b, dtype=DType.bool)

    def where(self, cond: Node, a: Operand, b: Operand) -> Node:
        dtype = next(x.dtype for x in (a, b) if isinstance(x, Node))
        return self.map("where", cond, a, b, dtype=dtype)

    def cast(self, x: Node, dtype: DType) -> Node:
        if x.dtype is dtype:
            return x
        if isinstance(x.op, Full) and not isinstance(x.op.value, Expr):
            return self._cast_constant(x, x.op.value, dtype)
        return self.add(Map("cast"), (x,), TensorType(dtype, x.shape))

    def copied(self, x: Node) -> Node:
        """A dense copy of the values."""
        return self.add(Map("cast"), (x,), TensorType(x.dtype, x.shape))

    def _cast_constant(self, x: Node, value: bool | int | float, dtype: DType) -> Node:
        if x.dtype.is_float and not is_safely(value, dtype):
            return self.add(Map("cast"), (x,), TensorType(dtype, x.shape))  # the result depends on the device
        held = torch.tensor(value, dtype=x.dtype.torch).to(dtype.torch).item()
        return self.full(held, x.shape, dtype)

    # --- views --------------------------------------------------------------------------------------------------

    def view(
        self, x: Node, shape: Sequence[Dim], index: Callable[..., Sequence[Dim]], fill: Scalar | None = None
    ) -> Node:
        axes = axes_for(shape)
        at = tuple(index(*axis_exprs(axes)))
        shape = tuple(shape)
        if fill is None:
            if x.shape == shape and at == axis_exprs(axes):
                return x
            env = {a.name: e for a, e in zip(axes_for(x.shape), at, strict=True)}
            match x.op:
                case Full(value):
                    return self.add(Full(value), (), TensorType(x.type.dtype, shape))
                case Iota(inner, expr):
                    moved = substitute(expr, {a.name: e for a, e in zip(inner, at, strict=True)})
                    return self.add(Iota(axes, moved), (), TensorType(x.type.dtype, shape))
                case View(_, inner_index, inner_fill):
                    composed = tuple(substitute(i, env) for i in inner_index)
                    source = x.inputs[0]
                    if inner_fill is None and source.shape == shape and composed == axis_exprs(axes):
                        return source
                    return self.add(View(axes, composed, inner_fill), (source,), TensorType(x.type.dtype, shape))
        constant = None if fill is None else fill
        assert not isinstance(constant, Expr)
        return self.add(View(axes, at, constant), (x,), TensorType(x.type.dtype, shape))

    def expand(self, x: Node, shape: Sequence[Dim]) -> Node:
        shape = tuple(shape)
        if x.shape == shape:
            return x
        lead = len(shape) - len(x.shape)
        keep = [not (size == 1 and shape[lead + i] != 1) for i, size in enumerate(x.shape)]
        return self.view(x, shape, lambda *a: [a[lead + i] if k else 0 for i, k in enumerate(keep)])

    def permute(self, x: Node, order: Sequence[int]) -> Node:
        inverse = {d: i for i, d in enumerate(order)}
        return self.view(x, [x.shape[d] for d in order], lambda *a: [a[inverse[d]] for d in range(len(order))])

    def reshape(self, x: Node, shape: Sequence[Dim]) -> Node:
        shape = tuple(shape)
        if 0 in shape:  # no element, so no index matters
            return self.view(x, shape, lambda *a: [0] * len(x.shape))
        groups = reshape_groups(x.shape, shape)
        return self.view(x, shape, lambda *a: unravel_groups(a, x.shape, shape, groups))

    def unsqueeze(self, x: Node, dim: int) -> Node:
        shape = (*x.shape[:dim], 1, *x.shape[dim:])
        return self.view(x, shape, lambda *a: [*a[:dim], *a[dim + 1 :]])

    def slice(self, x: Node, dim: int, start: Dim, size: Dim, step: int = 1) -> Node:
        shape = (*x.shape[:dim], size, *x.shape[dim + 1 :])
        return self.view(x, shape, lambda *a: [*a[:dim], a[dim] * step + start, *a[dim + 1 :]])

    def select(self, x: Node, dim: int, at: Dim) -> Node:
        return self.view(x, (*x.shape[:dim], *x.shape[dim + 1 :]), lambda *a: [*a[:dim], at, *a[dim:]])

    # --- reductions, indexing, the rest ---------------------------------------------------------------------------

    def reduce(
        self, kind: str, x: Node, axes: Sequence[int], keepdim: bool = False, dtype: DType | None = None
    ) -> Node:
        axes = tuple(sorted({a % max(len(x.shape), 1) for a in axes}))
        kept = tuple(d for i, d in enumerate(x.shape) if i not in axes)
        result = dtype or (DType.i64 if kind.startswith("arg") else x.dtype)
        if any(x.shape[a] == 0 for a in axes) and kind in _OF_NOTHING:
            node = self.full(_OF_NOTHING[kind], kept, result)
        elif not axes and kind.startswith("arg"):
            node = self.full(0, x.shape, DType.i64)
        elif not axes and kind == "sum" and x.dtype.is_float:
            node = self.map("add", x, self.full(0.0, (), x.dtype))  # as eager's, which begins at zero: -0.0 is 0.0
        else:
            node = self.add(Reduce(kind, axes), (x,), TensorType(result, kept)) if axes else x
        if keepdim:
            for a in axes:
                node = self.unsqueeze(node, a)
        return node

    def scan(self, kind: str, x: Node, axis: int) -> Node:
        return self.add(Scan(kind, axis), (x,), x.type)

    def concat(self, parts: Sequence[Node], axis: int) -> Node:
        if len(parts) == 1:
            return parts[0]
        total: Dim = 0
        for p in parts:
            total = total + p.shape[axis]
        shape = (*parts[0].shape[:axis], total, *parts[0].shape[axis + 1 :])
        return self.add(Concat(axis), tuple(parts), TensorType(parts[0].dtype, shape))

    def gather(
        self,
        x: Node,
        shape: Sequence[Dim],
        indices: Sequence[Node],
        index: Callable[..., Sequence[Dim]],
        raises: Mistake = "IndexError",
    ) -> Node:
        axes = axes_for(shape)
        ready = [self.cast(self.expand(_positions(i), shape), DType.i64) for i in indices]
        at = index(axis_exprs(axes), tuple(sym(f"%{k}") for k in range(len(ready))))
        return self.add(Gather(axes, tuple(at), raises), (x, *ready), TensorType(x.dtype, tuple(shape)))

    def scatter(
        self,
        base: Node,
        src: Node,
        indices: Sequence[Node],
        index: Callable[..., Sequence[Dim]],
        mode: str = "set",
        raises: Mistake = "IndexError",
    ) -> Node:
        axes = axes_for(src.shape)
        ready = [self.cast(self.expand(_positions(i), src.shape), DType.i64) for i in indices]
        at = index(axis_exprs(axes), tuple(sym(f"%{k}") for k in range(len(ready))))
        return self.add(Scatter(axes, tuple(at), mode, raises), (base, src, *ready), base.type)

    def pick(self, node: Node, position: int) -> Node:
        return self.add(Pick(position), (node,), node.types[position])


def _positions(index: Node) -> Node:
    if index.dtype not in (DType.i64, DType.i32):
        raise NotLowered("an index of a type that eager may refuse")
    return index


def _wrapped(value: bool | int | float, dtype: DType) -> int:
    if not math.isfinite(value):
        raise NotLowered("an integer that is infinite, or no number")
    low, high = dtype.range
    return (int(value) - low) % (high - low + 1) + low


def rounded(value: Scalar, dtype: DType) -> Scalar:
    """A number as a tensor of a half type holds it."""
    if isinstance(value, Expr) or dtype.compute is dtype:
        return value
    held: float = torch.tensor(value, dtype=torch.float64).to(dtype.torch).item()
    return held


def _fits(value: bool | int | float, dtype: DType) -> bool:
    """Whether eager makes a number of this type from it (c10::overflows). Unsigned types take negative numbers."""
    if dtype is DType.bool:
        return True
    if dtype.is_float:
        return not math.isfinite(value) or abs(value) <= torch.finfo(dtype.torch).max
    low, high = dtype.range
    return math.isfinite(value) and (low or -high) <= value <= high


def is_safely(value: bool | int | float, dtype: DType) -> bool:
    """Whether every device converts a number to the same one: not a float that is out of the integer type's range."""
    if dtype is DType.bool or dtype.is_float:
        return True
    low, high = dtype.range
    return math.isfinite(value) and low <= int(value) <= high


def broadcast_shapes(*shapes: tuple[Dim, ...]) -> tuple[Dim, ...]:
    rank = max((len(s) for s in shapes), default=0)
    out: list[Dim] = [1] * rank
    for shape in shapes:
        for i, d in enumerate(shape):
            at = rank - len(shape) + i
            if out[at] == 1:
                out[at] = d
            elif d != 1 and d != out[at]:
                raise NotLowered(f"shapes {shapes} do not broadcast")
    return tuple(out)


def reshape_groups(old: tuple[Dim, ...], new: tuple[Dim, ...]) -> list[tuple[range, range]]:
    """Pair runs of dimensions with equal products, as fine as possible, so indices mix only within a run."""
    groups: list[tuple[range, range]] = []
    i = j = 0
    while i < len(old) or j < len(new):
        i0, j0 = i, j
        a: Dim = 1
        b: Dim = 1
        if i < len(old):
            a, i = old[i], i + 1
        if j < len(new):
            b, j = new[j], j + 1
        while a != b:
            if j < len(new) and (i >= len(old) or not _definitely_smaller(a, b)):
                b, j = b * new[j], j + 1
            elif i < len(old):
                a, i = a * old[i], i + 1
            else:
                break  # d and (d // 4) * 4: eager has checked that what is left on both sides is equal
        groups.append((range(i0, i), range(j0, j)))
    return groups


def _definitely_smaller(a: Dim, b: Dim) -> bool:
    if isinstance(a, int) and isinstance(b, int):
        return a < b
    if isinstance(a, Expr) and isinstance(b, Expr):
        return len(next(iter(a.terms))) < len(next(iter(b.terms)))
    return isinstance(a, int)


def unravel_groups(
    axes: Sequence[Dim], old: tuple[Dim, ...], new: tuple[Dim, ...], groups: list[tuple[range, range]]
) -> list[Dim]:
    index: list[Dim] = [0] * len(old)
    for olds, news in groups:
        olds_big = [i for i in olds if old[i] != 1]
        linear: Dim = 0
        for j in news:
            linear = linear * new[j] + axes[j]
        for i in reversed(olds_big):
            if i == olds_big[0]:
                index[i] = linear
            else:
                index[i] = mod(linear, old[i])
                linear = floordiv(linear, old[i])
    return index


def promote(*args: Any) -> DType:
    """torch's type promotion over nodes and Python numbers: tensors first, then 0-d tensors, then numbers."""
    tiers: list[torch.dtype | None] = [None, None, None]
    for a in args:
        if isinstance(a, Node):
            tier, dtype = (0 if a.shape else 1), a.dtype.torch
        else:
            tier, dtype = (
                2,
                torch.bool
                if isinstance(a, bool)
                else torch.get_default_dtype()
                if isinstance(a, float)
                else torch.int64,
            )
        held = tiers[tier]
        tiers[tier] = dtype if held is None else torch.promote_types(held, dtype)
    result: torch.dtype | None = None
    for candidate in tiers:
        if candidate is None:
            continue
        if result is None or _category(candidate) > _category(result):
            result = candidate
    assert result is not None
    dtype_out = from_torch(result)
    if dtype_out is None:
        raise NotLowered(f"type {result}")
    return dtype_out


def _category(dtype: torch.dtype) -> int:
    return 3 if dtype.is_complex else 2 if dtype.is_floating_point else 0 if dtype is torch.bool else 1
