"""What counts as right: errors beside eager's own, exact integers, NaN and infinity where eager has them."""

from __future__ import annotations

import pytest
import torch

from burnish.tools.verify.judge import judge

FLOATS = (torch.float32, torch.float16, torch.bfloat16)


def rounded(truth: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return truth.to(dtype)


@pytest.mark.parametrize("dtype", FLOATS)
def test_rounding_is_right_and_one_percent_is_wrong(dtype: torch.dtype) -> None:
    truth = torch.randn(64, 64, dtype=torch.float64)
    eager = rounded(truth, dtype)
    assert judge(eager.clone(), eager, truth).ok
    other = rounded(truth * (1 + torch.finfo(dtype).eps / 4), dtype)  # rounds elsewhere, equally well
    assert judge(other, eager, truth).ok
    verdict = judge((truth * 1.01).to(dtype), eager, truth)
    assert not verdict.ok and "float64" in verdict.reason


@pytest.mark.parametrize("dtype", FLOATS)
def test_one_wrong_element_among_many_is_found_and_named(dtype: torch.dtype) -> None:
    truth = torch.randn(100, 100, dtype=torch.float64)
    eager = rounded(truth, dtype)
    candidate = eager.clone()
    candidate[41, 7] = 0 if abs(truth[41, 7]) > 0.5 else 3
    verdict = judge(candidate, eager, truth)
    assert not verdict.ok and verdict.at == (41, 7)


def test_an_error_like_eagers_own_is_right_however_large() -> None:
    truth = torch.randn(1000, dtype=torch.float64)
    noise = torch.randn(1000, dtype=torch.float64) * 1e-3
    eager = (truth + noise).float()
    assert judge((truth - noise).float(), eager, truth).ok
    assert not judge((truth - 20 * noise).float(), eager, truth).ok


def test_what_differs_between_two_runs_of_eager_is_not_held_against_it() -> None:
    truth = torch.randn(1000, dtype=torch.float64)
    eager, again, other = ((truth + torch.randn(1000) * 1e-4).float() for _ in range(3))
    assert not judge(other, eager).ok
    assert judge(other, eager, None, again).ok


def test_a_value_that_should_be_zero_may_be_any_rounding_error() -> None:
    truth = torch.randn(64, dtype=torch.float64) * 1e-17
    assert judge(torch.randn(64) * 3e-8, torch.randn(64) * 1e-8, truth).ok
    assert not judge(torch.randn(64) * 1e-3, torch.randn(64) * 1e-8, truth).ok


def test_a_referee_that_computed_something_else_is_not_asked() -> None:
    eager = torch.randn(64)
    assert judge(eager * (1 + 1e-7), eager, torch.randn(64, dtype=torch.float64)).ok
    assert not judge(eager * 1.01, eager, torch.randn(64, dtype=torch.float64)).ok


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8, torch.bool])
def test_integers_are_equal_or_wrong(dtype: torch.dtype) -> None:
    eager = torch.arange(10).to(dtype)
    assert judge(eager.clone(), eager).ok
    candidate = eager.clone()
    candidate[3] = not candidate[3] if dtype is torch.bool else candidate[3] + 1
    verdict = judge(candidate, eager)
    assert not verdict.ok and "1 of 10" in verdict.reason


def test_an_integer_that_float64_decides_otherwise_may_be_either() -> None:
    eager, reference = torch.tensor([1, 2, 3]), torch.tensor([1, 5, 3])
    assert judge(torch.tensor([1, 5, 3]), eager, reference).ok
    assert not judge(torch.tensor([1, 4, 3]), eager, reference).ok


@pytest.mark.parametrize(
    ("candidate", "eager", "reference", "right"),
    [
        (float("nan"), float("nan"), float("nan"), True),
        (float("nan"), 1.0, 1.0, False),
        (1.0, float("nan"), float("nan"), False),
        (float("inf"), float("-inf"), float("-inf"), False),
        (65000.0, float("inf"), 65000.0, True),  # eager overflows, float64 does not
        (float("inf"), 1.0, 1.0, False),
    ],
)
def test_nan_and_infinity_are_where_eager_has_them(
    candidate: float, eager: float, reference: float, right: bool
) -> None:
    beside = [1.0, 2.0]
    verdict = judge(
        torch.tensor([*beside, candidate]),
        torch.tensor([*beside, eager]),
        torch.tensor([*beside, reference], dtype=torch.float64),
    )
    assert verdict.ok is right
    assert right or verdict.at == (2,)


def test_types_and_shapes_must_be_eagers() -> None:
    x = torch.ones(3)
    assert "type" in judge(x.double(), x).reason
    assert "shape" in judge(x[None], x).reason
    assert judge(torch.empty(0, 3), torch.empty(0, 3)).ok
