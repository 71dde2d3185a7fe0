"""Gathers move ahead of element-wise work: a class's loss needs one element of a row of logits, not all of it."""

from __future__ import annotations

from burnish.ir.expr import Dim, of, product, substitute, sym, symbols
from burnish.ir.graph import Full, Gather, Iota, Map, Node, TensorType, View
from burnish.lower.builder import Builder

_FEWER = 4  # minimum reduction in elements for which recomputing them pays


def sink_gathers(b: Builder, node: Node, inputs: tuple[Node, ...]) -> Node | None:
    """gather(f(x, y)) = f(gather(x), gather(y)), down to values that are in memory anyway."""
    if not isinstance(node.op, Gather):
        return None
    source, *indices = inputs
    some, all_of_it = product(node.shape), product(source.shape)
    if (
        not isinstance(source.op, Map)
        or _narrows(source)
        or not isinstance(some, int)
        or not isinstance(all_of_it, int)
    ):
        return None
    if _FEWER * some > all_of_it:
        return None
    return _looked_up(b, source, node.op, node.op.index, tuple(indices), node.shape)


def _looked_up(
    b: Builder, source: Node, op: Gather, index: tuple[Dim, ...], indices: tuple[Node, ...], shape: tuple[Dim, ...]
) -> Node:
    match source.op:
        case Map() if not _narrows(source):
            parts = [_looked_up(b, x, op, index, indices, shape) for x in source.inputs]
            return b.add(source.op, parts, TensorType(source.type.dtype, shape))
        case View(axes, inner, None):
            at = {a.name: i for a, i in zip(axes, index, strict=True)}
            composed = tuple(substitute(i, at) for i in inner)
            if _keeps_bounds(composed):
                checked = _checked_as_before(b, source, index, composed, indices)
                return _looked_up(b, source.inputs[0], op, composed, checked, shape)
        case Full(value):
            return b.add(Full(value), (), TensorType(source.type.dtype, shape))
        case Iota(axes, expr):
            position = substitute(expr, {a.name: i for a, i in zip(axes, index, strict=True)})
            if not _looks_up(position):
                return b.add(Iota(op.axes, position), (), TensorType(source.type.dtype, shape))
    if not any(_looks_up(i) for i in index):
        return b.add(View(op.axes, index, None), (source,), TensorType(source.type.dtype, shape))
    used = [k for k in range(len(indices)) if any(s.name == f"%{k}" for i in index for s in symbols(i))]
    # A view in between may have had no use for some of the indices.
    renamed: dict[str, Dim] = {f"%{k}": sym(f"%{n}") for n, k in enumerate(used)}
    places = tuple(substitute(i, renamed) for i in index)
    return b.add(
        Gather(op.axes, places, op.raises),
        (source, *(indices[k] for k in used)),
        TensorType(source.type.dtype, shape),
    )


def _narrows(node: Node) -> bool:
    """Whether a value takes less memory than what it is made of: it is what will be in memory."""
    return any(x.dtype.itemsize > node.dtype.itemsize for x in node.inputs)


def _keeps_bounds(index: tuple[Dim, ...]) -> bool:
    """Whether each looked-up number is the whole of one place: the size there is what it is checked against. A view
    that joins or splits dimensions has no place of that size."""
    parts = [list(symbols(i)) for i in index if _looks_up(i)]
    names = [s.name for part in parts for s in part]
    bare = all(len(part) == 1 and of(part[0]) in index for part in parts)
    return bare and len(names) == len(set(names))


def _checked_as_before(
    b: Builder, view: Node, index: tuple[Dim, ...], composed: tuple[Dim, ...], indices: tuple[Node, ...]
) -> tuple[Node, ...]:
    """Behind a view of the first part of something longer (padded logits), a number beyond that part would pass for a
    good one: it becomes one beyond all of it."""
    whole, out = view.inputs[0], list(indices)
    for place, size in zip(composed, whole.shape, strict=True):
        if _looks_up(place):
            (looked_up,) = symbols(place)
            k, part = int(looked_up.name[1:]), view.shape[index.index(place)]
            if part != size:
                out[k] = b.where(b.compare("lt", out[k], part), out[k], size)
    return tuple(out)


def _looks_up(index: Dim) -> bool:
    return any(s.name.startswith("%") for s in symbols(index))
