"""Memory layouts: the strides of a stored node, and when they differ from the contiguous ones."""

from __future__ import annotations

from burnish.ir.expr import Dim, contiguous_strides, is_nonneg, product
from burnish.ir.graph import Contract, Convolve, Graph, Map, Node, View

_LONG_ROW = 64  # elements to which rows of operands are padded on a GPU, if they are that long
_LARGE_MATRIX = 1 << 20


def multiplied(graph: Graph) -> frozenset[int]:
    """Values that are operands of products, as they are or through a view."""
    operands = [x for node in graph.nodes if isinstance(node.op, Contract) for x in node.inputs]
    return frozenset((x.inputs[0] if isinstance(x.op, View) else x).id for x in operands)


def has_odd_rows(node: Node) -> bool:
    """Whether rows of a large matrix would be unaligned: tensor cores need multiples of 16 bytes."""
    last = node.shape[-1] if node.shape else 1
    size = product(node.shape)
    if not isinstance(last, int) or not isinstance(size, int):
        return False
    return last * node.dtype.itemsize % 16 != 0 and last >= _LONG_ROW and size >= _LARGE_MATRIX


def padded(shape: tuple[Dim, ...]) -> tuple[Dim, ...]:
    """Strides with room at the end of each row."""
    last = shape[-1]
    assert isinstance(last, int)
    return (*(s for s in contiguous_strides((*shape[:-1], -(-last // _LONG_ROW) * _LONG_ROW))[:-1]), 1)


def ends_product(cast: Node) -> bool:
    """Whether a value is a product's rounded result: the value that is stored, if it must be."""
    (source,) = cast.inputs
    biased = isinstance(source.op, Map) and source.op.fn == "add" and source.origin == cast.origin
    return any(isinstance(x.op, Contract | Convolve) for x in (source, *(source.inputs if biased else ())))


def steps_forward(stride: Dim | None) -> bool:
    """Tensors have no negative strides, so a flipped operand is stored first."""
    return stride is not None and is_nonneg(stride)


def dense(layout: tuple[Dim, ...] | None, shape: tuple[Dim, ...]) -> tuple[Dim, ...] | None:
    """The strides, if they pack the elements without gaps or overlap in some order of the dimensions."""
    if layout is None or len(layout) != len(shape):
        return None
    if layout == contiguous_strides(shape):
        return layout
    big = [(s, d) for s, d in zip(layout, shape, strict=True) if d != 1]
    if not all(isinstance(s, int) for s, _ in big):
        return None
    expected: Dim = 1
    for stride, size in sorted(big, key=lambda sd: sd[0]):  # type: ignore[arg-type,return-value]
        if stride != expected:
            return None
        expected = expected * size
    return layout


def sharing_axes(strides: tuple[Dim, ...], shape: tuple[Dim, ...]) -> list[int]:
    """Dimensions in which different elements share memory: those whose stride is smaller than the extent of others.
    Symbolic strides belong to a real tensor, and share memory only if they are zero."""
    if 0 in shape:
        return []
    big = [n for n, d in enumerate(shape) if d != 1]
    if not all(isinstance(strides[n], int) and isinstance(shape[n], int) for n in big):
        return [n for n in big if strides[n] == 0]
    out: list[int] = []
    below: list[int] = []
    span: Dim = 0
    for n in sorted(big, key=lambda n: strides[n]):  # type: ignore[arg-type,return-value]
        if strides[n] <= span:  # type: ignore[operator]
            out += [m for m in below if m not in out] + [n]
        below.append(n)
        span += strides[n] * (shape[n] - 1)
    return out


def as_views_have(strides: tuple[Dim, ...], shape: tuple[Dim, ...]) -> tuple[Dim, ...]:
    """With the strides that torch's views give dimensions of size 1: some of ATen's kernels count on them."""
    out = list(strides)
    step: Dim = 1
    for n in reversed(range(len(shape))):
        if shape[n] == 1:
            out[n] = step
        else:
            step = out[n] * shape[n]
    return tuple(out)


def attend_layout(shape: tuple[Dim, ...], k: int) -> tuple[Dim, ...]:
    """Attention's result as ATen lays it out: [batch, length, head, dim] in memory, so merging heads is a view."""
    if k == 0:
        _, h, n, d = shape
        return (n * h * d, d, h * d, 1)
    _, h, n = shape
    return (n * h, 1, h)
