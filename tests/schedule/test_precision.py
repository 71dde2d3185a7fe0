"""Which values may be computed to fewer bits: those of which no more than a half type's are kept."""

from __future__ import annotations

from burnish.ir.body import Checked, value_symbol
from burnish.ir.dtypes import DType
from burnish.schedule.precision import rounded_values
from tests.codegen.triton.loops import Writer, at, axes


def test_only_what_is_rounded_before_it_is_added() -> None:
    space, w = axes(8), Writer()
    (a,) = space
    x, y = w.load("x", at(a)), w.load("y", at(a))
    gated = w.apply("mul", w.apply("neg", quotient := w.apply("div", x, y)), y)
    w.store("gated", at(a), gated, DType.bf16)
    added = w.apply("div", y, x)
    w.store("sum", at(a), w.apply("add", added, y), DType.bf16)
    kept = w.apply("div", w.apply("mul", x, x), y)
    w.store("half", at(a), kept, DType.f16)
    w.store("whole", at(a), kept, DType.f32)
    cast = w.apply("div", x, w.apply("mul", y, y))
    w.store("cast", at(a), w.apply("add", w.apply("cast", cast, dtype=DType.bf16), x), DType.f32)
    found = rounded_values(w.loop(space))
    assert {quotient, gated, cast} <= found and not {added, kept} & found


def test_no_place_is_rounded() -> None:
    space, w = axes(8), Writer()
    (a,) = space
    where = w.emit(Checked(w.load("i", at(a), DType.i64), 8))
    w.store("y", value_symbol(where), w.load("x", at(a)), DType.bf16)
    assert where not in rounded_values(w.loop(space))
