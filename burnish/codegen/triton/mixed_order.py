"""A reduction of each row and sums over all rows in one kernel (a mix-order reduction): one program processes many rows
in sequence and accumulates the sum of each column.

The next rows are prefetched while the current ones are processed, so memory accesses do not wait for a reduction.
"""

from __future__ import annotations

from burnish.codegen.triton.body import BodyPrinter
from burnish.ir.body import Const, Load, Store

_AHEAD_BY = 3  # rows of which one is worked on and the others are under way


class MixedOrder:
    def __init__(self, printer: BodyPrinter, ahead: str) -> None:
        self.p, self.ahead = printer, ahead
        self.totals = [n for n, i in enumerate(printer.body) if isinstance(i, Store) and i.mode == "total"]

    def print(self) -> None:
        p = self.p
        p.define_outside("tl.program_id(0)")
        p.open_lane("r", "", p.body_values())
        once = [n for n in p.body_values() if self._is_same_for_all_rows(n)]
        early = [n for n in once if self._is_unwritten(n)]
        for n in early:
            p.statement(n)
        p.lines.append(self.ahead)
        for n in once:
            if n not in early:
                p.statement(n)
        for n in self.totals:
            p.line(f"a{n} = tl.zeros({p.shape('xr')}, tl.float32)")
        self._rows([n for n in p.body_values() if n not in once and n not in self.totals])
        for n in self.totals:
            self._store_total(n)

    def _rows(self, values: list[int]) -> None:
        p = self.p
        rows = p.lane("x")
        p.line(f"for start in tl.range(0, {p.index(rows.size)}, XBLOCK, num_stages={_AHEAD_BY}):")
        p.indent += 1
        p.line(f"x = start + {p.widened(p.arange(rows))}")
        for n in dict.fromkeys([*p.asked_first(), *values]):
            if n in values:
                p.statement(n)
        for n in self.totals:
            store = p.body[n]
            assert isinstance(store, Store)
            p.line(f"a{n} += {p.ref(store.value)}")
        p.indent -= 1

    def _is_same_for_all_rows(self, n: int) -> bool:
        return "x" not in self.p.spans[n] and not isinstance(self.p.body[n], Store)

    def _is_unwritten(self, n: int) -> bool:
        """Data that no kernel writes can be loaded while the previous kernel still runs."""
        i = self.p.body[n]
        return isinstance(i, Const) or (isinstance(i, Load) and i.buffer in self.p.unwritten and i.guard is None)

    def _store_total(self, n: int) -> None:
        p = self.p
        mask = ", ".join(["", *p.mask("r")])
        p.line(f"tl.store({p.pointer(n, frozenset('r'))}, tl.sum(a{n}, 0, keep_dims=True){mask})")
