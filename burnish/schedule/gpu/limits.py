"""Limits and estimates that several decisions about a GPU's kernels share."""

from __future__ import annotations

from burnish.device import Gpu
from burnish.schedule.kernels import Operand


def most_tiles(gpu: Gpu) -> int:
    """The number of 64 x 64 tiles above which throughput, not latency, bounds the time."""
    return 4 * gpu.multiprocessors


def describable(o: Operand) -> bool:
    """Whether a tensor descriptor can describe a matrix: one dimension contiguous, the other at multiples of 16 bytes,
    as is the start."""
    if (
        o.dtype is None
        or o.dtype.itemsize != 2
        or not all(isinstance(d, int) for d in (*o.shape, *o.strides, o.offset))
    ):
        return False
    inner, outer = sorted(int(s) for s in o.strides)  # type: ignore[arg-type]
    return inner == 1 and outer % 8 == 0 and o.offset % 8 == 0
