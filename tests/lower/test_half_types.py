"""Half types are computed in float and rounded where they are stored. What is exact in eager is exact here all the
same: numbers that are compared, picked and cut, and operations that jump, take what a tensor would hold."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.nn import functional as F

import burnish

HALVES = (torch.float16, torch.bfloat16)
WITH_NUMBERS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "eq": lambda x: x == 0.1,
    "ne": lambda x: x != 0.3,
    "gt": lambda x: x > 0.1,
    "ge": lambda x: x >= 0.1,
    "lt": lambda x: x < 0.1,
    "le": lambda x: x <= 0.1,
    "clamp": lambda x: x.clamp(-7.3, 7.3).float(),
    "hardtanh": lambda x: F.hardtanh(x, -0.1, 0.1).float(),
    "where": lambda x: torch.where(x > 0, x, 0.1).float(),
    "masked_fill": lambda x: x.masked_fill(x > 0, 0.1).float(),
    "full": lambda x: (torch.full_like(x, 0.1) == x).float(),
    "add": lambda x: x + 0.1,
    "sub": lambda x: x - 0.1,
    "rsub": lambda x: 0.3 - x,
    "mul": lambda x: x * 0.1,
    "div": lambda x: x / 0.3,
    "fmod": lambda x: torch.fmod(x, 0.3),
    "remainder": lambda x: x % 0.3,
    "floor": lambda x: x // 0.3,
    "trunc": lambda x: torch.div(x, 0.3, rounding_mode="trunc"),
    "sign": lambda x: (x - 0.1).sign(),
}
AFTER_A_PRODUCT: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "to int": lambda x: (x * 30).to(torch.int32),
    "to int, through a choice": lambda x: torch.where(x > 0, x * 30, -x).abs().to(torch.int64),
    "floor": lambda x: (x * 30).floor(),
    "round": lambda x: (x * 30).round(),
    "remainder": lambda x: (x * 30) % 0.7,
    "fmod": lambda x: torch.fmod(x * 30, 0.7),
    "floor_divide": lambda x: (x * 30) // 0.7,
    "eq": lambda x: x * 30 == 3,
    "gt": lambda x: x * 30 > 3,
    "index": lambda x: torch.arange(70000)[(x * 30).abs().long().clamp(0, 69999)],
}


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("ops", [WITH_NUMBERS, AFTER_A_PRODUCT], ids=["with numbers", "after a product"])
def test_what_is_exact_in_eager(dtype: torch.dtype, ops: dict[str, Callable[[torch.Tensor], torch.Tensor]]) -> None:
    def fn(x: torch.Tensor) -> list[torch.Tensor]:
        return [op(x) for op in ops.values()]

    telling = torch.tensor([0.1, 0.1001, 0.0999, 0.3, 1000.3, -0.1, 7.7, 0.0, -0.0])
    x = torch.cat([telling, torch.randn(500, generator=torch.Generator().manual_seed(2)) * 10]).to(dtype)
    for name, ours, theirs in zip(ops, burnish.compile(fn, verify="off")(x), fn(x), strict=True):
        wrong = (ours != theirs).nonzero().flatten()[:3]
        assert torch.equal(ours, theirs), f"{name} of {x[wrong]}: {ours[wrong]}, eager's {theirs[wrong]}"


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_the_next_number_is_the_next_of_its_type(dtype: torch.dtype) -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        return torch.nextafter(x, x + 1) + 0

    x = torch.linspace(-4, 4, 999).to(dtype)
    assert torch.equal(burnish.compile(fn, verify="off")(x), fn(x))


def test_a_spread_whose_square_no_float_holds() -> None:
    def fn(x: torch.Tensor) -> list[torch.Tensor]:
        return [(x * 2).std(-1), x.std(0), *torch.std_mean(x, -1), x.std(1, correction=0), (x * 1e-30).std(-1)]

    compiled = burnish.compile(fn, verify="off")
    for scale in (1.0, 1e20, 1e30, 1e-30):
        x = torch.rand(64, 300) * scale
        for ours, theirs in zip(compiled(x), fn(x), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=0.0)
    assert burnish.stats(compiled).aten_calls == {}


IN_ANOTHER_TYPE: dict[str, Callable[[torch.Tensor, torch.dtype], torch.Tensor]] = {
    "sum": lambda x, dtype: x.sum(dtype=dtype),
    "sum of rows": lambda x, dtype: x.sum(-1, dtype=dtype),
    "product": lambda x, dtype: x.prod(dtype=dtype),
    "product of rows": lambda x, dtype: x.prod(-1, dtype=dtype),
    "mean": lambda x, dtype: x.mean(dtype=dtype),
    "running sum": lambda x, dtype: x.cumsum(-1, dtype=dtype),
    "running product": lambda x, dtype: x.cumprod(-1, dtype=dtype),
}


@pytest.mark.parametrize("name", IN_ANOTHER_TYPE)
@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_a_reduction_rounds_its_operand_first(name: str, dtype: torch.dtype) -> None:
    """By `dtype=`: of numbers that round to one, or to infinity, every sum and product is then exact."""
    fn = IN_ANOTHER_TYPE[name]
    for value in (1 + 0.45 * torch.finfo(dtype).eps, 2 * torch.finfo(dtype).max):
        x = torch.full((2, 8), value, dtype=torch.float64)
        x[:, 1] *= -1
        got, want = burnish.compile(lambda x: fn(x, dtype))(x), fn(x, dtype)
        torch.testing.assert_close(got, want, rtol=0, atol=0, equal_nan=True)
