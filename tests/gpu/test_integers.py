"""Integers and casts on the device mean what eager's kernels mean there, at the ends of every type."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import burnish
from tests.gpu.on_device import DEVICE, compiled
from tests.lower.test_integers import BINARY, FLOATS, INTEGERS, REDUCTIONS, TYPES, UNARY, edges, numbers, pairs

pytestmark = pytest.mark.gpu

DIVISIONS: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "floor": lambda a, b: a // b,
    "remainder": lambda a, b: a % b,
    "fmod": torch.fmod,
    "trunc": lambda a, b: torch.div(a, b, rounding_mode="trunc"),
}


def equal(fn: Callable[..., list[torch.Tensor]], names: list[str], *args: torch.Tensor) -> None:
    ours = compiled(fn)
    for name, found, wanted in zip(names, ours(*args), fn(*args), strict=True):
        same = (found == wanted) | ((found != found) & (wanted != wanted))
        assert found.dtype is wanted.dtype and bool(same.all()), (
            f"{name}: {int((~same).sum())} differ, {found[~same][:4].tolist()} for {wanted[~same][:4].tolist()}"
        )
    assert burnish.stats(ours).fallbacks == ()


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_two_operands(dtype: torch.dtype) -> None:
    a, b = (x.to(DEVICE) for x in pairs(dtype))
    equal(lambda a, b: [op(a, b) for op in BINARY.values()], list(BINARY), a, b)


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_one_operand(dtype: torch.dtype) -> None:
    x = edges(dtype).to(DEVICE)
    kept = {name: op for name, op in UNARY.items() if dtype.itemsize > 2 or "clamp -500" not in name}
    equal(lambda x: [op(x) for op in kept.values()], list(kept), x)


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_reductions(dtype: torch.dtype) -> None:
    low, high = torch.iinfo(dtype).min, torch.iinfo(dtype).max
    x = torch.randint(low, high, (37, 83), dtype=dtype, generator=torch.Generator().manual_seed(1)).to(DEVICE)
    equal(lambda x: [op(x) for op in REDUCTIONS.values()], list(REDUCTIONS), x)


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_divisors_that_are_zero_and_quotients_that_do_not_fit(dtype: torch.dtype) -> None:
    """Eager's own kernels say what that is; whether they raise depends on the version of torch."""
    a, b = (x.to(DEVICE) for x in pairs(dtype))
    try:
        [op(a, b) for op in DIVISIONS.values()]
        torch.cuda.synchronize()
    except RuntimeError:
        pytest.skip("eager raises here")
    equal(lambda a, b: [op(a, b) for op in DIVISIONS.values()], list(DIVISIONS), a, b)


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_known_divisors(dtype: torch.dtype) -> None:
    x, known = edges(dtype).to(DEVICE), (1, -1, 3, -3, 7, 100, -128)
    names = [f"{name} {n}" for name in DIVISIONS for n in known]
    equal(lambda x: [op(x, n) for op in DIVISIONS.values() for n in known], names, x)


@pytest.mark.parametrize("have", TYPES, ids=str)
def test_casts(have: torch.dtype) -> None:
    x, wanted = numbers(have).to(DEVICE), [t for t in TYPES if t is not have]
    equal(lambda x: [x.to(t) for t in wanted], [f"{have} to {t}" for t in wanted], x)


@pytest.mark.parametrize("have", FLOATS, ids=str)
def test_casts_in_the_midst_of_a_kernel(have: torch.dtype) -> None:
    x, wanted = numbers(have).to(DEVICE), INTEGERS
    equal(lambda x: [(-x).to(t) + 1 for t in wanted], [f"{have} to {t}" for t in wanted], x)


@pytest.mark.parametrize("have", FLOATS, ids=str)
def test_clamped_numbers_become_narrow_integers(have: torch.dtype) -> None:
    x = numbers(have).to(DEVICE)
    equal(
        lambda x: [x.round().clamp(-128, 127).to(torch.int8), x.clamp(-32768, 32767).trunc().to(torch.int16)],
        ["int8", "int16"],
        x,
    )


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_the_next_number_of_a_half_type(dtype: torch.dtype) -> None:
    x = torch.linspace(-4, 4, 999, device=DEVICE).to(dtype)
    equal(lambda x: [torch.nextafter(x * 1, x + 1)], ["nextafter"], x)
