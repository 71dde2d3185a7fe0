"""A reader computes the vector products that it reads."""

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
