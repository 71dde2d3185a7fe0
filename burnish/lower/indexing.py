"""Reads and writes at computed positions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from burnish.ir.dtypes import DType
from burnish.ir.expr import Dim, Expr
from burnish.ir.graph import Node
from burnish.ir.scalar import Mistake
from burnish.lower.builder import Builder, NotLowered, broadcast_shapes
from burnish.lower.pointwise import tensor_of
from burnish.lower.registry import lowering


def wrapped(b: Builder, index: Node, size: Dim) -> Node:
    """Negative positions count from the end, as in eager."""
    index = b.cast(index, DType.i64)
    return b.where(b.compare("lt", index, 0), b.map("add", index, b.full(size, (), DType.i64)), index)


@lowering("embedding.default")
def embedding(b: Builder, table: Node, ids: Node, padding_idx: int = -1, *flags: Any) -> Node:
    shape = b.out[0].shape
    rank = len(ids.shape)
    return b.gather(table, shape, [b.reshape(ids, (*ids.shape, 1))], lambda a, v: [v[0], *a[rank:]])


@lowering("gather.default")
def gather(b: Builder, x: Node, dim: int, index: Node, sparse_grad: bool = False) -> Node:
    if not x.shape or not index.shape:
        raise NotLowered("gather of a scalar")
    dim = dim % len(x.shape)
    return b.gather(x, index.shape, [index], _along(dim, len(x.shape)), "RuntimeError")


@lowering("index_select.default")
def index_select(b: Builder, x: Node, dim: int, index: Node) -> Node:
    if not x.shape or len(index.shape) > 1:
        raise NotLowered("index_select of a scalar, or by a matrix")
    dim = dim % len(x.shape)
    shape = b.out[0].shape
    index = b.reshape(index, [shape[i] if i == dim else 1 for i in range(len(shape))])
    # Eager has a way of its own for the second dimension, and for tensors without elements: each says what it finds.
    raises: Mistake = "RuntimeError" if len(x.shape) > 1 and (dim == 1 or x.shape[dim] == 0) else "IndexError"
    return b.gather(x, shape, [index], _along(dim, len(x.shape)), raises)


class IndexPlan:
    """Where the axes of `x[i0, :, i1, ...]` go: the broadcast index axes take the first index's place when the
    indexed dimensions are adjacent and the front when they are not, as in NumPy."""

    def __init__(self, x: Node, indices: Sequence[Node | None]) -> None:
        full = [*indices, *[None] * (len(x.shape) - len(indices))]
        if any(i is not None and i.dtype in (DType.bool, DType.u8) for i in full) or all(i is None for i in full):
            raise NotLowered("a mask as index has a result of unknown size")
        self.dims = [d for d, i in enumerate(full) if i is not None]
        self.tensors = [i for i in full if i is not None]
        self.index_shape = broadcast_shapes(*(i.shape for i in self.tensors))
        adjacent = self.dims == list(range(self.dims[0], self.dims[-1] + 1))
        self.front = self.dims[0] if adjacent else 0
        kept = [d for d in range(len(x.shape)) if d not in self.dims]
        self.kept = kept
        lead = [x.shape[d] for d in kept[: self.front]]
        self.shape: tuple[Dim, ...] = (*lead, *self.index_shape, *(x.shape[d] for d in kept[self.front :]))

    def broadcast_index(self, b: Builder, index: Node) -> Node:
        """An index tensor as a tensor over the whole result."""
        index = b.expand(index, self.index_shape)
        n, front = len(self.index_shape), self.front
        return b.view(index, self.shape, lambda *a: a[front : front + n])

    def source_index(self, x: Node, axes: Sequence[Expr], values: Sequence[Expr]) -> list[Dim]:
        at: list[Dim] = [0] * len(x.shape)
        for k, d in enumerate(self.dims):
            at[d] = values[k]
        n = len(self.index_shape)
        others = [*axes[: self.front], *axes[self.front + n :]]
        for e, d in zip(others, self.kept, strict=True):
            at[d] = e
        return at

    def ready(self, b: Builder, x: Node) -> list[Node]:
        return [
            self.broadcast_index(b, wrapped(b, i, x.shape[d])) for i, d in zip(self.tensors, self.dims, strict=True)
        ]


@lowering("index.Tensor", "_unsafe_index.Tensor")
def index_tensor(b: Builder, x: Node, indices: Sequence[Node | None]) -> Node:
    plan = IndexPlan(x, indices)
    return b.gather(x, plan.shape, plan.ready(b, x), lambda a, v: plan.source_index(x, a, v))


@lowering("index_put.default", "_unsafe_index_put.default")
def index_put(b: Builder, x: Node, indices: Sequence[Node | None], values: Node, accumulate: bool = False) -> Node:
    if any(i is not None and i.dtype is DType.bool for i in indices):
        return _masked_put(b, x, indices, values, accumulate)
    plan = IndexPlan(x, indices)
    src = b.expand(values, plan.shape)
    if accumulate and x.dtype.compute is not x.dtype:
        raise NotLowered("accumulating in a half type")
    return b.scatter(x, src, plan.ready(b, x), lambda a, v: plan.source_index(x, a, v), "add" if accumulate else "set")


def _masked_put(b: Builder, x: Node, indices: Sequence[Node | None], values: Node, accumulate: bool) -> Node:
    """x[mask] = scalar is a select; with as many values as hits it needs their count, which only eager knows."""
    if len(indices) != 1 or indices[0] is None or values.shape not in ((), (1,)):
        raise NotLowered("a mask as index with many values")
    mask = indices[0]
    mask = b.reshape(mask, (*mask.shape, *[1] * (len(x.shape) - len(mask.shape))))
    value = b.reshape(values, ())
    return b.where(b.expand(mask, x.shape), b.map("add", x, value) if accumulate else b.expand(value, x.shape), x)


def _along(dim: int, rank: int) -> Any:
    return lambda a, v: [v[0] if i == dim else a[i] for i in range(rank)]


def _scatter_ops(name: str, mode: str) -> None:
    def lower(b: Builder, x: Node, dim: int, index: Node, src: Any) -> Node:
        if not x.shape or not index.shape or (mode != "set" and x.dtype.compute is not x.dtype):
            raise NotLowered("scatter of a scalar or into a half type")
        dim = dim % len(x.shape)
        if isinstance(src, Node) and src.shape:
            values = b.view(src, index.shape, lambda *a: a)
        else:
            values = b.expand(tensor_of(b, src, x.dtype), index.shape)
        return b.scatter(x, b.cast(values, x.dtype), [index], _along(dim, len(x.shape)), mode, "RuntimeError")

    lowering(name)(lower)


_scatter_ops("scatter.src", "set")
_scatter_ops("scatter.value", "set")
_scatter_ops("scatter_add.default", "add")


def _require_one_each(index: Node, count: Dim) -> None:
    if index.shape != (count,) and not (index.shape == () and count == 1):
        raise NotLowered("as many indices as slices")


@lowering("index_copy.default")
def index_copy(b: Builder, x: Node, dim: int, index: Node, src: Node) -> Node:
    if not x.shape or len(src.shape) != len(x.shape):
        raise NotLowered("index_copy of a scalar")
    dim = dim % len(x.shape)
    _require_one_each(index, src.shape[dim])
    index = b.reshape(index, [src.shape[i] if i == dim else 1 for i in range(len(x.shape))])
    return b.scatter(x, src, [index], _along(dim, len(x.shape)))


@lowering("index_add.default")
def index_add(b: Builder, x: Node, dim: int, index: Node, src: Node, alpha: Any = 1) -> Node:
    if not x.shape or len(src.shape) != len(x.shape) or x.dtype.compute is not x.dtype or x.dtype is DType.bool:
        raise NotLowered("index_add of this type")
    dim = dim % len(x.shape)
    _require_one_each(index, src.shape[dim])
    # Along an outermost dimension eager scatters where it can, and says what a scatter says.
    scatters = len(x.shape) > 1 and dim in (0, len(x.shape) - 1) and alpha == 1 and index.dtype is DType.i64
    raises: Mistake = "RuntimeError" if scatters else "IndexError"
    index = b.reshape(index, [src.shape[i] if i == dim else 1 for i in range(len(x.shape))])
    values = b.cast(src, x.dtype) if alpha == 1 else b.map("mul", b.cast(src, x.dtype), alpha)
    return b.scatter(x, values, [index], _along(dim, len(x.shape)), "add", raises)


@lowering("embedding_dense_backward.default")
def embedding_dense_backward(b: Builder, grad: Node, ids: Node, rows: Dim, padding: int, scale: bool) -> Node:
    if scale or grad.dtype.compute is not grad.dtype:
        raise NotLowered("embedding gradient scaled by frequency")
    rank = len(ids.shape)
    ids_full = b.expand(b.reshape(ids, (*ids.shape, 1)), grad.shape)
    if padding >= 0:
        keep = b.compare("ne", b.cast(ids_full, DType.i64), padding)
        grad = b.where(keep, grad, b.full(0, (), grad.dtype))
    zero = b.full(0, b.out[0].shape, grad.dtype)
    return b.scatter(zero, grad, [ids_full], lambda a, v: [v[0], *a[rank:]], "add")
