"""Split-K on a GPU: the sums of a product or a convolution in equal splits, whose parts the next kernel adds.

With few tiles and long sums, one program a tile would leave multiprocessors idle.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from burnish.device import Gpu
from burnish.ir.body import Loop
from burnish.ir.expr import Dim
from burnish.schedule.epilogue import parts_of, reading, sum_of_parts
from burnish.schedule.gpu.limits import most_tiles
from burnish.schedule.kernels import Kernel, LoopKernel, Product, Schedule

TILE = 64
_SHORTEST_SPLIT = 1024  # minimum elements of a sum in a split
_SHORTEST = 256  # the minimum in a measured search
_MOST_SPLITS = 8
_MEASURED = (2, 3, 4, 6, 8)


@dataclass(frozen=True)
class Sums:
    """Sums of `length` elements, in steps of `step` elements, for `tiles` tiles of 64 x 64 results."""

    tiles: int
    length: int
    step: int

    def splits(self, gpu: Gpu) -> int:
        """The number of splits, by the rule."""
        if 2 * self.tiles > gpu.multiprocessors:
            return 1
        wanted = min(-(-gpu.multiprocessors // self.tiles), _MOST_SPLITS)
        return max((s for s in range(1, wanted + 1) if self._fits(s, _SHORTEST_SPLIT)), default=1)

    def to_measure(self, gpu: Gpu) -> list[int]:
        return [s for s in _MEASURED if self._fits(s, _SHORTEST) and s * self.tiles <= most_tiles(gpu)]

    def _fits(self, splits: int, shortest: int) -> bool:
        return self.length % (splits * self.step) == 0 and self.length // splits >= shortest


def tiles_of(rows: Dim, columns: Dim, times: Dim = 1) -> int | None:
    """How many 64 x 64 tiles a result has, if its sizes are known."""
    if not (isinstance(rows, int) and isinstance(columns, int) and isinstance(times, int)):
        return None
    return times * -(-rows // TILE) * -(-columns // TILE)


def in_splits(schedule: Schedule, kernel: Product, splits: int, part: Callable[[str, Loop], Kernel]) -> list[Kernel]:
    """Two kernels: `part(acc, loop)`, which computes the partial sums, and the epilogue, which adds them."""
    parts, loop = parts_of(kernel, splits)
    schedule.buffers[parts.name] = parts
    epilogue = reading(kernel, lambda body, load: sum_of_parts(body, load, parts))
    return [part(f"{kernel.acc}_part", loop), LoopKernel(epilogue)]
