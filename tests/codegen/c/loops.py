"""One loop of every form the C printer has, with buffers to run it on. Golden sources print the named few of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch

from burnish.ir.body import (
    Apply,
    Axis,
    BodyBuilder,
    Checked,
    Load,
    Loop,
    Position,
    Reduced,
    Scanned,
    Store,
    const,
    make_axis,
    value_symbol,
)
from burnish.ir.dtypes import DType
from burnish.ir.expr import Dim, Expr, floordiv, mod, sym

F32, F64, F16, BF16 = DType.f32, DType.f64, DType.f16, DType.bf16
I64, I32, I16, I8, U8, BOOL = DType.i64, DType.i32, DType.i16, DType.i8, DType.u8, DType.bool
FLOATS, INTS = (F64, F32, F16, BF16), (I64, I32, I16, I8, U8)
N, M = sym("s0", 2), sym("s1", 2)


@dataclass(frozen=True)
class Case:
    name: str
    loop: Loop
    buffers: Mapping[str, torch.Tensor]
    sizes: Mapping[str, int] = field(default_factory=dict)
    tolerance: float = 2e-6  # of each float result, relative to its size or 1


class Body(BodyBuilder):
    def load(self, buffer: str, index: Dim, dtype: DType = F32, guard: int | None = None, fill: float = 0.0) -> int:
        return self.emit(Load(buffer, index, dtype, guard, fill))

    def apply(self, fn: str, *args: int, dtype: DType = F32) -> int:
        return self.emit(Apply(fn, args, dtype))

    def number(self, value: bool | int | float, dtype: DType = F32) -> int:
        return self.emit(const(value, dtype))

    def reduce(self, kind: str, arg: int, dtype: DType = F32, at: Dim = 0) -> int:
        return self.emit(Reduced(kind, arg, dtype, at))

    def store(self, buffer: str, index: Dim, value: int, dtype: DType = F32, mode: str = "set") -> None:
        self.emit(Store(buffer, index, value, mode, dtype))

    def loop(self, *axes: Axis, sequential: bool = False) -> Loop:
        return Loop(axes, tuple(self.instrs), sequential)


def at(axis: Axis) -> Expr:
    return Expr({(axis.sym,): 1})


def axes(*sizes: Dim, reduced: tuple[int, ...] = ()) -> list[Axis]:
    return [make_axis(f"i{d}", n, d in reduced) for d, n in enumerate(sizes)]


def numbers(count: int, dtype: DType = F32, seed: int = 0, low: int = -6, high: int = 7) -> torch.Tensor:
    made = torch.Generator().manual_seed(seed)
    if dtype.is_float:
        return torch.randn(count, generator=made).to(dtype.torch)
    if dtype is BOOL:
        return torch.randint(0, 2, (count,), generator=made) > 0
    return torch.randint(max(low, 0) if dtype is U8 else low, high, (count,), generator=made).to(dtype.torch)


def blank(count: int, dtype: DType = F32) -> torch.Tensor:
    return torch.full((count,), 5, dtype=dtype.torch)


# --- maps -------------------------------------------------------------------------------------------------------


def elementwise() -> Case:
    b, (i,) = Body(), axes(1000)
    x, y = b.load("x", at(i)), b.load("y", at(i))
    b.store("z", at(i), b.apply("mul", b.apply("add", x, y), b.number(0.5)))
    return Case("elementwise", b.loop(i), {"x": numbers(1000), "y": numbers(1000, seed=1), "z": blank(1000)})


def broadcast() -> Case:
    """A column's load and the work on it belong outside the innermost loop."""
    b, (i, j) = Body(), axes(30, 50)
    scale = b.apply("exp", b.load("s", at(i)))
    b.store("z", at(i) * 50 + at(j), b.apply("mul", b.load("x", at(i) * 50 + at(j)), scale))
    return Case("broadcast", b.loop(i, j), {"s": numbers(30), "x": numbers(1500), "z": blank(1500)})


def transposed() -> Case:
    b, (i, j) = Body(), axes(13, 21)
    b.store("z", at(j) * 13 + at(i), b.load("x", at(i) * 21 + at(j)))
    return Case("transposed", b.loop(i, j), {"x": numbers(273), "z": blank(273)})


def reshaped() -> Case:
    b, (i,) = Body(), axes(84)
    source = mod(at(i), 7) * 12 + floordiv(at(i), 7)
    b.store("z", at(i), b.load("x", source))
    return Case("reshaped", b.loop(i), {"x": numbers(84), "z": blank(84)})


def flipped() -> Case:
    b, (i, j) = Body(), axes(6, 9)
    b.store("z", at(i) * 9 + at(j), b.load("x", at(j) * -1 + 8 + at(i) * 9))
    return Case("flipped", b.loop(i, j), {"x": numbers(54), "z": blank(54)})


def any_size() -> Case:
    b, (i, j) = Body(), axes(N, M)
    x = b.load("x", at(i) * M + at(j))
    here = b.apply("cast", b.emit(Position(at(i) * 10 + at(j) + N)), dtype=F32)
    b.store("z", at(j) * N + at(i), b.apply("add", x, here))
    return Case("any_size", b.loop(i, j), {"x": numbers(40 * 9), "z": blank(40 * 9)}, {"s0": 40, "s1": 9})


def single() -> Case:
    b = Body()
    b.store("z", 0, b.apply("tanh", b.load("x", 0)))
    return Case("single", b.loop(), {"x": numbers(1), "z": blank(1)})


def guarded() -> Case:
    """Padding by 2: outside, memory is not touched."""
    b, (i,) = Body(), axes(14)
    here = b.emit(Position(at(i) - 2))
    low = b.apply("ge", here, b.number(0, I64), dtype=BOOL)
    high = b.apply("lt", here, b.number(10, I64), dtype=BOOL)
    inside = b.apply("and", low, high, dtype=BOOL)
    b.store("z", at(i), b.load("x", at(i) - 2, guard=inside, fill=-math.inf))
    return Case("guarded", b.loop(i), {"x": numbers(10), "z": blank(14)})


def gathered() -> Case:
    b, (i, j) = Body(), axes(20, 8)
    row = b.emit(Checked(b.load("at", at(i), I64), 6))
    b.store("z", at(i) * 8 + at(j), b.load("x", value_symbol(row) * 8 + at(j)))
    places = numbers(20, I64, low=0, high=6)
    return Case("gathered", b.loop(i, j), {"at": places, "x": numbers(48), "z": blank(160)})


def wrapping(dtype: DType) -> Case:
    """Small integers wrap as they do in eager, whatever C promotes them to."""
    b, (i,) = Body(), axes(40)
    x, y = b.load("x", at(i), dtype), b.load("y", at(i), dtype)
    total = b.apply("mul", b.apply("add", x, y, dtype=dtype), b.apply("neg", x, dtype=dtype), dtype=dtype)
    b.store("z", at(i), total, dtype)
    b.store("w", at(i), b.apply("lt", total, y, dtype=BOOL), BOOL)
    x_values, y_values = (numbers(40, dtype, seed, -128, 128) for seed in (0, 1))
    return Case(
        f"wrapping_{dtype.value}",
        b.loop(i),
        {"x": x_values, "y": y_values, "z": blank(40, dtype), "w": blank(40, BOOL)},
    )


def half(dtype: DType) -> Case:
    """Computed in float, rounded where stored or cast."""
    b, (i,) = Body(), axes(70)
    x, y = b.load("x", at(i), dtype), b.load("y", at(i), dtype)
    product = b.apply("mul", x, y)
    b.store("z", at(i), b.apply("add", product, x), dtype)
    b.store("w", at(i), b.apply("sub", b.apply("cast", product, dtype=dtype), product))
    held = {"x": numbers(70, dtype), "y": numbers(70, dtype, 1), "z": blank(70, dtype), "w": blank(70)}
    held["x"][:4] = torch.tensor([math.nan, math.inf, -math.inf, 1e-7])
    return Case(f"half_{dtype.value}", b.loop(i), held)


def casts(source: DType) -> Case:
    b, (i,) = Body(), axes(30)
    x = b.load("x", at(i), source)
    held = {"x": numbers(30, source)}
    for target in (*FLOATS, *INTS, BOOL):
        if target is U8 and source.is_float:
            continue  # a negative float has no defined conversion
        b.store(f"to_{target.value}", at(i), b.apply("cast", x, dtype=target), target)
        held[f"to_{target.value}"] = blank(30, target)
    return Case(f"casts_{source.value}", b.loop(i), held)


UNARY = (
    "neg abs sign floor ceil trunc round sqrt rsqrt reciprocal exp exp2 expm1 log log2 log10 log1p sin cos tan asin "
    "acos atan sinh cosh tanh asinh acosh atanh erf erfc sigmoid lgamma"
).split()
BINARY = (
    "add sub mul div floordiv truncdiv mod fmod pow atan2 hypot copysign nextafter maximum minimum fmax fmin".split()
)
COMPARE = "eq ne lt le gt ge".split()


def float_operations(dtype: DType) -> Case:
    b, (i,) = Body(), axes(64)
    x, y = b.load("x", at(i), dtype), b.load("y", at(i), dtype)
    odd = torch.tensor([math.nan, math.inf, -math.inf, 0.0, -0.0, 1.0, -1.0, 0.5, 2.5, -2.5], dtype=dtype.torch)
    held = {"x": numbers(64, dtype) * 2, "y": numbers(64, dtype, 1)}
    held["x"][:10], held["x"][10:20] = odd, odd.flip(0)
    held["y"][:10], held["y"][20:30] = odd.roll(3), odd
    for fn in (*UNARY, *BINARY):
        b.store(fn, at(i), b.apply(fn, *((x, y) if fn in BINARY else (x,)), dtype=dtype), dtype)
        held[fn] = blank(64, dtype)
    for fn in (*COMPARE, "isnan", "isinf", "not"):
        b.store(fn, at(i), b.apply(fn, *((x, y) if fn in COMPARE else (x,)), dtype=BOOL), BOOL)
        held[fn] = blank(64, BOOL)
    choice = b.apply("lt", x, y, dtype=BOOL)
    b.store("where", at(i), b.apply("where", choice, y, x, dtype=dtype), dtype)
    held["where"] = blank(64, dtype)
    return Case(f"operations_{dtype.value}", b.loop(i), held, tolerance=4e-6 if dtype is F32 else 1e-13)


INT_UNARY = ("neg", "abs", "sign", "invert")
INT_BINARY = ("add", "sub", "mul", "floordiv", "truncdiv", "mod", "fmod", "maximum", "minimum", "and", "or", "xor")


def int_operations(dtype: DType) -> Case:
    b, (i,) = Body(), axes(64)
    x, y = b.load("x", at(i), dtype), b.load("y", at(i), dtype)
    divisors = numbers(64, dtype, 1)
    held = {"x": numbers(64, dtype, 0, -100, 100), "y": torch.where(divisors == 0, 3, divisors)}
    for fn in (*INT_UNARY, *INT_BINARY):
        b.store(fn, at(i), b.apply(fn, *((x, y) if fn in INT_BINARY else (x,)), dtype=dtype), dtype)
        held[fn] = blank(64, dtype)
    shift = b.apply("and", b.apply("abs", y, dtype=dtype), b.number(3, dtype), dtype=dtype)
    for fn in ("shl", "shr"):
        b.store(fn, at(i), b.apply(fn, x, shift, dtype=dtype), dtype)
        held[fn] = blank(64, dtype)
    for fn in COMPARE:
        b.store(fn, at(i), b.apply(fn, x, y, dtype=BOOL), BOOL)
        held[fn] = blank(64, BOOL)
    return Case(f"operations_{dtype.value}", b.loop(i), held)


def truth() -> Case:
    b, (i,) = Body(), axes(40)
    x, y = b.load("x", at(i), BOOL), b.load("y", at(i), BOOL)
    held = {"x": numbers(40, BOOL), "y": numbers(40, BOOL, 1)}
    for fn in ("and", "or", "xor", "eq", "ne", "lt", "ge"):
        b.store(fn, at(i), b.apply(fn, x, y, dtype=BOOL), BOOL)
        held[fn] = blank(40, BOOL)
    b.store("not", at(i), b.apply("not", x, dtype=BOOL), BOOL)
    return Case("truth", b.loop(i), {**held, "not": blank(40, BOOL)})


# --- rows -------------------------------------------------------------------------------------------------------


def row_kinds(dtype: DType, columns: int = 37) -> Case:
    kinds = ("sum", "max", "min") if dtype in (F16, BF16) else ("sum", "prod", "max", "min")
    kinds = ("any", "all") if dtype is BOOL else kinds
    b, (i, j) = Body(), axes(9, columns, reduced=(1,))
    x = b.load("x", at(i) * columns + at(j), dtype)
    held = {"x": numbers(9 * columns, dtype, low=-2, high=3)}
    for kind in kinds:
        b.store(kind, at(i), b.reduce(kind, x, dtype.compute), dtype)
        held[kind] = blank(9, dtype)
    return Case(f"row_kinds_{dtype.value}", b.loop(i, j), held, tolerance=1e-2 if dtype in (F16, BF16) else 2e-6)


def softmax(columns: int = 50, name: str = "softmax") -> Case:
    b, (i, j) = Body(), axes(12, columns, reduced=(1,))
    x = b.load("x", at(i) * columns + at(j))
    e = b.apply("exp", b.apply("sub", x, b.reduce("max", x)))
    b.store("z", at(i) * columns + at(j), b.apply("div", e, b.reduce("sum", e)))
    return Case(name, b.loop(i, j), {"x": numbers(12 * columns), "z": blank(12 * columns)})


def layer_norm(name: str = "layer_norm", rows: Dim = 10, columns: Dim = 40) -> Case:
    b, (i, j) = Body(), axes(rows, columns, reduced=(1,))
    x = b.load("x", at(i) * columns + at(j))
    if isinstance(columns, int):
        n = b.number(float(columns))
    else:
        n = b.apply("cast", b.emit(Position(columns)), dtype=F32)
    mean = b.apply("div", b.reduce("sum", x), n)
    away = b.apply("sub", x, mean)
    var = b.apply("div", b.reduce("sum", b.apply("mul", away, away)), n)
    scale = b.apply("rsqrt", b.apply("add", var, b.number(1e-5)))
    b.store("z", at(i) * columns + at(j), b.apply("mul", b.apply("mul", away, scale), b.load("w", at(j))))
    b.store("mean", at(i), mean)
    held = {"x": numbers(400), "w": numbers(40, seed=1), "z": blank(400), "mean": blank(10)}
    return Case(name, b.loop(i, j), held, {} if isinstance(rows, int) else {"s0": 10, "s1": 40})


def several_axes(name: str = "several_axes", sizes: tuple[Dim, ...] = (3, 5, 4, 7)) -> Case:
    """Sums over the first and third of four axes, as batch norm's."""
    b, (i, j, k, n) = Body(), axes(*sizes, reduced=(0, 2))
    x = b.load("x", ((at(i) * sizes[1] + at(j)) * sizes[2] + at(k)) * sizes[3] + at(n))
    b.store("z", at(j) * sizes[3] + at(n), b.reduce("sum", x))
    b.store("w", at(j) * sizes[3] + at(n), b.reduce("max", x))
    return Case(
        name, b.loop(i, j, k, n), {"x": numbers(420), "z": blank(35), "w": blank(35)},
        {} if isinstance(sizes[0], int) else {"s0": 3, "s1": 4},
    )  # fmt: skip


def everything(dtype: DType, count: int) -> Case:
    """No axis is kept: one long sum, whose error must not grow with its length."""
    b, (i,) = Body(), axes(count, reduced=(0,))
    x = b.load("x", at(i), dtype)
    b.store("z", 0, b.reduce("sum", x, dtype.compute), dtype)
    held = {"x": torch.rand(count, generator=torch.Generator().manual_seed(0)).to(dtype.torch), "z": blank(1, dtype)}
    return Case(f"everything_{dtype.value}_{count}", b.loop(i), held, tolerance=1e-6 if dtype is F32 else 1e-12)


def long_column_sum() -> Case:
    b, (i, j) = Body(), axes(20_000, 7, reduced=(0,))
    b.store("z", at(j), b.reduce("sum", b.load("x", at(i) * 7 + at(j))))
    values = torch.rand(140_000, generator=torch.Generator().manual_seed(0))
    return Case("long_column_sum", b.loop(i, j), {"x": values, "z": blank(7)}, tolerance=1e-6)


def long_sum_with_gaps() -> Case:
    """Axes that do not join: the inner one is short, the sum is not."""
    b, (i, j) = Body(), axes(3000, 30, reduced=(0, 1))
    b.store("z", 0, b.reduce("sum", b.load("x", at(i) * 40 + at(j))))
    values = torch.rand(120_000, generator=torch.Generator().manual_seed(0))
    return Case("long_sum_with_gaps", b.loop(i, j), {"x": values, "z": blank(1)}, tolerance=1e-6)


def arg_extremes(dtype: DType, kept_last: bool = False) -> Case:
    b = Body()
    if kept_last:
        i, j = axes(17, 70, reduced=(0,))
        reduced, kept, x = i, j, b.load("x", at(i) * 70 + at(j), dtype)
    else:
        i, j = axes(70, 17, reduced=(1,))
        reduced, kept, x = j, i, b.load("x", at(i) * 17 + at(j), dtype)
    values = numbers(70 * 17, dtype, low=0, high=4)
    if dtype.is_float:
        values = (values * 2).round()
        values[torch.randint(0, 70 * 17, (90,), generator=torch.Generator().manual_seed(5))] = math.nan
        grid = values.view(17, 70).t() if kept_last else values.view(70, 17)
        grid[3], grid[4], grid[5, :3] = -math.inf, math.inf, math.nan
    held = {"x": values}
    for kind in ("argmax", "argmin"):
        b.store(kind, at(kept), b.reduce(kind, x, I64, at(reduced)), I64)
        held[kind] = blank(70, I64)
    return Case(f"arg_extremes_{dtype.value}{'_columns' if kept_last else ''}", b.loop(i, j), held)


def extremes_with_nan(kept_last: bool = False) -> Case:
    b = Body()
    i, j = axes(20, 35, reduced=(0,) if kept_last else (1,))
    kept = j if kept_last else i
    x = b.load("x", at(i) * 35 + at(j))
    values = numbers(700)
    values[::97] = math.nan
    held = {"x": values}
    for kind in ("max", "min"):
        b.store(kind, at(kept), b.reduce(kind, x))
        held[kind] = blank(35 if kept_last else 20)
    return Case(f"extremes_with_nan{'_columns' if kept_last else ''}", b.loop(i, j), held)


def gathered_sum() -> Case:
    """Positions are checked one by one, so no lanes."""
    b, (i, j) = Body(), axes(11, 6, reduced=(1,))
    row = b.emit(Checked(b.load("at", at(i) * 6 + at(j), I64), 30))
    b.store("z", at(i), b.reduce("sum", b.load("x", value_symbol(row))))
    return Case(
        "gathered_sum", b.loop(i, j), {"at": numbers(66, I64, low=0, high=30), "x": numbers(30), "z": blank(11)}
    )


# --- columns ----------------------------------------------------------------------------------------------------


def column_kinds(dtype: DType) -> Case:
    kinds = ("any", "all") if dtype is BOOL else ("sum", "max", "min")
    b, (i, j) = Body(), axes(23, 150, reduced=(0,))
    x = b.load("x", at(i) * 150 + at(j), dtype)
    held = {"x": numbers(23 * 150, dtype, low=-3, high=4)}
    for kind in kinds:
        b.store(kind, at(j), b.reduce(kind, x, dtype.compute), dtype)
        held[kind] = blank(150, dtype)
    return Case(f"column_kinds_{dtype.value}", b.loop(i, j), held, tolerance=1e-2 if dtype in (F16, BF16) else 2e-6)


def column_softmax(name: str = "column_softmax", rows: Dim = 9, columns: Dim = 100) -> Case:
    b, (i, j) = Body(), axes(rows, columns, reduced=(0,))
    x = b.load("x", at(i) * columns + at(j))
    e = b.apply("exp", b.apply("sub", x, b.reduce("max", x)))
    total = b.reduce("sum", e)
    b.store("z", at(i) * columns + at(j), b.apply("div", e, total))
    b.store("lse", at(j), b.apply("log", b.apply("mul", total, b.load("w", at(j)))))
    held = {"x": numbers(900), "w": numbers(100).abs() + 1, "z": blank(900), "lse": blank(100)}
    return Case(name, b.loop(i, j), held, {} if isinstance(rows, int) else {"s0": 9, "s1": 100})


# --- scans and scatters -----------------------------------------------------------------------------------------


def scan(kind: str, dtype: DType, outer: bool = False) -> Case:
    b, (i, j) = Body(), axes(15, 40, reduced=(0,) if outer else (1,))
    x = b.load("x", at(i) * 40 + at(j), dtype)
    b.store("z", at(i) * 40 + at(j), b.emit(Scanned(kind, x, dtype.compute)), dtype)
    name = f"scan_{kind}_{dtype.value}{'_outer' if outer else ''}"
    held = {"x": numbers(600, dtype, low=-1, high=3), "z": blank(600, dtype)}
    return Case(name, b.loop(i, j), held, tolerance=2e-2 if dtype in (F16, BF16) else 4e-6)


def long_scan() -> Case:
    b, (i,) = Body(), axes(20_000, reduced=(0,))
    b.store("z", at(i), b.emit(Scanned("sum", b.load("x", at(i)), F32)))
    return Case("long_scan", b.loop(i), {"x": torch.rand(20_000), "z": blank(20_000)}, tolerance=3e-6)


def scatter(mode: str, dtype: DType, rows: bool) -> Case:
    """Several sources write one place: the order of iterations is the order of writes."""
    b = Body()
    i, j = axes(30, 8)
    place = b.emit(Checked(b.load("at", at(i), I64), 5))
    value = b.load("x", at(i) * 8 + at(j), dtype)
    target: Dim = value_symbol(place) * 8 + at(j) if rows else at(j) * 5 + value_symbol(place)
    b.store("z", target, value, dtype, mode)
    name = f"scatter_{mode}_{dtype.value}{'_rows' if rows else ''}"
    held = {"at": numbers(30, I64, low=0, high=5), "x": numbers(240, dtype), "z": blank(40, dtype)}
    return Case(name, b.loop(i, j, sequential=True), held, tolerance=1e-5)


def astray() -> Case:
    """A position outside raises the error flag and touches nothing it should not."""
    b, (i,) = Body(), axes(8)
    place = b.emit(Checked(b.load("at", at(i), I64), 5))
    b.store("z", at(i), b.load("x", value_symbol(place)))
    return Case("astray", b.loop(i), {"at": torch.tensor([0, 1, 5, 2, -1, 3, 4, 0]), "x": numbers(5), "z": blank(8)})


def large() -> Case:
    """Enough work for several threads."""
    b, (i, j) = Body(), axes(300, 200)
    x = b.load("x", at(i) * 200 + at(j))
    b.store("z", at(i) * 200 + at(j), b.apply("tanh", b.apply("mul", x, b.load("w", at(j)))))
    return Case("large", b.loop(i, j), {"x": numbers(60_000), "w": numbers(200), "z": blank(60_000)})


def all_cases() -> list[Case]:
    makers: list[Callable[[], Case]] = [
        elementwise, broadcast, transposed, reshaped, flipped, any_size, single, guarded, gathered, truth, softmax,
        layer_norm, several_axes, gathered_sum, column_softmax, long_scan, large, extremes_with_nan, long_column_sum,
        long_sum_with_gaps,
    ]  # fmt: skip
    return [
        *(make() for make in makers),
        *(wrapping(t) for t in INTS),
        *(half(t) for t in (F16, BF16)),
        *(casts(t) for t in (*FLOATS, *INTS, BOOL)),
        *(float_operations(t) for t in (F32, F64)),
        *(int_operations(t) for t in INTS),
        *(row_kinds(t) for t in (*FLOATS, *INTS, BOOL)),
        *(column_kinds(t) for t in (*FLOATS, *INTS, BOOL)),
        softmax(9000, "softmax_long"),
        layer_norm("layer_norm_any_size", N, M),
        column_softmax("column_softmax_any_size", N, M),
        several_axes("several_axes_any_size", (N, 5, M, 7)),
        *(everything(t, n) for t, n in ((F32, 100_000), (F32, 3), (F64, 100_000), (F32, 2049))),
        *(arg_extremes(t, kept) for t in (F32, F64, I64, I8) for kept in (False, True)),
        extremes_with_nan(kept_last=True),
        *(scan(k, t, o) for k in ("sum", "prod") for t in (F32, I64) for o in (False, True)),
        *(scan("sum", t) for t in (F16, BF16, F64, I32)),
        *(scatter(m, t, rows) for m in ("set", "add", "max", "min") for t in (F32, I64) for rows in (False, True)),
        scatter("prod", I64, True),
    ]
