"""Every scalar operation, cast and constant in every type means what torch means by it."""

from __future__ import annotations

import pytest
import torch

from burnish.ir.body import Loop
from burnish.ir.dtypes import DType
from burnish.ir.scalar import SCALAR_OPS
from tests.codegen.triton.interpreter import Interpreter
from tests.codegen.triton.loops import Writer, at, axes

FLOATS = [DType.f32, DType.f64, DType.f16, DType.bf16]
INTEGERS = [DType.i64, DType.i32, DType.i16, DType.i8, DType.u8]
_FLOAT_ONLY = (
    "sqrt rsqrt reciprocal exp exp2 expm1 log log2 log10 log1p sin cos tan asin acos atan sinh cosh tanh asinh acosh "
    "atanh erf erfc sigmoid lgamma isnan isinf floor ceil trunc round div pow atan2 hypot copysign nextafter"
).split()
_INTEGER_ONLY = "invert and or xor shl shr".split()
_ON_BOOL = "not invert add mul maximum minimum and or xor eq ne lt le gt ge".split()


def operations(dtype: DType) -> list[str]:
    if dtype is DType.bool:
        return _ON_BOOL
    wrong = _INTEGER_ONLY if dtype.is_float else _FLOAT_ONLY
    # computed in float, a neighbour of a half number is that number; and the interpreter truncates where it stores it
    half = ["nextafter"] if dtype.compute is not dtype else []
    return [op for op in SCALAR_OPS if op not in (*wrong, *half, "where", "cast")]


def operands(dtype: DType) -> tuple[torch.Tensor, torch.Tensor]:
    """Every pair of a few telling values."""
    if dtype.is_float:
        inf, nan = float("inf"), float("nan")
        values = torch.tensor([0.0, -0.0, 1.0, -1.0, 0.5, -0.75, 2.5, -3.5, 7.0, -7.0, 1e-3, 20.0, inf, -inf, nan])
    elif dtype is DType.bool:
        values = torch.tensor([False, True])
    else:
        least = 0 if dtype is DType.u8 else -100
        values = torch.tensor([1, 2, 3, 7, 100, 5, least or 4, -1 if least else 200, -7 if least else 9])
    pairs = torch.cartesian_prod(values, values).to(dtype.torch)
    return pairs[:, 0].contiguous(), pairs[:, 1].contiguous()


def every_operation(dtype: DType, count: int) -> tuple[Loop, dict[str, DType]]:
    space, w = axes(count), Writer()
    a, b = w.load("a", at(space[0]), dtype), w.load("b", at(space[0]), dtype)
    results: dict[str, DType] = {}
    for op in operations(dtype):
        spec = SCALAR_OPS[op]
        result = DType.bool if spec.returns_bool else dtype
        shifted = (a, w.apply("and", b, w.const(7, dtype), dtype=dtype)) if op in ("shl", "shr") else (a, b)
        value = w.apply(op, *shifted[: spec.arity], dtype=result.compute)
        results[op] = result
        w.store(op, at(space[0]), value, result)
    return w.loop(space), results


@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS, DType.bool], ids=lambda d: d.value)
def test_operations(interpreter: Interpreter, dtype: DType) -> None:
    a, b = operands(dtype)
    loop, results = every_operation(dtype, len(a))
    buffers = {"a": a, "b": b} | {op: torch.zeros(len(a), dtype=t.torch) for op, t in results.items()}
    interpreter.check(loop, buffers, tolerance=1e-12 if dtype is DType.f64 else 3e-6, forms=1)


_DIVISIONS = "floordiv truncdiv mod fmod".split()


@pytest.mark.parametrize("dtype", INTEGERS, ids=lambda d: d.value)
def test_integers_wrap_around(interpreter: Interpreter, dtype: DType) -> None:
    """At the ends of their types, and shifted by more bits than there are or by less than none."""
    low, high = dtype.range
    values = torch.tensor([low, low + 1, high, high - 1, 0, 1, 2, 3, 7, 8 * dtype.itemsize - 1, 8 * dtype.itemsize])
    values = torch.cat([values, torch.tensor([-1, -2, low // 2 - 1] if low else [200, 128, 9])])
    a, b = torch.cartesian_prod(values, values).to(dtype.torch).T.contiguous()
    space, w = axes(len(a)), Writer()
    left, right = w.load("a", at(space[0]), dtype), w.load("b", at(space[0]), dtype)
    buffers = {"a": a, "b": b}
    for op in operations(dtype):
        if op in _DIVISIONS:
            continue
        result = DType.bool if SCALAR_OPS[op].returns_bool else dtype
        w.store(op, at(space[0]), w.apply(op, *(left, right)[: SCALAR_OPS[op].arity], dtype=result), result)
        buffers[op] = torch.zeros(len(a), dtype=result.torch)
    interpreter.check(w.loop(space), buffers, forms=1)


@pytest.mark.parametrize("divisor", [3, -3, -1, 100], ids=str)
def test_division_by_a_known_number(interpreter: Interpreter, divisor: int) -> None:
    space, w = axes(8), Writer()
    buffers: dict[str, torch.Tensor] = {}
    for dtype in INTEGERS:
        low, high = dtype.range
        name, low = f"x_{dtype.value}", low if divisor != -1 else low + 1  # which eager cannot divide everywhere
        x = w.load(name, at(space[0]), dtype)
        buffers[name] = torch.tensor([low, low + 1, high, high - 1, 0, 1, 7, 50]).to(dtype.torch)
        known = w.const(divisor % 256 if dtype is DType.u8 else divisor, dtype)
        for op in _DIVISIONS:
            w.store(f"{op}_{dtype.value}", at(space[0]), w.apply(op, x, known, dtype=dtype), dtype)
            buffers[f"{op}_{dtype.value}"] = torch.zeros(8, dtype=dtype.torch)
    interpreter.check(w.loop(space), buffers, forms=1)


def test_casts(interpreter: Interpreter) -> None:
    space, w = axes(8), Writer()
    buffers: dict[str, torch.Tensor] = {}
    for have in DType:
        name = f"from_{have.value}"
        source = w.load(name, at(space[0]), have)
        buffers[name] = torch.tensor([0.0, 1.0, 2.6, 3.0, 100.0, 101.0, 64.5, 7.0]).to(have.torch)
        for want in DType:
            to = f"{have.value}_{want.value}"
            w.store(to, at(space[0]), w.apply("cast", source, dtype=want), want)
            buffers[to] = torch.zeros(8, dtype=want.torch)
    interpreter.check(w.loop(space), buffers, forms=1)


def test_casts_of_negative_numbers_and_rounding(interpreter: Interpreter) -> None:
    space, w = axes(6), Writer()
    x = w.load("x", at(space[0]))
    buffers = {"x": torch.tensor([-1.9, -100.2, 1.00390625, 257.0, 0.1, -0.0])}
    for want in (DType.i64, DType.i32, DType.i16, DType.i8, DType.bool, DType.f64, DType.bf16, DType.f16):
        w.store(want.value, at(space[0]), w.apply("cast", x, dtype=want), want)
        buffers[want.value] = torch.zeros(6, dtype=want.torch)
    interpreter.check(w.loop(space), buffers, forms=1)


CONSTANTS = [
    (DType.f32, 0.1), (DType.f32, -0.0), (DType.f32, float("inf")), (DType.f32, float("nan")), (DType.f32, 1e300),
    (DType.f32, 1e-42), (DType.f64, 0.1), (DType.f64, -1e300), (DType.f64, -0.0), (DType.bf16, 3.140625),
    (DType.i64, 2**40), (DType.i64, -(2**63)), (DType.i32, -(2**31)), (DType.i8, -128), (DType.u8, 255),
    (DType.bool, True),
]  # fmt: skip


def test_constants(interpreter: Interpreter) -> None:
    """Stored as they are, and as what `where` chooses between: they keep type and precision."""
    space, w = axes(4), Writer()
    even = w.apply("eq", w.load("k", at(space[0]), DType.i64), w.const(0, DType.i64), dtype=DType.bool)
    buffers = {"k": torch.tensor([0, 1, 0, 1])}
    for n, (dtype, value) in enumerate(CONSTANTS):
        c, zero = w.const(value, dtype.compute), w.const(False if dtype is DType.bool else 0, dtype.compute)
        w.store(f"plain{n}", at(space[0]), c, dtype)
        w.store(f"chosen{n}", at(space[0]), w.apply("where", even, c, zero, dtype=dtype.compute), dtype)
        buffers |= {f"{kind}{n}": torch.zeros(4, dtype=dtype.torch) for kind in ("plain", "chosen")}
    interpreter.check(w.loop(space), buffers, tolerance=0.0, forms=1)


def test_negative_zero_keeps_its_sign(interpreter: Interpreter) -> None:
    space, w = axes(2), Writer()
    w.store("y", at(space[0]), w.apply("div", w.const(1.0), w.apply("add", w.load("x", at(space[0])), w.const(-0.0))))
    buffers = {"x": torch.tensor([-0.0, 0.0]), "y": torch.zeros(2)}
    interpreter.run_loop(w.loop(space), buffers)
    assert buffers["y"].tolist() == [float("-inf"), float("inf")]
