"""Rows too long for one program to hold → a loop over chunks of them, pass by pass; printed for `loop.py`."""

from __future__ import annotations

from collections.abc import Sequence

from burnish.codegen.triton.body import BodyPrinter, NotPrintable
from burnish.codegen.triton.scalar import VALUE_TYPE, combine_text, reduce_text, reduction_identity
from burnish.ir.body import Apply, Instr, Reduced, Scanned, instr_args
from burnish.ir.dtypes import DType
from burnish.schedule.phases import Phases

_INT32 = 2**31 - 1


class LongRows(Phases):
    """Rows read in chunks, once per dependent reduction; each pass recomputes the element values it needs.

    The sum of exp(x - max(x)) does not wait for the maximum: it is kept relative to the greatest element so far."""

    def __init__(self, printer: BodyPrinter) -> None:
        self.p = printer
        self.relative = _sums_of_exponentials(printer.loop.body)
        super().__init__(printer.loop)

    def _ready_phases(self) -> list[int]:
        ready: list[int] = []
        for n, i in enumerate(self.body):
            known = max((ready[a] for a in instr_args(i)), default=0)
            ready.append(known + (isinstance(i, Reduced) and n not in self.relative))
            if n in self.relative:
                ready[n] = ready[self.relative[n]]
        return ready

    def pass_roots(self, phase: int) -> list[int]:
        args = [self._reduced(n).arg for n in self.reductions(phase) if n not in self.relative]
        return [a for a in args if self.level[a]] + self.element_stores(phase)

    def print(self) -> None:
        p = self.p
        if p.loop.scans:
            self._scan()
            return
        for phase in range(self.last + 1):
            for n in self.row_values(phase):
                p.statement(n)
            if self.reductions(phase) or self.element_stores(phase):
                self._pass(phase)

    def _open(self, values: list[int], bounds: str | None = None) -> None:
        p = self.p
        p.line(f"for start in range({bounds or '0, ' + p.index(p.lane('r').size)}, RBLOCK):")
        p.indent += 1
        p.open_lane("r", "start + ", values)

    def _pass(self, phase: int) -> None:
        p = self.p
        reductions = self.reductions(phase)
        for n in reductions:
            self._declare(n)
        lane = p.lane("r")
        if lane.masked and isinstance(lane.size, int) and lane.size % 16 != 0:
            # A mask that ends at an odd place would make every access one of a single element: only the last has it.
            whole = f"{lane.size} // RBLOCK * RBLOCK"
            p.inside.add("r")
            self._chunks(phase, f"0, {whole}")
            p.inside.discard("r")
            self._chunks(phase, f"{whole}, {lane.size}")
        else:
            self._chunks(phase)
        for n in reductions:
            self._combine(n)

    def _chunks(self, phase: int, bounds: str | None = None) -> None:
        p = self.p
        reductions = self.reductions(phase)
        values = self.needed(self.pass_roots(phase), set())
        self._open([*values, *reductions], bounds)
        for n in values:
            p.statement(n)
        for n in reductions:
            self._accumulate(n)
        p.indent -= 1

    def _declare(self, n: int) -> None:
        i, p = self._reduced(n), self.p
        held = p.dtype(i.arg) if i.kind.startswith("arg") else i.dtype
        kind = "tl.int32" if i.kind.startswith("arg") and held is DType.bool else VALUE_TYPE[held]
        span = "xr" if i.kind.startswith("arg") or p.spans[i.arg] != {"r"} else "r"
        p.line(f"a{n} = tl.full({p.shape(span)}, {reduction_identity(i.kind, held)}, {kind})")
        if i.kind.startswith("arg"):
            p.line(f"at{n} = tl.full({p.shape('xr')}, {_INT32}, {p.width})")

    def _reduced(self, n: int) -> Reduced:
        i = self.body[n]
        assert isinstance(i, Reduced)
        return i

    def _accumulate(self, n: int) -> None:
        if n in self.relative:
            return  # with its maximum
        i, p = self._reduced(n), self.p
        if i.kind.startswith("arg"):
            value, place = p.pair(i)
            p.line(f"a{n}, at{n} = bn.{i.kind}(a{n}, at{n}, {value}, {place})")
        else:
            value = p.masked(i.arg, i.dtype, reduction_identity(i.kind, i.dtype), whole=False)
            p.line(self._accumulated(n, i, value))

    def _accumulated(self, n: int, i: Reduced, value: str) -> str:
        for total, most in self.relative.items():
            if most == n:
                return f"a{n}, a{total} = bn.with_exponential(a{n}, a{total}, {value})"
        return f"a{n} = {combine_text(i.kind, i.dtype, f'a{n}', value)}"

    def _combine(self, n: int) -> None:
        i, p = self._reduced(n), self.p
        if i.kind.startswith("arg"):
            p.reduce_pair(n, i)
        elif n in self.relative:
            most = self.relative[n]
            p.line(f"v{n} = {reduce_text(i.kind, i.dtype, f'a{n} * tl.exp(a{most} - v{most})')}")
        else:
            p.line(f"v{n} = {reduce_text(i.kind, i.dtype, f'a{n}')}")

    def _scan(self) -> None:
        """A running value over chunks: each goes on from the total of those before."""
        p = self.p
        if any(isinstance(i, Reduced) for i in self.body):
            raise NotPrintable("a scan and a reduction over a row too long to hold")
        rows = [n for n in p.body_values() if not self.level[n]]
        values = [n for n in p.body_values() if self.level[n]]
        for n in rows:
            p.statement(n)
        scans = {n: i for n, i in enumerate(self.body) if isinstance(i, Scanned)}
        for n, i in scans.items():
            p.line(f"a{n} = tl.full([XBLOCK, 1], {reduction_identity(i.kind, i.dtype)}, {VALUE_TYPE[i.dtype]})")
        self._open(values)
        for n in values:
            p.statement(n)
            if n in scans:
                kind, arg, dtype = scans[n].kind, scans[n].arg, scans[n].dtype
                p.line(f"v{n} = {combine_text(kind, dtype, f'a{n}', f'v{n}')}")
                total = reduce_text(kind, dtype, p.masked(arg, dtype, reduction_identity(kind, dtype)))
                p.line(f"a{n} = {combine_text(kind, dtype, f'a{n}', total)}")
        p.indent -= 1


def _sums_of_exponentials(body: Sequence[Instr]) -> dict[int, int]:
    """Reductions that sum exp(x - m) where m is the greatest x of the row, with that maximum: one for each."""
    found: dict[int, int] = {}
    for n, i in enumerate(body):
        if not (isinstance(i, Reduced) and i.kind == "sum" and i.dtype is DType.f32):
            continue
        power = body[i.arg]
        gap = body[power.args[0]] if isinstance(power, Apply) and power.fn == "exp" else None
        if not (isinstance(gap, Apply) and gap.fn == "sub" and gap.dtype is DType.f32):
            continue
        x, most = gap.args
        m = body[most]
        if isinstance(m, Reduced) and (m.kind, m.arg, m.dtype) == ("max", x, DType.f32) and most not in found.values():
            found[n] = most
    return found
