"""Element types: promotion between every two of them, arithmetic and reductions in each, infinities and NaNs."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
import torch
from torch.nn import functional as F

import burnish
from tests.against_eager import check

FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
TYPES = (*FLOATS, *INTEGERS, torch.bool)


def values(dtype: torch.dtype, *shape: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    if dtype is torch.bool:
        return torch.randint(0, 2, shape, generator=generator).bool()
    low, high = (0, 200) if dtype is torch.uint8 else (-100, 100)
    if dtype.is_floating_point:
        return (torch.rand(shape, generator=generator) * 8 - 4).to(dtype)
    return torch.randint(low, high, shape, generator=generator).to(dtype)


# --- promotion --------------------------------------------------------------------------------------------------

BINARY: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "add": torch.add,
    "mul": torch.mul,
    "div": torch.div,
    "where": lambda a, b: torch.where(a > 1, a, b),
    "lt": torch.lt,
    "eq": torch.eq,
    "maximum": torch.maximum,
    "stack": lambda a, b: torch.cat([a, b]),
}


@pytest.mark.parametrize("name", BINARY)
@pytest.mark.parametrize("rank", ["tensors", "tensor and scalar tensor"])
def test_every_pair_of_types(name, rank):
    """All pairs in one graph: promotion is decided per op, and a hundred compiles would say no more."""
    op = BINARY[name]
    if name == "stack" and rank != "tensors":
        pytest.skip("cat takes no scalar tensors")

    def fn(left, right):
        return [op(a, b) for a, b in itertools.product(left, right)]

    left = [values(dtype, 5, seed=1) for dtype in TYPES]
    right = [values(dtype, *((5,) if rank == "tensors" else ()), seed=2) for dtype in TYPES]
    check(fn, left, right)


def test_python_numbers():
    def fn(tensors):
        out = []
        for x in tensors:
            out += [x + 2, x * 2.5, x + True, 3 - x.float(), x > 1.5, x / 2, x == 1, x < 2.5]
            if x.dtype is not torch.bool:
                out += [x - 1, x // 2, x % 3, x**2]
        return out

    check(fn, [values(dtype, 6) for dtype in TYPES])


def test_accumulating_types():
    def fn(tensors):
        return [r for x in tensors for r in (x.sum(), x.sum(dtype=torch.float64), x.cumsum(0), x.prod())]

    check(fn, [values(dtype, 6) for dtype in TYPES])


def test_casts_between_every_two():
    def fn(tensors):
        return [x.to(dtype) for x in tensors for dtype in TYPES]

    check(fn, [values(dtype, 9) for dtype in TYPES])


def test_casts_out_of_range():
    """Integers wrap, half types overflow to infinity. A float too large for an integer type is undefined: not here."""

    def fn(wide, large):
        return [wide.to(dtype) for dtype in INTEGERS], [large.to(dtype) for dtype in FLOATS]

    check(fn, torch.tensor([300, -300, 70000, 2**40 + 5, -1]), torch.tensor([1e5, -7e4, 3e38, 1e-30, 65519.0]))


# --- arithmetic in each type ------------------------------------------------------------------------------------


def float_work(x, y):
    safe = y.abs() + 0.5
    return (
        x + y, x - y, x * y, x / safe, x // safe, x % safe, x.exp(), safe.log(), x.sin(), x.tanh(), x.sigmoid(),
        safe.sqrt(), safe.rsqrt(), x.abs(), -x, x.sign(), x.floor(), x.ceil(), x.round(), x.trunc(), x.relu(),
        F.gelu(x), F.silu(x), x.clamp(-1, 1), x.pow(3), safe.pow(1.7),
        torch.atan2(x, y), torch.maximum(x, y), x.erf(), x.expm1(), safe.log1p(), torch.lerp(x, y, 0.3), x > y,
        torch.where(x > y, x, y), x.cos(), safe.reciprocal(), torch.hypot(x, y), torch.copysign(x, y), x.frac(),
        F.softplus(x), F.elu(x), x.isnan(), torch.addcmul(x, x, y, value=0.5),
    )  # fmt: skip


def integer_work(x, y):
    other = torch.where(y == 0, 3, y).to(y.dtype)
    return (
        x + y, x - y, x * y, x / other, x // other, x % other, torch.div(x, other, rounding_mode="trunc"), x & y,
        x | y, x ^ y, ~x, x << 2, x >> 1, x == y, x < y, torch.maximum(x, y), torch.minimum(x, y), x.clamp(-3, 50),
        x.float().exp(), torch.where(x > y, x, y), x**2, x.abs(), -x, x.sign(), torch.fmod(x, other),
    )  # fmt: skip


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_float_arithmetic(dtype):
    check(float_work, values(dtype, 7, 13, seed=3), values(dtype, 7, 13, seed=4))


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_integer_arithmetic(dtype):
    check(integer_work, values(dtype, 7, 13, seed=3), values(dtype, 7, 13, seed=4))


def test_bool_arithmetic():
    def fn(x, y):
        return (
            x & y,
            x | y,
            x ^ y,
            ~x,
            x == y,
            x + y,
            x * y,
            x < y,
            x.logical_not(),
            x.int() - y.int(),
            x.sum(),
            x.any(0),
        )

    check(fn, values(torch.bool, 7, 13), values(torch.bool, 7, 13, seed=1))


def test_integers_wrap():
    def fn(x):
        return x + x, x * x, -x, x - 100, x.abs()

    for dtype in (torch.int8, torch.uint8, torch.int16, torch.int32):
        info = torch.iinfo(dtype)
        check(fn, torch.tensor([info.min, info.max, info.max - 1, 0, 1], dtype=dtype))


# --- reductions in each type ------------------------------------------------------------------------------------


def reduction_work(x):
    out = [x.sum(), x.sum(0), x.sum(-1), x.sum((0, 2)), x.prod(1), x.any(0), x.all(-1), (x != 0).sum(1)]
    if x.dtype is not torch.bool:
        out += [x.amax(-1), x.amin(0), x.argmax(-1), x.argmin(0), x.max(), x.min(), *x.max(1), *x.min(0), x.cumsum(1)]
    if x.is_floating_point():
        out += [
            x.mean(),
            x.mean(-1),
            x.var(-1),
            x.std(0),
            x.logsumexp(-1),
            x.softmax(-1),
            x.log_softmax(0),
            x.norm(dim=1),
        ]
    return out


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_reductions(dtype):
    x = values(dtype, 5, 7, 19, seed=5)
    check(reduction_work, x / 4 if dtype.is_floating_point else x % 5 if dtype is not torch.bool else x)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_long_sums(dtype):
    """Long enough for the order of summing to matter."""

    def fn(x):
        return x.sum(), x.mean(-1), x.var(), x.sum(0), x.softmax(-1).sum(-1), x.cumsum(-1)[:, -1]

    check(fn, values(dtype, 3, 20_000, seed=6))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_products(dtype):
    def fn(x, y, bias):
        return x @ y, torch.addmm(bias, x, y), x[0] @ y, (x @ y).relu() + bias, torch.bmm(x[None], y[None])

    check(fn, values(dtype, 6, 33, seed=1), values(dtype, 33, 17, seed=2), values(dtype, 17, seed=3))


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8], ids=str)
def test_products_of_integers(dtype):
    check(lambda x, y: (x @ y, (x * 2) @ y), values(dtype, 6, 9, seed=1), values(dtype, 9, 5, seed=2))


# --- infinities and NaNs ----------------------------------------------------------------------------------------

ODD = [float("nan"), float("inf"), float("-inf"), 0.0, -0.0, 1.0, -1.0, 3e38, 1e-45, -2.5, 88.8, 104.0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_odd_values_elementwise(dtype):
    """Without gelu: eager's says inf for an infinity and NaN for the same in a vector."""

    def fn(x):
        y = x.flip(0)
        return (
            x.exp(), x.log(), x.sqrt(), x.rsqrt(), x.sin(), x.tanh(), x.sigmoid(), x.erf(), x.expm1(), x.log1p(),
            x.relu(), x.abs(), x.sign(), x.floor(), x.round(), 1 / x, x * y, x + y, x - y, x / y, x // y, x % y,
            x.clamp(-1, 1),
            torch.maximum(x, y), torch.minimum(x, y), torch.fmax(x, y), torch.fmin(x, y), x > y, x == y, x != x,
            x.isnan(), x.isinf(), x.isfinite(), x.nan_to_num(), torch.where(x > 0, x, y), x.pow(2), x.pow(0.5),
            x.pow(-1), F.silu(x), F.softplus(x), torch.atan2(x, y), x.bool(), F.leaky_relu(x), F.hardtanh(x), x.exp2(),
            x.log2(), x.cosh(),
        )  # fmt: skip

    check(fn, torch.tensor(ODD, dtype=dtype))


def test_odd_values_reduced():
    def fn(x):
        return (
            x.sum(-1), x.mean(-1), x.amax(-1), x.amin(-1), x.argmax(-1), x.argmin(-1), x.prod(-1), x.softmax(-1),
            x.logsumexp(-1), x.log_softmax(-1), x.var(-1), x.max(), x.cumsum(-1), x.any(-1), x.all(-1), x.sum(0),
            x.amax(0),
        )  # fmt: skip

    rows = torch.randn(8, 21)
    rows[1, 3] = float("nan")
    rows[2, 5] = float("inf")
    rows[3, 7] = float("-inf")
    rows[4, 2], rows[4, 9] = float("inf"), float("-inf")
    rows[5] = float("-inf")
    rows[6] = float("nan")
    rows[7, 0], rows[7, 20] = float("inf"), float("nan")
    check(fn, rows)


def test_signed_zeros():
    def fn(x):
        return [torch.signbit(r) for r in (x + 0, x * 0, -x, x.abs(), x.floor(), x - x, x.round(), x * -1)]

    check(fn, torch.tensor([0.0, -0.0, 1.0, -1.0, -0.3]))


def test_subnormals_and_overflow():
    def fn(x):
        return x * 0.5, x + x, (x * 1e-3).exp(), x.sum(), x * x

    check(fn, torch.tensor([1e-40, -1e-42, 3e38, -3e38, 1e-38]))


# --- types that a kernel takes together -------------------------------------------------------------------------

LOSSES = {
    "huber": F.huber_loss,
    "smooth l1": F.smooth_l1_loss,
    "mse": F.mse_loss,
    "l1": F.l1_loss,
    "soft margin": F.soft_margin_loss,
    "with logits": F.binary_cross_entropy_with_logits,
}


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("types", itertools.permutations((torch.float64, torch.float32, torch.bfloat16), 2), ids=str)
def test_losses_of_two_types(name, types):
    loss = LOSSES[name]
    check(lambda a, b: loss(a, b), values(types[0], 4, 5), values(types[1], 4, 5, seed=1))


def test_types_that_eager_refuses_together():
    compiled = burnish.compile(lambda a, b: F.binary_cross_entropy(a, b))
    with pytest.raises(RuntimeError, match="Found dtype"):
        compiled(torch.rand(3), torch.rand(3, dtype=torch.float64))


# --- constants that eager writes as floats ----------------------------------------------------------------------


@pytest.mark.parametrize("name", ["hardsigmoid", "hardswish", "hardtanh", "relu6"])
def test_double_with_eagers_own_constants(name):
    """A sixth is a float's in eager's gradient of hardsigmoid: off by 3e-8, in double."""
    fn = getattr(F, name)
    x = torch.linspace(-4, 4, 41, dtype=torch.float64)
    outcomes = []
    for run in (lambda x: fn(x), burnish.compile(lambda x: fn(x), gate=False, verify="off")):
        given = x.clone().requires_grad_()
        result = run(given)
        outcomes.append((result, *torch.autograd.grad(result, given, torch.full_like(x, 1.25))))
    torch.testing.assert_close(outcomes[1], outcomes[0], rtol=4e-16, atol=0)


REFUSED: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "copy": lambda x, i: x.index_copy(0, i, x),
    "add": lambda x, i: x.index_add(0, i, x),
    "select": lambda x, i: x.index_select(0, i),
    "fill": lambda x, i: x.index_fill(0, i, 1.0),
    "gather": lambda x, i: x.gather(0, i),
    "scatter": lambda x, i: x.scatter(0, i, x),
}


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.parametrize("index", [torch.zeros(3), torch.zeros(2, 2, dtype=torch.int64)], ids=["floats", "matrix"])
def test_indices_that_eager_refuses_are_refused(name, index):
    fn, x = REFUSED[name], torch.randn(3)
    with pytest.raises((RuntimeError, IndexError)) as eagers:
        fn(x, index)
    with pytest.raises(type(eagers.value)):
        burnish.compile(fn, gate=False, verify="off")(x, index)


@pytest.mark.parametrize("value", [1, 2])
def test_an_integer_beside_a_half_in_addcmul_is_of_halves_range(value):
    halves = torch.tensor([1e-7, 1.5, -3.0], dtype=torch.float16)
    check(
        lambda a, b: torch.addcmul(a, a, b, value=value),
        halves,
        torch.tensor([-(2**31), 2**31 - 1, 100003], dtype=torch.int32),
    )
