"""Recognition of vector products among loops: which loops are such products, and which of their loads is the matrix."""

from __future__ import annotations

from burnish.ir.body import Load, Loop, value_refs
from burnish.ir.expr import coefficient, mentions


def is_vector_product(loop: Loop) -> bool:
    """Whether the loop's time is that of reading a matrix row by row, to combine each row with one vector. There may be
    several matrices, each with its vector, and the matrix may be selected by an index. A loop that stores its rows (a
    norm) is not a vector product."""
    if not loop.reduction or not loop.parallel or loop.scans:
        return False
    if any(mentions(s.index, {a.name for a in loop.reduction}) for s in loop.stores):
        return False
    whole = [_is_whole(points, loop) for _, points in _row_loads(loop)]
    return any(whole) and not all(whole)


def matrices(loop: Loop) -> int:
    """The number of matrices that a vector product reads; data that neighbours of a row share (a scale) does not
    count."""
    return len(matrix_loads(loop))


def matrix_loads(loop: Loop) -> list[Load]:
    along = loop.reduction[-1].name
    return [
        i for i, points in _row_loads(loop)
        if _is_whole(points, loop) and (len(loop.reduction) > 1 or coefficient(i.index, along) is not None)
    ]  # fmt: skip


def is_of_bytes(loop: Loop) -> bool:
    """Whether all matrices of a vector product have weights of a byte or less, and none is selected by an index."""
    return not choosing_axes(loop) and all(i.dtype.itemsize == 1 for i in matrix_loads(loop))


def vector_loads(loop: Loop) -> list[Load]:
    return [i for i, points in _row_loads(loop) if not _is_whole(points, loop)]


def choosing_axes(loop: Loop) -> frozenset[str]:
    """The axes that select a vector product's matrix by an index: all rows of a program have the same."""
    if not is_vector_product(loop):
        return frozenset()
    points = loop.value_axes
    chosen = [points[v] for i in matrix_loads(loop) for v in value_refs(i.index)]
    return frozenset().union(*chosen)


def _is_whole(points: frozenset[str], loop: Loop) -> bool:
    return all(a.name in points for a in loop.parallel)


def _row_loads(loop: Loop) -> list[tuple[Load, frozenset[str]]]:
    """Loads along the row, each with the axes that its offset depends on, directly or through a loaded index."""
    reduced, points = {a.name for a in loop.reduction}, loop.value_axes
    return [
        (i, points[n]) for n, i in enumerate(loop.body) if isinstance(i, Load) and mentions(i.index, reduced)
    ]  # fmt: skip
