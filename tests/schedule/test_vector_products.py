"""Products of one row are loops, which make the vector that they multiply."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from burnish.schedule.gpu.vector_loops import is_vector_product
from burnish.schedule.kernels import ContractKernel, LoopKernel
from tests.schedule.one_pass import one_pass

X, W, G = torch.randn(1, 64), torch.randn(48, 64), torch.randn(64)


def test_a_product_of_one_row_is_a_loop() -> None:
    found = one_pass("vector products", lambda x, w: x @ w.t(), X, W)
    (kernel,) = found.after.kernels
    assert isinstance(kernel, LoopKernel) and is_vector_product(kernel.loop)
    assert isinstance(found.without_fuel.kernels[0], ContractKernel)
    found.require_same_results()


def test_of_two_rows_it_is_none() -> None:
    found = one_pass("vector products", lambda x, w: x @ w.t(), torch.randn(2, 64), W)
    assert isinstance(found.after.kernels[0], ContractKernel)


def test_a_norm_is_computed_by_its_reader() -> None:
    found = one_pass("rows", lambda x, w, g: F.rms_norm(x, (64,), g) @ w.t(), X, W, G)
    assert (len(found.before.kernels), len(found.after.kernels)) == (2, 1)
    assert found.steps[0].startswith("rows: ") and str(found.without_fuel) == str(found.before)
    found.require_same_results()


def test_a_norm_that_is_returned_stays_a_kernel() -> None:
    def both(x: torch.Tensor, w: torch.Tensor, g: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        normed = F.rms_norm(x, (64,), g)
        return normed, normed @ w.t()

    found = one_pass("rows", both, X, W, G)
    assert not found.steps
