"""Moves common factors out of a row's sum: sum(x * r * w) is r * sum(x * w). The same for common factors of several
terms.

With a normalisation in front of a product, r is known only after a pass over the row. With r outside, both sums are
computed in the same pass. That saves a reduction, which is a barrier for all threads of a program. A rounding between
the factors is dropped (the sum of unrounded values is more exact), as for any value that is not stored.
"""

from __future__ import annotations

from dataclasses import replace

from burnish.fuel import Fuel
from burnish.ir.body import Apply, BodyBuilder, Loop, Reduced, prune, remap
from burnish.ir.dtypes import DType
from burnish.schedule.gpu.vector_loops import is_vector_product
from burnish.schedule.kernels import Kernel, LoopKernel, Schedule, made_by


def factor_sums(schedule: Schedule, fuel: Fuel | None = None) -> Schedule:
    fuel = fuel or Fuel()
    return schedule.with_kernels([_factored(k, fuel) for k in schedule.kernels])


def _factored(kernel: Kernel, fuel: Fuel) -> Kernel:
    if not isinstance(kernel, LoopKernel) or not is_vector_product(kernel.loop):
        return kernel
    loop = _Factoring(kernel.loop).done()
    if loop.body == kernel.loop.body or not fuel.spend(f"factors: {made_by(kernel)}"):
        return kernel
    return LoopKernel(loop)


class _Factoring:
    def __init__(self, loop: Loop) -> None:
        self.loop = loop
        self.level = loop.element_level()
        self.body = BodyBuilder()
        self.values: dict[int, int] = {}  # the loop's, in the new body

    def done(self) -> Loop:
        for n, i in enumerate(self.loop.body):
            inner, outer = self._factors(i.arg, i.dtype) if isinstance(i, Reduced) and i.kind == "sum" else ([], [])
            if not inner or not outer:
                self.values[n] = self.body.emit(remap(i, self.values, {}))
                continue
            assert isinstance(i, Reduced)
            total = self.body.emit(replace(i, arg=self._product(inner, i.dtype)))
            self.values[n] = self._product([total, *outer], i.dtype)
        return replace(self.loop, body=prune(self.body.instrs))

    def _product(self, factors: list[int], dtype: DType) -> int:
        first, *others = factors
        for other in others:
            first = self.body.emit(Apply("mul", (first, other), dtype))
        return first

    def _factors(self, value: int, dtype: DType) -> tuple[list[int], list[int]]:
        """The factors of a sum's elements, in the new body: those that vary along the row, and those that do not."""
        if not self.level[value]:
            return [], [self.values[value]]
        match self.loop.body[value]:
            case Apply("mul", (a, b), kind) if kind is dtype:
                (left, from_left), (right, from_right) = self._factors(a, dtype), self._factors(b, dtype)
                return left + right, from_left + from_right
            case Apply("add", (a, b), kind) if kind is dtype:
                (left, from_left), (right, from_right) = self._factors(a, dtype), self._factors(b, dtype)
                if left and right and from_left and sorted(from_left) == sorted(from_right):
                    pair = self._product(left, dtype), self._product(right, dtype)
                    return [self.body.emit(Apply("add", pair, dtype))], from_left
            case Apply("cast", (arg,), kind) if kind.compute is dtype:
                made = self.loop.body[arg]
                if isinstance(made, Apply) and made.fn == "mul" and made.dtype is dtype:
                    return self._factors(arg, dtype)
        return [self.values[value]], []
