"""Groups of independent loops on a GPU: small kernels share one kernel launch, each with its own programs.

A launch takes about as long as a small kernel, so the projections of one vector, or the separate work on queries, keys
and values, share one launch. Kernels of a group run with the same number of threads, so only loops of the same form are
grouped; and only neighbours, or loops that can be moved forward to become neighbours.
"""

from __future__ import annotations

from burnish.fuel import Fuel
from burnish.ir.body import Loop
from burnish.ir.expr import product
from burnish.schedule.gpu.vector_loops import is_vector_product, vector_loads
from burnish.schedule.kernels import LoopGroup, LoopKernel, Schedule
from burnish.schedule.order import launched_together, side_by_side

_SMALL = 1 << 16  # elements of a loop that ends before the next could be launched
_SHORT = 256  # elements of a row: a head's
_MOST = 6  # parts: each has its code in the kernel


def group_loops(schedule: Schedule, fuel: Fuel | None = None) -> Schedule:
    kinds = [_kind(k.loop) if isinstance(k, LoopKernel) else None for k in schedule.kernels]
    groups = side_by_side(schedule.kernels, kinds, _MOST)
    return schedule.with_kernels(launched_together(groups, LoopKernel, LoopGroup, "group loops", fuel))


def _kind(loop: Loop) -> object:
    """The key of a loop's group; None for a loop that is not grouped."""
    size = product([a.size for a in loop.axes])
    if not isinstance(size, int) or loop.sequential or loop.scans:
        return None
    if is_vector_product(loop):
        return frozenset(i.buffer for i in vector_loads(loop)), loop.reduction[0].size
    return "small" if size <= _SMALL and _has_short_rows(loop) else None


def _has_short_rows(loop: Loop) -> bool:
    """Whether it is a map, or has rows so short that a program takes several at once."""
    length = product([a.size for a in loop.reduction])
    return isinstance(length, int) and length <= _SHORT and all(s.mode == "set" for s in loop.stores)
