"""Kernels that differ only in their buffers' names, as those of equal blocks do: processed once.

Properties of the kernel alone (its source, its cost) are the same for all of them.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, replace

from burnish.ir.body import Instr, Load, Loop, Store
from burnish.schedule.kernels import (
    AttendKernel,
    AttendSplits,
    ContractGroup,
    ContractKernel,
    ConvolveKernel,
    LoopGroup,
    LoopKernel,
    Operand,
    Product,
)

Printable = LoopKernel | LoopGroup | Product | ContractGroup | AttendKernel | AttendSplits  # all but ATen calls


@dataclass(frozen=True)
class Nameless:
    """A kernel without its buffers' names. Equal `form`: the kernels differ in no more than `names`."""

    form: Hashable
    names: tuple[str, ...]  # in the order in which the kernel mentions them

    def instead_of(self, other: Nameless, buffers: Iterable[str]) -> tuple[str, ...]:
        """This kernel's names for the given names of an `other` kernel of the same form."""
        ours = dict(zip(other.names, self.names, strict=True))
        return tuple(ours[name] for name in buffers)


def nameless(kernel: Printable) -> Nameless:
    naming = _Naming()
    return Nameless((type(kernel), naming.kernel(kernel)), tuple(naming.numbers))


class _Naming:
    """Gives each name the number of its first mention."""

    def __init__(self) -> None:
        self.numbers: dict[str, int] = {}

    def kernel(self, kernel: Printable) -> Hashable:
        match kernel:
            case LoopKernel(loop):
                return self._loop(loop)
            case ContractKernel():
                others = tuple((self._number(acc), self._operand(o)) for acc, o in kernel.others)
                operands = self._operands((kernel.a, kernel.b))
                return (
                    *operands,
                    self._number(kernel.acc),
                    others,
                    kernel.dtype,
                    kernel.library,
                    *self._loop(kernel.loop),
                )
            case ConvolveKernel():
                operands, rest = self._operands((kernel.x, kernel.k)), (kernel.op, kernel.dtype, kernel.splits)
                return (*operands, self._number(kernel.acc), *rest, *self._loop(kernel.loop))
            case ContractGroup() | LoopGroup():
                return tuple(self.kernel(part) for part in kernel.parts)
            case AttendKernel():
                return (kernel.op, *self._operands((*kernel.inputs, kernel.out, kernel.lse)))
            case AttendSplits():
                return (kernel.op, *self._operands((*kernel.inputs, kernel.sums, kernel.most, kernel.totals)))

    def _number(self, name: str) -> int:
        return self.numbers.setdefault(name, len(self.numbers))

    def _operands(self, operands: Sequence[Operand]) -> list[Operand]:
        return [self._operand(o) for o in operands]

    def _operand(self, o: Operand) -> Operand:
        return replace(o, buffer=str(self._number(o.buffer)))

    def _loop(self, loop: Loop) -> tuple[Hashable, ...]:
        return loop.axes, loop.sequential, tuple(self._instr(i) for i in loop.body)

    def _instr(self, i: Instr) -> Hashable:
        if isinstance(i, Load):  # 0, 0.0, -0.0 and False are equal, but print differently
            fill = None if i.guard is None else repr(i.fill)
            return self._number(i.buffer), i.index, i.dtype, i.guard, fill
        if isinstance(i, Store):
            return self._number(i.buffer), i.index, i.value, i.mode, i.dtype, "store"
        return i
