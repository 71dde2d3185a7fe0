"""The float64 referee, and what counts as an error."""

from __future__ import annotations

import math

import torch

from burnish.tools.parity import float64_errors, reference, relative_error
from burnish.tools.targets import Target


class CastsInside(torch.nn.Module):
    """As RMS norms do: the float32 inside must not reach the referee."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.to(torch.float32).float() * torch.ones(3, dtype=torch.float32) / 3


def test_casts_to_float32_do_not_blunt_the_referee() -> None:
    x = torch.rand(3)
    (truth,) = reference(Target("casts", CastsInside(), (x,)))
    assert truth.dtype == torch.float64
    assert torch.equal(truth, x.double() / 3)
    assert torch.get_default_dtype() == torch.float32


def test_relative_error_is_of_the_largest_value() -> None:
    truth = torch.tensor([100.0, 1e-9], dtype=torch.float64)
    assert math.isclose(relative_error([truth + 1], [truth]), 0.01)
    assert relative_error([torch.tensor([1])], [torch.tensor([2])]) == math.inf
    assert relative_error([torch.empty(0)], [torch.empty(0)]) == 0.0


def test_nan_and_inf_must_be_where_the_referee_has_them() -> None:
    truth = torch.tensor([math.nan, math.inf, -math.inf, 1.0], dtype=torch.float64)
    assert relative_error([truth.float()], [truth]) == 0.0
    wrongs = (
        [0.0, math.inf, -math.inf, 1.0],
        [math.nan, -math.inf, -math.inf, 1.0],
        [math.nan, math.inf, -math.inf, math.nan],
    )
    for wrong in wrongs:
        assert relative_error([torch.tensor(wrong)], [truth]) == math.inf


def test_a_target_without_a_referee_has_no_error() -> None:
    weight = torch.randn(2, 2)
    target = Target("closure", lambda x: x @ weight, (torch.randn(2, 2),))
    assert float64_errors(target, {"eager": target.model}) == {"eager": None}


def test_what_is_zero_but_for_rounding_hides_nothing() -> None:
    truth = [torch.ones(4, dtype=torch.float64), torch.full((4,), 1e-17, dtype=torch.float64)]
    rounded = [torch.ones(4), torch.full((4,), 3e-9)]
    assert relative_error(rounded, truth) < 1e-5 < relative_error([rounded[0] * 1.01, rounded[1]], truth)


def test_a_small_tensor_counts() -> None:
    truth = [torch.ones(4, dtype=torch.float64), torch.full((4,), 1e-6, dtype=torch.float64)]
    assert relative_error([truth[0], truth[1] * 1.01], truth) > 8e-6
