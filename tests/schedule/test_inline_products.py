"""A reader computes the vector products that it reads, and a product the short sums that it is scaled by."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from burnish.schedule.gpu.vector_loops import is_vector_product, matrices
from burnish.schedule.kernels import LoopKernel
from tests.schedule.one_pass import one_pass

X, W = torch.randn(1, 64), torch.randn(96, 64)


def gated(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    gate, up = (x @ w.t()).chunk(2, -1)
    return F.silu(gate) * up


def test_the_two_halves_of_a_gated_layer_are_one_kernel() -> None:
    found = one_pass("inline products", gated, X, W)
    (kernel,) = found.after.kernels
    assert isinstance(kernel, LoopKernel) and is_vector_product(kernel.loop) and matrices(kernel.loop) == 2
    found.require_same_results()


def test_it_takes_fuel() -> None:
    found = one_pass("inline products", gated, X, W)
    assert [step.partition(":")[0] for step in found.steps] == ["inline products"]
    assert str(found.without_fuel) == str(found.before)


def test_no_product_is_computed_twice() -> None:
    found = one_pass("inline products", lambda x, w: (x @ w.t())[:, :, None] * torch.ones(3), X, W)
    found.require_same_results()
    assert not found.steps


def test_a_product_that_is_returned_stays_in_memory() -> None:
    def both(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        product = x @ w.t()
        gate, up = product.chunk(2, -1)
        return product, F.silu(gate) * up

    assert not one_pass("inline products", both, X, W).steps


# --- a few products added up ------------------------------------------------------------------------------------


def test_the_products_of_a_few_rows_are_added_up_where_they_are_made() -> None:
    """The experts of a token: their outputs are never stored."""
    found = one_pass("inline products", lambda x, w: (x @ w.t()).view(4, 24).sum(0), X, W)
    (kernel,) = found.after.kernels
    assert isinstance(kernel, LoopKernel) and matrices(kernel.loop) == 4
    found.require_same_results()


def test_of_many_rows_one_program_would_do_all_the_work() -> None:
    found = one_pass("inline products", lambda x, w: (x @ w.t()).view(48, 2).sum(0), X, W)
    assert not found.steps and len(found.after.kernels) == 2


# --- short sums -------------------------------------------------------------------------------------------------


def shared(x: torch.Tensor, w: torch.Tensor, shares: torch.Tensor) -> torch.Tensor:
    return (x @ w.t()) / shares.sum()


def test_a_sum_of_a_few_terms_is_computed_by_each_program() -> None:
    found = one_pass("inline products", shared, X, W, torch.rand(4))
    assert [step.partition(":")[0] for step in found.steps] == ["inline sums"]
    assert (len(found.before.kernels), len(found.after.kernels)) == (2, 1)
    found.require_same_results()


def test_a_sum_of_many_terms_is_a_kernel() -> None:
    found = one_pass("inline products", shared, X, W, torch.rand(40))
    assert not found.steps and len(found.after.kernels) == 2


def test_a_sum_that_is_returned_is_stored() -> None:
    found = one_pass("inline products", lambda x, w, s: (shared(x, w, s), s.sum()), X, W, torch.rand(4))
    assert not found.steps and len(found.after.kernels) == 2
