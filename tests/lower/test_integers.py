"""Integers mean what they mean in eager, for every pair of 8-bit numbers and at every edge of the wider types.

C leaves signed overflow, division by zero, large shifts and conversions of large floats undefined; torch does not.
Many operations share a program: what is tested is the operation, not the compile."""

from __future__ import annotations

import itertools
import platform
from collections.abc import Callable
from typing import Any

import pytest
import torch

import burnish
from tests.programs import capture

INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
TYPES = (*INTEGERS, torch.bool, *FLOATS)
ON_X86 = platform.machine() in ("x86_64", "AMD64")
Operation = Callable[..., torch.Tensor]


def edges(dtype: torch.dtype) -> torch.Tensor:
    """All numbers of 8 bits; of more, those around each power of two and a few others."""
    low, high = torch.iinfo(dtype).min, torch.iinfo(dtype).max
    if dtype.itemsize == 1:
        return torch.arange(low, high + 1).to(dtype)
    powers = [sign * 2**k + d for k in range(8 * dtype.itemsize) for sign in (1, -1) for d in (-1, 0, 1)]
    some = {*powers, low, high, low + 1, high - 1, 0, 3, -3, 7, 1000, -1000, 12345}
    return torch.tensor(sorted(v for v in some if low <= v <= high), dtype=dtype)


def pairs(dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Each with each, and five more, so that vectors have a rest."""
    left, right = torch.cartesian_prod(edges(dtype), edges(dtype)).unbind(1)
    return tuple(torch.cat([x, x[:5]]) for x in (left, right))  # type: ignore[return-value]


def divisors(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """b where eager can divide a by it."""
    b = torch.where(b == 0, torch.ones_like(b), b)
    if ON_X86 and a.dtype.itemsize >= 4:  # the processor stops eager there, and with it this test
        b = torch.where((a == torch.iinfo(a.dtype).min) & (b == -1), torch.ones_like(b), b)
    return b


def strided(x: torch.Tensor) -> torch.Tensor:
    return torch.stack([x, x.flip(0)], -1)[:, 0]


def assert_equal(fn: Callable[..., Any], compiled: Callable[..., Any], names: list[str], *args: Any) -> None:
    for name, ours, theirs in zip(names, compiled(*args), fn(*args), strict=True):
        assert ours.dtype is theirs.dtype, name
        assert torch.equal(ours, theirs), f"{name}: {_difference(ours, theirs, args)}"


def _difference(ours: torch.Tensor, theirs: torch.Tensor, args: tuple[torch.Tensor, ...]) -> str:
    differ = (ours != theirs).nonzero()
    first = tuple(differ[0].tolist())
    given = [x[first].item() for x in args if x.shape == ours.shape]
    return f"{len(differ)} differ; of {given}: {ours[first].item()}, eager's is {theirs[first].item()}"


def check(ops: dict[str, Operation], *args: torch.Tensor, every: bool = True) -> None:
    """All operations in one program; that none of them was left to ATen, unless it may be."""

    def fn(*args: torch.Tensor) -> list[torch.Tensor]:
        return [op(*args) for op in ops.values()]

    compiled = burnish.compile(fn, dynamic=True, verify="off")
    for given in (args, tuple(strided(x) for x in args), tuple(x[:9] for x in args)):
        assert_equal(fn, compiled, list(ops), *given)
    stats = burnish.stats(compiled)
    assert stats.fallbacks == ()
    assert not every or not stats.aten_calls, stats.aten_calls


BINARY: dict[str, Operation] = {
    "add": torch.add,
    "sub": torch.sub,
    "mul": torch.mul,
    "add alpha": lambda a, b: torch.add(a, b, alpha=3),
    "maximum": torch.maximum,
    "minimum": torch.minimum,
    "and": torch.bitwise_and,
    "or": torch.bitwise_or,
    "xor": torch.bitwise_xor,
    "eq": torch.eq,
    "ne": torch.ne,
    "lt": torch.lt,
    "le": torch.le,
    "gt": torch.gt,
    "ge": torch.ge,
    "where": lambda a, b: torch.where(a > b, a, -b),
    "floor": lambda a, b: a // divisors(a, b),
    "remainder": lambda a, b: a % divisors(a, b),
    "fmod": lambda a, b: torch.fmod(a, divisors(a, b)),
    "trunc": lambda a, b: torch.div(a, divisors(a, b), rounding_mode="trunc"),
    "left shift": torch.bitwise_left_shift,
    "right shift": torch.bitwise_right_shift,
    "clamp": lambda a, b: a.clamp(min=b, max=b + 10),
    "overflow then compare": lambda a, b: a + b > a,
    "overflow then divide": lambda a, b: (a * b) // 7,
}

UNARY: dict[str, Operation] = {
    "neg": torch.neg,
    "abs": torch.abs,
    "sign": torch.sign,
    "invert": torch.bitwise_not,
    "not": torch.logical_not,
    "square": lambda x: x**2,
    "one more": lambda x: x + 1 > x,
    "one less": lambda x: x - 1 < x,
    "twice, halved": lambda x: (x * 2) // 2,
    "square is positive": lambda x: x * x >= 0,
    "its own negative": lambda x: -x == x,
    "abs is negative": lambda x: x.abs() < 0,
    "shifted there and back": lambda x: (x << 1) >> 1,
    "hash": lambda x: (x * 40503) ^ (x >> 3),
    **{f"add {n}": lambda x, n=n: x + n for n in (1, 127, 300, -300, 2**31 - 1)},
    **{f"mul {n}": lambda x, n=n: x * n for n in (3, -1, 255, 1000)},
    **{f"rsub {n}": lambda x, n=n: n - x for n in (5, 300)},
    **{f"floor by {n}": lambda x, n=n: x // n for n in (1, 3, -3, 100, -128)},
    **{f"remainder of {n}": lambda x, n=n: x % n for n in (1, 3, -3, 100, -128, -1)},
    **{f"fmod {n}": lambda x, n=n: torch.fmod(x, n) for n in (3, -3, -1)},
    **{f"trunc {n}": lambda x, n=n: torch.div(x, n, rounding_mode="trunc") for n in (3, -3)},
    **{f"left {n}": lambda x, n=n: x << n for n in (0, 1, 7, 8, 31, 63, 64, 100)},
    **{f"right {n}": lambda x, n=n: x >> n for n in (0, 1, 7, 8, 31, 63, 64, 100)},
    **{f"gt {n}": lambda x, n=n: x > n for n in (0, 255, 300, -1, -300, 2**31, 2.5, 1e30, float("inf"))},
    **{f"eq {n}": lambda x, n=n: x == n for n in (0, 256, -1, 2**40, 2.5)},
    **{f"clamp {a} {b}": lambda x, a=a, b=b: x.clamp(a, b) for a, b in ((-5, 100), (-500, 1000), (3, 3), (9, 2))},
    "clamp floats": lambda x: x.clamp(-1.5, 1.5),
    "relu": torch.relu,
    "to bool": lambda x: x.bool(),
}

REDUCTIONS: dict[str, Operation] = {
    f"{name} {dim}": lambda x, op=op, dim=dim: op(x, dim)
    for dim in (0, 1)
    for name, op in {
        "sum": lambda x, dim: x.sum(dim),
        "sum in its type": lambda x, dim: x.sum(dim, dtype=x.dtype),
        "prod": lambda x, dim: x.prod(dim),
        "prod in its type": lambda x, dim: x.prod(dim, dtype=x.dtype),
        "cumsum": lambda x, dim: x.cumsum(dim),
        "cumsum in its type": lambda x, dim: x.cumsum(dim, dtype=x.dtype),
        "cumprod": lambda x, dim: x.cumprod(dim),
        "amax": lambda x, dim: x.amax(dim),
        "amin": lambda x, dim: x.amin(dim),
        "argmax": lambda x, dim: x.argmax(dim),
        "argmin": lambda x, dim: x.argmin(dim),
        "max": lambda x, dim: x.max(dim).values,
        "any": lambda x, dim: x.any(dim),
        "all": lambda x, dim: x.all(dim),
        "of sums": lambda x, dim: (x + x).sum(dim) - x.sum(dim),
    }.items()
}  # fmt: skip


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_two_operands(dtype: torch.dtype) -> None:
    check(BINARY, *pairs(dtype))


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_one_operand(dtype: torch.dtype) -> None:
    x = edges(dtype)
    check({name: op for name, op in UNARY.items() if works(op, x)}, torch.cat([x, x[:3]]))


def test_comparison_with_a_float_that_no_float32_holds() -> None:
    def fn(x: torch.Tensor) -> list[torch.Tensor]:
        return [x == 9007199254740993.0, x > 16777217.0]

    x = torch.tensor([2**53 - 1, 2**53, 2**53 + 1, 2**24, 2**24 + 1, 2**24 + 2, 3])
    assert_equal(fn, burnish.compile(fn, verify="off"), ["eq", "gt"], x)


def works(op: Operation, *args: torch.Tensor) -> bool:
    try:
        op(*args)
    except RuntimeError:
        return False
    return True


BOUNDED: dict[str, Operation] = {
    "clamp": lambda x: x.clamp(max=300),
    "clamp_min": lambda x: x.clamp_min(-300),
    "full_like": lambda x: torch.full_like(x, 300) + x,
    "masked_fill": lambda x: x.masked_fill(x > 1, -300),
    "where": lambda x: torch.where(x > 1, x, 300),
    "alpha": lambda x: torch.add(x, x, alpha=300),
    "pad": lambda x: torch.nn.functional.pad(x, (1, 1), value=300),
    "power": lambda x: x**300,
}


@pytest.mark.parametrize("name", BOUNDED)
@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8], ids=str)
def test_a_number_that_eager_refuses(name: str, dtype: torch.dtype) -> None:
    op, x = BOUNDED[name], edges(dtype)
    compiled = burnish.compile(op, verify="off")
    with pytest.raises(RuntimeError, match="without overflow"):
        op(x)
    with pytest.raises(RuntimeError, match="without overflow"):
        compiled(x)


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_reductions(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(1)
    low, high = torch.iinfo(dtype).min, torch.iinfo(dtype).max
    x = torch.randint(low, high, (37, 83), generator=generator, dtype=dtype)
    x[3, :40], x[:20, 7] = high, low

    def fn(x: torch.Tensor) -> list[torch.Tensor]:
        return [op(x) for op in REDUCTIONS.values()]

    compiled = burnish.compile(fn, verify="off")
    for given in (x, x.T.contiguous().T):
        assert_equal(fn, compiled, list(REDUCTIONS), given)
    assert burnish.stats(compiled).fallbacks == ()


# --- casts ------------------------------------------------------------------------------------------------------


def numbers(dtype: torch.dtype) -> torch.Tensor:
    if dtype is torch.bool:
        return torch.tensor([False, True] * 9)
    if not dtype.is_floating_point:
        return edges(dtype)
    inf, nan = float("inf"), float("nan")
    limits = [2.0**k for k in (7, 8, 15, 16, 31, 32, 63, 64)]
    near = [sign * (v + d) for v in limits for sign in (1, -1) for d in (0.0, 0.5, -0.5, 1.0, -1.0)]
    other = [0.0, -0.0, 0.99, -0.99, 1.5, -1.5, 3e9, -3e9, 1e10, 5e9, 9.2e18, -9.2e18, 1e19, -1e19, 1e30, 1e300, inf]
    return torch.tensor([*near, *other, -inf, nan, -nan, 1e-310, 300.7, -300.7], dtype=torch.float64).to(dtype)


def is_eagers_own_choice(have: torch.dtype, want: torch.dtype) -> bool:
    """Whether eager's vectors and its last elements differ for numbers that do not fit (docs/limits.md)."""
    return not ON_X86 and have is torch.float64 and want in (torch.int8, torch.int16, torch.int32)


@pytest.mark.parametrize("have", TYPES, ids=str)
def test_casts(have: torch.dtype) -> None:
    x = numbers(have).repeat_interleave(64)  # whole vectors of each

    def fn(x: torch.Tensor) -> list[torch.Tensor]:
        return [x.to(want) for want in TYPES if want is not have]

    compiled = burnish.compile(fn, dynamic=True, verify="off")
    names = [str(want) for want in TYPES if want is not have]
    for ours, theirs, name in zip(compiled(x), fn(x), names, strict=True):
        assert ours.dtype is theirs.dtype
        same = (ours == theirs) | ((ours != ours) & (theirs != theirs))
        first = x[~same][:1].tolist()
        assert same.all(), f"{have} {first} to {name}: {ours[~same][:1].tolist()}, eager {theirs[~same][:1].tolist()}"
        if theirs.dtype.is_floating_point:
            number = theirs == theirs  # which NaN it is, is nobody's business
            assert torch.equal(ours[number].signbit(), theirs[number].signbit()), name
    assert burnish.stats(compiled).aten_calls == {}


@pytest.mark.parametrize("have", FLOATS, ids=str)
def test_casts_of_few_and_of_strided_elements(have: torch.dtype) -> None:
    wanted = [want for want in INTEGERS if not is_eagers_own_choice(have, want)]

    def fn(x: torch.Tensor) -> list[torch.Tensor]:
        return [x.to(want) for want in wanted]

    compiled, x = burnish.compile(fn, dynamic=True, verify="off"), numbers(have)
    for given in (x[:1], x[:7], x[7:22], strided(x)):
        assert_equal(fn, compiled, [str(want) for want in wanted], given)


def test_a_constant_that_no_integer_holds() -> None:
    def fn(x: torch.Tensor) -> list[torch.Tensor]:
        numbers = (float("nan"), float("inf"), -float("inf"), 3e9, 1e30, -2.5)
        return [x.to(torch.float32).fill_(n).to(want) for n in numbers for want in INTEGERS]

    compiled, x = burnish.compile(fn, verify="off"), torch.zeros(64)
    assert_equal(fn, compiled, [str(k) for k in range(30)], x)


def test_a_range_near_the_end_of_its_type() -> None:
    def fn(x: torch.Tensor) -> list[torch.Tensor]:
        return [
            x + torch.arange(-(2**61), 2**61, 2**60),
            torch.arange(2**62, 2**62 + 4) * 2 > x,
            torch.arange(4) + (2**63 - 2) < 0,
            torch.arange(4) - 2 + (-(2**63)) > x,
        ]

    assert_equal(
        fn, burnish.compile(fn, verify="off"), ["far apart", "doubled", "wrapped up", "wrapped down"], torch.arange(4)
    )


# --- division by zero -------------------------------------------------------------------------------------------

DIVISIONS: dict[str, Operation] = {
    "floor": lambda a, b: (a + 1) // b,
    "remainder": lambda a, b: (a + 1) % b,
    "fmod": lambda a, b: torch.fmod(a + 1, b),
    "trunc": lambda a, b: torch.div(a + 1, b, rounding_mode="trunc"),
    "summed": lambda a, b: (a // b).sum(-1),
    "summed the other way": lambda a, b: (a // b).sum(0),
    "running": lambda a, b: (a // b).cumsum(-1),
    "as rows": lambda a, b: (a % b).float() @ torch.ones(70, 40),
}


@pytest.mark.parametrize(
    ("name", "dtype"),
    [*((name, torch.int64) for name in DIVISIONS), *(("floor", dtype) for dtype in INTEGERS[:-1])],
    ids=str,
)
def test_division_by_zero_raises_what_eager_raises(name: str, dtype: torch.dtype) -> None:
    divide = DIVISIONS[name]
    compiled = burnish.compile(divide, verify="off")
    a, b = torch.arange(60 * 70).view(60, 70).to(dtype), torch.ones(60, 70, dtype=dtype)
    once = b.clone()
    once[41, 69] = 0
    for good in range(2):
        assert torch.equal(compiled(a, b + good), divide(a, b + good))
        for bad in (once, b * 0):
            with pytest.raises(RuntimeError) as theirs:
                divide(a, bad)
            with pytest.raises(RuntimeError) as ours:
                compiled(a, bad)
            assert str(ours.value) == str(theirs.value) == "ZeroDivisionError"
    stats = burnish.stats(compiled)
    assert [v.state for v in stats.variants] == ["compiled"] and stats.fallbacks == (), "no failure of ours"


def test_division_by_a_zero_that_is_known() -> None:
    compiled = burnish.compile(lambda x: (x + 1) // 0)
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        compiled(torch.arange(9))


def test_zeros_outside_of_what_is_divided_are_nobodys_mistake() -> None:
    """Around padding and joined parts, loops run over elements that are not there."""

    def fn(a: torch.Tensor, b: torch.Tensor) -> list[torch.Tensor]:
        quotient = (a + 1) // b
        return [
            torch.nn.functional.pad(quotient, (3, 4)),
            torch.cat([quotient, a % b, a * 2], -1) + 1,
            torch.where(b > 2, quotient, 0).roll(2, -1),
        ]

    a, b = torch.arange(24).view(4, 6), torch.arange(1, 25).view(4, 6)
    assert_equal(fn, burnish.compile(fn, verify="off"), ["padded", "joined", "rolled"], a, b)


def test_a_division_by_zero_after_a_write_is_no_failure_of_ours() -> None:
    def fn(total: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        total.add_(a)
        return a // b

    compiled, a = burnish.compile(fn, verify="off"), torch.arange(100)
    compiled(torch.zeros_like(a), a, a + 1)
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        compiled(torch.zeros_like(a), a, a.clone())
    stats = burnish.stats(compiled)
    assert [v.state for v in stats.variants] == ["compiled"] and stats.fallbacks == ()


def test_every_pair_of_types() -> None:
    """Operands of two integer types, and truth values among them."""
    names = [f"{a} {b} {op.__name__}" for a, b in itertools.product(MIXED, MIXED) for op in MIXED_OPS]

    def fn(x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
        return [op(x.to(a), y.to(b)) for a, b in itertools.product(MIXED, MIXED) for op in MIXED_OPS]

    x, y = torch.randint(-(2**63), 2**63 - 1, (2, 67), generator=torch.Generator().manual_seed(3))
    assert_equal(fn, burnish.compile(fn, verify="off"), names, x, y)


MIXED = (*INTEGERS, torch.bool)
MIXED_OPS = (torch.add, torch.mul, torch.lt, torch.maximum, torch.bitwise_xor)


# --- what a GPU leaves to eager's kernels -----------------------------------------------------------------------


def left_to_eager(fn: Callable[..., Any], *args: torch.Tensor) -> list[str]:
    (captured,) = capture(fn, *args, device="cuda")
    return [name for name, _ in captured.captured.externs]


def test_divisors_that_may_be_zero_are_left_to_a_gpus_eager() -> None:
    a, b = torch.arange(8), torch.ones(8, dtype=torch.int64)
    assert left_to_eager(lambda a, b: a // b, a, b) == ["aten::floor_divide.default"]
    assert left_to_eager(lambda a, b: a.to(torch.uint8) % b.to(torch.uint8), a, b) == ["aten::remainder.Tensor"]
    assert left_to_eager(lambda a: (a // 3, a % -1, torch.fmod(a, 7)), a) == []
    assert left_to_eager(lambda a, b: a.float() // b, a, b) == []


def test_floats_that_may_not_fit_a_narrow_integer_are_left_to_a_gpus_eager() -> None:
    x = torch.randn(8)
    assert left_to_eager(lambda x: x.to(torch.int8), x) == ["aten::_to_copy.default"]
    assert left_to_eager(lambda x: x.clamp(-128, 128).to(torch.int8), x) == ["aten::_to_copy.default"]
    assert left_to_eager(lambda x: x.clamp(-9, 9).clamp_min(300).to(torch.int8), x) == ["aten::_to_copy.default"]
    assert left_to_eager(lambda x: x.bfloat16().clamp(-1, 32767).to(torch.int16), x) == ["aten::_to_copy.default"]
    assert left_to_eager(lambda x: (x * 4).round().clamp(-128, 127).to(torch.int8), x) == []
    assert left_to_eager(lambda x: (x * 4).clamp(-127.5, 127).round().to(torch.int8), x) == []
    assert left_to_eager(lambda x: (x.to(torch.int32), x.to(torch.int64), x.to(torch.uint8)), x) == []
