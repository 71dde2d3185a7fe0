"""The precision that a value needs, decided by its readers."""

from __future__ import annotations

from burnish.ir.body import Apply, Instr, Loop, Store, instr_args, instr_index, value_refs

_KEEP_RELATIVE_ERRORS = ("mul", "div", "neg")


def rounded_values(loop: Loop) -> frozenset[int]:
    """Values that are only multiplied and divided before they are rounded to a half type: an error in their last two
    bits is lost in the rounding."""
    found: set[int] = set()
    fate: dict[int, bool] = {}  # whether all readers of a value round it
    for n in range(len(loop.body) - 1, -1, -1):
        i = loop.body[n]
        if fate.get(n, False):
            found.add(n)
        passes_on = isinstance(i, Apply) and i.fn in _KEEP_RELATIVE_ERRORS and n in found
        harmless, places = passes_on or _rounds(i), value_refs(instr_index(i))
        for a in instr_args(i):
            fate[a] = fate.get(a, True) and harmless and a not in places
    return frozenset(found)


def _rounds(i: Instr) -> bool:
    half = i.dtype.is_float and i.dtype.compute is not i.dtype
    return half and (i.mode == "set" if isinstance(i, Store) else isinstance(i, Apply) and i.fn == "cast")
