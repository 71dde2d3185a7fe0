"""What follows a product is computed on its tiles: the first fusion, which only products take part in."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from burnish.ir.body import Apply
from burnish.schedule.kernels import ContractKernel, ConvolveKernel, LoopKernel
from tests.schedule.one_pass import OnePass, one_pass

X, W = torch.randn(64, 64).bfloat16() / 8, torch.randn(64, 96).bfloat16() / 8
BIAS, RESIDUAL = torch.randn(96).bfloat16(), torch.randn(64, 96).bfloat16()


def product_of(found: OnePass) -> ContractKernel:
    (product,) = (k for k in found.after.kernels if isinstance(k, ContractKernel))
    return product


def activated(x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
    return F.gelu(x @ w + bias) + residual


def test_bias_activation_and_residual_are_computed_on_the_products_tiles() -> None:
    found = one_pass("epilogues", activated, X, W, BIAS, RESIDUAL)
    assert [type(k) for k in found.after.kernels] == [ContractKernel]
    assert any(isinstance(i, Apply) and i.fn == "erf" for i in product_of(found).loop.body)
    found.require_same_results(2e-2)


def test_it_takes_fuel() -> None:
    found = one_pass("epilogues", activated, X, W, BIAS, RESIDUAL)
    assert len(found.steps) == len(found.before.kernels) - 1
    assert str(found.without_fuel) == str(found.before)


def test_a_convolution_has_one_too() -> None:
    x, k = (torch.randn(*s).bfloat16() / 8 for s in ((2, 48, 5, 6), (16, 48, 3, 3)))
    found = one_pass("epilogues", lambda x, k: F.conv2d(x, k, padding=1).relu(), x, k)
    assert [type(k) for k in found.after.kernels] == [ConvolveKernel]
    found.require_same_results(2e-2)


def test_a_product_that_is_returned_is_stored_beside_its_activation() -> None:
    def both(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        product = x @ w
        return product, F.gelu(product)

    found = one_pass("epilogues", both, X, W)
    assert len(product_of(found).loop.stores) == 2
    found.require_same_results(2e-2)


def test_a_products_operand_is_read_from_memory() -> None:
    found = one_pass("epilogues", lambda x, w: (x * 2).relu() @ w, X, W)
    assert product_of(found).a.buffer not in {name for name, b in found.after.buffers.items() if b.role == "input"}
    found.require_same_results(2e-2)


def test_a_row_of_the_result_is_not_reduced_on_tiles() -> None:
    """A tile has a part of the row: the norm's sums stay loops of their own."""
    found = one_pass("epilogues", lambda x, w: F.layer_norm(x @ w, (96,)), X, W)
    assert not product_of(found).loop.reduction
    assert sum(isinstance(k, LoopKernel) and bool(k.loop.reduction) for k in found.after.kernels) == 2
    found.require_same_results(2e-2)


def test_elements_of_other_tiles_are_not_there_yet() -> None:
    found = one_pass("epilogues", lambda x, w: (x @ w).roll(1, -1), X, W)
    assert [type(k) for k in found.after.kernels] == [ContractKernel, LoopKernel]
    found.require_same_results(2e-2)


def test_loops_wait_for_the_later_fusion() -> None:
    found = one_pass("epilogues", lambda x: x.softmax(-1), X)
    assert len(found.before.kernels) > 1 and str(found.after) == str(found.before)


def test_an_epilogue_reads_nothing_that_changes_before_it_does() -> None:
    """The residual is written between the product and the sum, which reads what was written."""

    def written(x: torch.Tensor, w: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        product = x @ w
        residual.mul_(2)
        return product + residual

    one_pass("epilogues", written, X, W, RESIDUAL.clone()).require_same_results(2e-2)
