"""What a whole row is multiplied by leaves the row's sum."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from burnish.ir.body import Apply, Reduced
from burnish.schedule.kernels import LoopKernel
from tests.schedule.one_pass import one_pass

X, W, G = torch.randn(1, 64), torch.randn(32, 64), torch.randn(64)


def normed_product(x: torch.Tensor, w: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
    return F.rms_norm(x, (64,), g) @ w.t()


def test_the_sum_of_a_norm_and_that_of_its_product_are_independent() -> None:
    """The product's sum reads nothing that is made of the norm's: both are in one pass over the row."""
    found = one_pass("factors", normed_product, X, W, G)
    (kernel,) = found.made
    assert isinstance(kernel, LoopKernel)
    body, level = kernel.loop.body, kernel.loop.element_level()
    sums = [i for i in body if isinstance(i, Reduced)]
    assert len(sums) == 2

    def needs_a_sum(value: int) -> bool:
        i = body[value]
        return isinstance(i, Reduced) or (isinstance(i, Apply) and any(map(needs_a_sum, i.args)))

    assert not any(needs_a_sum(i.arg) for i in sums) and all(level[i.arg] for i in sums)
    found.require_same_results()


def test_it_takes_fuel() -> None:
    found = one_pass("factors", normed_product, X, W, G)
    assert [step.partition(":")[0] for step in found.steps] == ["factors"]
    assert str(found.without_fuel) == str(found.before)


def test_a_product_without_a_factor_stays_as_it_is() -> None:
    found = one_pass("factors", lambda x, w, g: (x + g) @ w.t(), X, W, G)
    assert not found.steps and str(found.after) == str(found.before)
