"""Loop → one Triton kernel.

`codegen/c/loop.py` prints the same body as a loop nest. Here it is printed over tiles: `launch.plan` selects the axes
that are lanes of the tile, and the block of each. A value's shape follows from the lanes it varies with, so one printer
serves the forms map, tile and row. `long_rows.py` prints rows in chunks, pass by pass; `mixed_order.py` prints
rows together with sums of columns.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from burnish.codegen.signature import Signature
from burnish.codegen.triton.body import BodyPrinter
from burnish.codegen.triton.launch import LONGEST_ROW, Launch, LaunchPlan, loop_forms, plan
from burnish.codegen.triton.long_rows import LongRows
from burnish.codegen.triton.mixed_order import MixedOrder
from burnish.codegen.triton.scalar import reduce_text
from burnish.codegen.triton.shared_loads import load_for_neighbours
from burnish.codegen.triton.small_integers import small_weights
from burnish.device import REFERENCE, Gpu
from burnish.ir.body import Apply, Instr, Load, Loop, Reduced, Store, value_refs
from burnish.ir.dtypes import DType
from burnish.ir.expr import Dim, coefficient
from burnish.schedule.axes import normalise
from burnish.schedule.form import Form
from burnish.schedule.phases import Phases

MOST_SUMS = 4  # sums that share one reduction: `runtime/triton/device_functions.py` has functions for 2 to 4


# Stands where a kernel waits for the previous one, in modules whose kernels overlap; removed in others.
AHEAD = "    # wait for the kernel ahead"


@dataclass(frozen=True)
class TritonKernel:
    """A kernel function with what a caller must know to launch it.

    Its parameters are the signature's buffers, its sizes, `error` (a pointer to int64) if it checks indices, then by
    name `INDEX` if `reach` is not empty (tl.int32 if every expression in it is below 2**31, else tl.int64), and the
    blocks of its launch. No programs: no launch.
    """

    text: str  # with `@` for the function's name, so equal kernels have equal text
    signature: Signature
    types: tuple[str, ...]  # of the parameters before `INDEX`, as Triton's signatures name them
    launch: Launch
    reach: tuple[Dim, ...] = ()


def print_loop(
    loop: Loop, gpu: Gpu = REFERENCE, unwritten: frozenset[str] = frozenset(), form: Form | None = None
) -> TritonKernel:
    """`unwritten` are buffers that no kernel of the program writes; `form` is one of `forms_of`."""
    return printer_for(loop, gpu, unwritten, form).print()


def printer_for(loop: Loop, gpu: Gpu, unwritten: frozenset[str] = frozenset(), form: Form | None = None) -> LoopPrinter:
    printed = _as_rows(normalise(loop))
    return LoopPrinter(printed, plan(printed, gpu, form), unwritten)


def forms_of(loop: Loop, gpu: Gpu) -> list[Form]:
    """The forms of its kernel that a search tries, the cost model's first."""
    return loop_forms(_as_rows(normalise(loop)), gpu)


def _as_rows(loop: Loop) -> Loop:
    """A map over long rows of odd length that are not contiguous with one another becomes a loop over rows, as if it
    reduced them. As a map over all elements, each index would need a division, and accesses would not be vectorised."""
    if loop.reduction or loop.sequential or len(loop.axes) < 2:
        return loop
    inner = loop.axes[-1]
    accesses = [i for i in loop.body if isinstance(i, Load | Store)]
    along = all(coefficient(i.index, inner.name) in (0, 1) for i in accesses)
    plain = all(s.mode == "set" and coefficient(s.index, inner.name) == 1 for s in loop.stores)
    odd = isinstance(inner.size, int) and inner.size > LONGEST_ROW and inner.size % 16 != 0
    return replace(loop, axes=(*loop.axes[:-1], replace(inner, reduce=True))) if along and plain and odd else loop


class LoopPrinter(BodyPrinter):
    """Prints one normalised loop as a kernel."""

    def __init__(self, loop: Loop, planned: LaunchPlan | None = None, unwritten: frozenset[str] = frozenset()) -> None:
        super().__init__(loop, planned, unwritten)
        self.small = small_weights(self)  # where the loop's matrices are of small integers

    def pointer(self, n: int, span: frozenset[str]) -> str:
        i = self.body[n]
        if self.small is not None and isinstance(i, Load) and "r" in span:
            return self.small.pointer(n, i)
        return super().pointer(n, span)

    def expression(self, n: int) -> str:
        match i := self.body[n]:
            case Apply("cast", (arg,), DType.f32) if self.small is not None and (text := self.small.cast(arg)):
                return text
            case Reduced(kind, _, dtype, _) if self.small is not None and self.small.is_sum(i):
                return reduce_text(kind, dtype, self.small.partial(n, whole=False))
        return super().expression(n)

    def load(self, n: int, i: Load) -> str:
        if self.small is not None and n in self.small.shared:
            return self.small.shared_load(n, i)
        return load_for_neighbours(self, n, i) or super().load(n, i)

    # --- whole kernels ------------------------------------------------------------------------------------------

    def print(self) -> TritonKernel:
        if self.plan.form == "mixed":
            MixedOrder(self, AHEAD).print()
            return TritonKernel(self.text(), self.signature, self.types(), self.plan.launch, self.reach)
        if self.plan.form == "tile":
            self._tile_lanes()
        else:
            self._leading_lane()
        if self.plan.form == "long":
            self.lines.append(AHEAD)
            LongRows(self).print()
        else:
            self._straight()
        return TritonKernel(self.text(), self.signature, self.types(), self.plan.launch, self.reach)

    def _straight(self) -> None:
        """Each value once, in the body's order."""
        if self.plan.form == "row":
            self.open_lane("r", "", self.body_values())
        if self.small is not None:
            self.small.open_chunks()
        printed = set() if self.small is None else set(self.body_values()) - self.small.live
        early = [n for n, i in enumerate(self.body) if self._is_early(i) and n not in printed]
        for n in early:
            self.statement(n)
        self.lines.append(AHEAD)
        first = self.asked_first()
        together = self._summed_together()
        printed |= set(early)
        for n in dict.fromkeys([*first, *self._in_order()]):
            if n not in printed:
                sums = together.get(n, [n])
                printed.update(sums)
                self.statement(n) if len(sums) == 1 else self._sums(sums)

    def _in_order(self) -> list[int]:
        """The body's values in order. Those of a vector product are sorted by pass: sums of one pass are adjacent."""
        if not self.multiplies:
            return self.body_values()
        ready = Phases(self.loop).ready
        return sorted(self.body_values(), key=lambda n: 2 * ready[n] - isinstance(self.body[n], Reduced))

    def _summed_together(self) -> dict[int, list[int]]:
        """For each sum, all sums of its pass: they share one reduction, and so one barrier."""
        if not self.multiplies:
            return {}
        phases = Phases(self.loop)
        found: dict[int, list[int]] = {}
        for phase in range(phases.last):
            sums = [n for n in phases.reductions(phase) if self._is_plain_sum(self.body[n])]
            found |= dict.fromkeys(sums, sums) if 2 <= len(sums) <= MOST_SUMS else {}
        return found

    @staticmethod
    def _is_plain_sum(i: Instr) -> bool:
        return isinstance(i, Reduced) and i.kind == "sum" and i.dtype is DType.f32

    def _sums(self, sums: list[int]) -> None:
        if self.small is not None:
            args = [self.small.partial(n, whole=True) for n in sums]
        else:
            args = [self.masked(i.arg, i.dtype, "0.0") for n in sums if isinstance(i := self.body[n], Reduced)]
        names = ", ".join(map(self.value, sums))
        self.line(f"{names} = tl.reduce(({', '.join(args)}), 1, bn.add_{len(sums)}, keep_dims=True)")

    def _is_early(self, i: Instr) -> bool:
        """Whether to load a value before the wait for the previous kernel. No kernel may write it. It is a vector that
        is combined with each row, or the rows themselves if each is read once."""
        if not isinstance(i, Load) or i.buffer not in self.unwritten or i.guard is not None or value_refs(i.index):
            return False
        rows = "x" in self._lanes_in(self._flattened(i.index))
        return self.plan.form == "row" and (not rows or self.multiplies)

    def _leading_lane(self) -> None:
        lane = self.lane("x")
        if not lane.axes:
            return
        if self.plan.outside:
            self.line(f"across = tl.cdiv({self.index(lane.size)}, XBLOCK)")
            self.define_outside(self.widened(f"({self.program} // across)"))
            first = f"{self.widened(f'({self.program} % across)')} * XBLOCK"
        else:
            first = f"{self.widened(self.program)} * XBLOCK"
        if self.small is None:
            self.line(f"x = {first} + {self.arange(lane)}")
        else:
            self.line(f"first = {first}")
            self.line(f"rows = {self.arange(lane)}")
            self.line("x = first + rows")
        self.define_mask(lane)
        self.define_axes(lane, self.body_values())

    def _tile_lanes(self) -> None:
        y, x = self.plan.lanes
        self.line(f"program = {self.widened(self.program)}")
        self.line(f"across = tl.cdiv({self.index(x.size)}, XBLOCK)")
        self.line(f"down = tl.cdiv({self.index(y.size)}, YBLOCK)")
        self.line(f"x = program % across * XBLOCK + {self.arange(x)}")
        self.line(f"y = program // across % down * YBLOCK + {self.arange(y)}")
        self.define_outside("program // (across * down)")
        for lane in (y, x):
            self.define_mask(lane)
