"""Loops written by hand, one or more for each form a kernel takes."""

from __future__ import annotations

import torch

from burnish.ir.body import Apply, Axis, BodyBuilder, Load, Loop, Reduced, Scanned, Store, const, make_axis
from burnish.ir.dtypes import DType
from burnish.ir.expr import Dim, Expr

Buffers = dict[str, torch.Tensor]


def at(axis: Axis) -> Expr:
    return Expr({(axis.sym,): 1})


def axes(*sizes: Dim, reduce: tuple[int, ...] = ()) -> tuple[Axis, ...]:
    return tuple(make_axis(f"i{k}", size, k in reduce) for k, size in enumerate(sizes))


def linear(space: tuple[Axis, ...]) -> Dim:
    total: Dim = 0
    for a in space:
        total = total * a.size + at(a)
    return total


class Writer(BodyBuilder):
    """Bodies in a few words."""

    def load(self, buffer: str, index: Dim, dtype: DType = DType.f32, guard: int | None = None, fill: float = 0) -> int:
        return self.emit(Load(buffer, index, dtype, guard, fill))

    def store(self, buffer: str, index: Dim, value: int, dtype: DType = DType.f32, mode: str = "set") -> None:
        self.emit(Store(buffer, index, value, mode, dtype))

    def const(self, value: bool | int | float, dtype: DType = DType.f32) -> int:
        return self.emit(const(value, dtype))

    def apply(self, fn: str, *args: int, dtype: DType = DType.f32) -> int:
        return self.emit(Apply(fn, args, dtype))

    def reduce(self, kind: str, arg: int, dtype: DType = DType.f32, at: Dim = 0) -> int:
        return self.emit(Reduced(kind, arg, dtype, at))

    def loop(self, space: tuple[Axis, ...], sequential: bool = False) -> Loop:
        return Loop(space, tuple(self.instrs), sequential)


def biased(rows: Dim, width: Dim, dtype: DType = DType.f32) -> Loop:
    """y = tanh(2 (x + b))"""
    space, w = axes(rows, width), Writer()
    x = w.apply("add", w.load("x", linear(space), dtype), w.load("b", at(space[1]), dtype))
    w.store("y", linear(space), w.apply("tanh", w.apply("mul", x, w.const(2.0))), dtype)
    return w.loop(space)


def transposed(batch: int, rows: int, width: int, dtype: DType = DType.f32) -> Loop:
    space, w = axes(batch, rows, width), Writer()
    b, i, j = (at(a) for a in space)
    w.store("y", b * (rows * width) + j * rows + i, w.apply("neg", w.load("x", linear(space), dtype)), dtype)
    return w.loop(space)


def softmax(rows: Dim, width: Dim, dtype: DType = DType.f32) -> Loop:
    """Two reductions, one after the other, then a map; the sums are stored as well."""
    space, w = axes(rows, width, reduce=(1,)), Writer()
    x = w.load("x", linear(space), dtype)
    e = w.apply("exp", w.apply("sub", x, w.reduce("max", x)))
    total = w.reduce("sum", e)
    w.store("y", linear(space), w.apply("div", e, total), dtype)
    w.store("z", at(space[0]), total)
    return w.loop(space)


def row_and_column_sums(programs: int, rows: int, width: int, dtype: DType = DType.f32) -> Loop:
    """Rows less their mean, times a vector; each program adds up its rows and their squares."""
    space, w = axes(programs, rows, width, reduce=(2,)), Writer()
    x = w.load("x", linear(space), dtype)
    mean = w.apply("div", w.reduce("sum", x), w.const(float(width)))
    y = w.apply("mul", w.apply("sub", x, mean), w.load("w", at(space[2])))
    w.store("y", linear(space), y, dtype)
    for name, value in (("sums", y), ("squares", w.apply("mul", x, x))):
        w.store(name, at(space[0]) * width + at(space[2]), value, mode="total")
    return w.loop(space)


def column_sums(rows: Dim, width: Dim, dtype: DType = DType.f32) -> Loop:
    space, w = axes(rows, width, reduce=(0,)), Writer()
    x = w.load("x", linear(space), dtype)
    w.store("y", at(space[1]), w.reduce("sum", w.apply("mul", x, x)))
    return w.loop(space)


def reduced(kind: str, rows: Dim, width: Dim, dtype: DType, result: DType, columns: bool = False) -> Loop:
    space, w = axes(rows, width, reduce=(0 if columns else 1,)), Writer()
    along, kept = (space[0], space[1]) if columns else (space[1], space[0])
    value = w.reduce(kind, w.load("x", linear(space), dtype), result, at(along) if kind.startswith("arg") else 0)
    w.store("y", at(kept), value, result)
    return w.loop(space)


def scanned(kind: str, rows: Dim, width: Dim, dtype: DType = DType.f32) -> Loop:
    space, w = axes(rows, width, reduce=(1,)), Writer()
    value = w.emit(Scanned(kind, w.load("x", linear(space), dtype), dtype.compute))
    w.store("y", linear(space), value, dtype)
    return w.loop(space)
