"""Loads that neighbours along a row share (a scale for each 128 elements): loaded once, then broadcast.

Triton would have every lane load its own copy, one element at a time.
"""

from __future__ import annotations

from burnish.codegen.triton.body import BodyPrinter
from burnish.codegen.triton.scalar import load_text
from burnish.ir.body import Load
from burnish.ir.expr import Dim, Div, floordiv, mentions, substitute, sym

_FEWEST = 8  # neighbours: fewer are not worth another arrangement of the tile


def load_for_neighbours(p: BodyPrinter, n: int, load: Load) -> str | None:
    """A load of one element for each group along the row, repeated for the group; None where it is no such load."""
    lane = p.plan.lanes[-1]
    if p.plan.form != "row" or len(lane.axes) != 1 or load.guard is not None or not p.spans[n] >= {"r"}:
        return None
    (axis,) = lane.axes
    found = shared_by(p.indices[n], axis.name)
    if found is None or not isinstance(lane.size, int) or lane.size % found != 0:
        return None
    block, rows = f"{lane.block} // {found}", "XBLOCK" if "x" in p.spans[n] else "1"
    places = f"tl.arange(0, {block})[None, :]"
    index = p.index(substitute(p.indices[n], {axis.name: found * sym("@group", 0, floordiv(lane.size, found) - 1)}))
    mask = p.mask(p.spans[n] - {"r"}) + ([f"(group < {lane.size // found})"] if p.mask("r") else [])
    given = [f"{p.buffer(load.buffer, load.dtype)} + {index}", *([" & ".join(mask)] if mask else [])]
    p.line(f"group = {p.widened(places)}")
    value = load_text(load.dtype, f"tl.load({', '.join(given)})")
    p.line(f"shared = tl.broadcast_to(({value})[:, :, None], [{rows}, {block}, {found}])")
    return f"tl.reshape(shared, [{rows}, {lane.block}])"


def shared_by(index: Dim, axis: str) -> int | None:
    """How many neighbours along an axis read the same element: a power of two, or None."""
    if isinstance(index, int):
        return None
    groups = {
        atom.den for mono in index.terms for atom in mono
        if isinstance(atom, Div) and isinstance(atom.den, int) and mentions(atom.num, {axis})
    }  # fmt: skip
    if len(groups) != 1:
        return None
    (size,) = groups
    if not isinstance(size, int) or size < _FEWEST or size & (size - 1):
        return None
    inside: Dim = size * sym("@group") + sym("@within", 0, size - 1)
    return None if mentions(substitute(index, {axis: inside}), {"@within"}) else size
