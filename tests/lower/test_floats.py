"""Floating-point operations at the ends of every type: subnormal numbers, the largest, zeros, infinities, no numbers.

A result may be as far from the exact one as eager's is, and two units in the last place more. Whether it is a number,
finite, or which infinity, is what eager says, or what is right: eager's vectors and scalars do not always agree."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import burnish

Op = Callable[..., torch.Tensor]

FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)


def _named(module: Any, names: str) -> dict[str, Op]:
    return {name: getattr(module, name) for name in names.split()}


UNARY: dict[str, Op] = {
    **_named(
        torch,
        "abs neg floor ceil trunc round frac sign sqrt rsqrt reciprocal square exp exp2 expm1 log log2 log10 log1p "
        "sin cos tan asin acos atan sinh cosh tanh asinh acosh atanh erf erfc lgamma sigmoid nan_to_num",
    ),
    **_named(
        F,
        "relu relu6 softplus silu gelu mish elu selu celu hardsigmoid hardswish hardshrink softshrink logsigmoid "
        "leaky_relu softsign tanhshrink",
    ),
    "gelu tanh": lambda x: F.gelu(x, approximate="tanh"),
    "x + 1": lambda x: x + 1,
    "x * 3 - x * 3": lambda x: (x * 3) - (x * 3),
    "x / 3": lambda x: x / 3,
    "1 / x": lambda x: 1 / x,
    "x % 3": lambda x: x % 3,
    "x // 0.3": lambda x: x // 0.3,
    **{f"x ** {n}": lambda x, n=n: x**n for n in (2, 3, -1, -2, 0.5, -0.5, 1.7)},
    "2 ** x": lambda x: 2**x,
}

# What is left of an operand when a function of it, which may be two units off, is taken from it.
CANCELLING = ("tanhshrink",)

BINARY: dict[str, Op] = {
    **_named(
        torch,
        "add sub mul div floor_divide remainder fmod pow atan2 hypot copysign nextafter fmax fmin maximum minimum "
        "xlogy",
    ),
    "div trunc": lambda a, b: torch.div(a, b, rounding_mode="trunc"),
    "lerp": lambda a, b: torch.lerp(a, b, 0.25),
}


def edges(dtype: torch.dtype) -> torch.Tensor:
    info = torch.finfo(dtype)
    smallest, largest = info.smallest_normal, info.max
    subnormal = [info.smallest_normal * info.eps * n for n in (1, 2, 3, 37)] + [smallest / 2]
    ordinary = [0.1, 0.3, 0.5, 0.75, 1 - info.eps, 1, 1 + info.eps, 1.5, 2, 2.5, 3, 7, 10, 15.9, 88.5, 104, 1000, 65000]
    ends = [smallest, smallest * 3, smallest**0.5, largest**0.5, largest / 3, largest / 2, largest, float("inf")]
    positive = torch.tensor([0.0, *subnormal, *ordinary, *ends], dtype=torch.float64).to(dtype)
    return torch.cat([positive, -positive, torch.tensor([float("nan")], dtype=dtype)])


def pairs(dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    x = edges(dtype)
    return x.repeat_interleave(len(x)), x.repeat(len(x))


def differences(ops: Mapping[str, Op], ours: list[torch.Tensor], *args: torch.Tensor) -> list[str]:
    """Where results are further from the exact ones than eager's are, one line for each operation."""
    out = []
    for (name, op), found in zip(ops.items(), ours, strict=True):
        eager, found = op(*args).cpu(), found.cpu()
        assert found.dtype is eager.dtype
        exact = op(*[_one_by_one(a.cpu().double()) for a in args]).double()
        bad = ~_is_as_good(found, eager, exact)
        if name in CANCELLING and eager.dtype is torch.float64:  # than which nothing here is more exact
            bad &= ~((found - eager).abs() <= 2 * torch.finfo(eager.dtype).eps * args[0].cpu().abs())
        if bad.any():
            at = [tuple(a.cpu()[bad][k].item() for a in args) for k in range(min(3, int(bad.sum())))]
            out.append(f"{name}: {int(bad.sum())} at {at}: {found[bad][:3].tolist()} for {eager[bad][:3].tolist()}")
    return out


def _one_by_one(x: torch.Tensor) -> torch.Tensor:
    """With strides for which eager takes its scalar loops, whose library is right where its vectors' is not."""
    return torch.stack([x, x], 1)[:, 0]


def _is_as_good(found: torch.Tensor, eager: torch.Tensor, exact: torch.Tensor) -> torch.Tensor:
    info = torch.finfo(found.dtype)
    same = (found == eager) | (found.isnan() & eager.isnan())
    wide = eager.double()
    unit = (wide.abs() * info.eps).clamp(min=info.smallest_normal * info.eps)
    theirs = torch.where(exact.isfinite(), (wide - exact).abs(), 0.0)
    near = (found.double() - wide).abs() <= 2 * theirs + 2 * unit
    right = exact.to(found.dtype)
    step = (right.double().abs() * info.eps).clamp(min=info.smallest_normal * info.eps)
    is_right = (found == right) | ((found.double() - right.double()).abs() <= 2 * step)
    return same | is_right | (found.isfinite() & eager.isfinite() & near)


def forced(fn: Callable[..., object]) -> Callable[..., list[torch.Tensor]]:
    return burnish.compile(fn, gate=False, verify="off")  # type: ignore[return-value]


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_one_operand(dtype: torch.dtype) -> None:
    x = edges(dtype)
    compiled = forced(lambda x: [op(x) for op in UNARY.values()])
    assert differences(UNARY, compiled(x), x) == []
    assert burnish.stats(compiled).fallbacks == ()


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_two_operands(dtype: torch.dtype) -> None:
    a, b = pairs(dtype)
    compiled = forced(lambda a, b: [op(a, b) for op in BINARY.values()])
    assert differences(BINARY, compiled(a, b), a, b) == []
    assert burnish.stats(compiled).fallbacks == ()


@pytest.mark.parametrize(("shape", "dim"), [((1, 4), 0), ((3, 1), 1), ((4, 8), 0), ((4, 33), 1), ((1, 1), 1)])
def test_sums_of_negative_zeros(shape: tuple[int, ...], dim: int) -> None:
    x = torch.full(shape, -0.0)
    compiled = forced(lambda x: [1 / x.sum(dim), 1 / x.mean(dim), 1 / x.cumsum(dim)])
    for found, wanted in zip(compiled(x), [1 / x.sum(dim), 1 / x.mean(dim), 1 / x.cumsum(dim)], strict=True):
        assert torch.equal(found, wanted)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("shape", [(), (1,), (3,), (1, 3), (3, 1), (17,), (64,)])
def test_a_sum_of_negative_zeros_is_zero(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    """As in eager, whose sums begin at zero, also over one element."""

    def signs(x: torch.Tensor) -> list[torch.Tensor]:
        sums = [x.sum(), x.mean(), x.nansum(), *((x.sum(-1), x.sum(0), x.cumsum(0)) if x.dim() else ())]
        return [torch.signbit(each) for each in sums]

    x = torch.full(shape, -0.0, dtype=dtype)
    assert all(map(torch.equal, burnish.compile(signs, gate=False, verify="off")(x), signs(x)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("loss", [F.smooth_l1_loss, F.huber_loss, F.mse_loss, F.l1_loss])
def test_gradients_of_losses_at_what_is_no_number(loss: Callable[..., torch.Tensor], dtype: torch.dtype) -> None:
    values = [math.nan, math.inf, -math.inf, 1.0, 0.25, 0.0]
    pairs = torch.tensor([(a, b) for a in values for b in values], dtype=dtype)

    def gradients(call: Callable[..., torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        x, y = (pairs[:, k].clone().requires_grad_() for k in range(2))
        call(x, y).sum().backward()
        assert x.grad is not None and y.grad is not None
        return x.grad, y.grad

    def fn(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return loss(x, y, reduction="none")

    compiled = burnish.compile(fn, gate=False, verify="off")
    torch.testing.assert_close(gradients(compiled), gradients(fn), equal_nan=True)
    assert not burnish.stats(compiled).fallbacks


@pytest.mark.parametrize("dtype", [*FLOATS, torch.int64, torch.int8, torch.uint8, torch.bool], ids=str)
def test_sign_bits(dtype: torch.dtype) -> None:
    """Of zeros, and of what is no number, too; in our own kernels."""
    x = torch.cat([edges(dtype), -edges(dtype)]) if dtype.is_floating_point else torch.arange(-100, 100).to(dtype)
    compiled = forced(torch.signbit)
    assert torch.equal(compiled(x), x.signbit())
    assert burnish.stats(compiled).aten_calls == {} and burnish.stats(compiled).fallbacks == ()
