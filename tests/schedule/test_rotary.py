"""A rotation joins the vector product that it is of."""

from __future__ import annotations

import torch

from burnish.schedule.gpu.vector_loops import is_vector_product
from burnish.schedule.kernels import LoopKernel
from tests.schedule.one_pass import one_pass

X, W, COS, SIN = torch.randn(1, 64), torch.randn(64, 64), torch.randn(64), torch.randn(64)


def rotated(x: torch.Tensor, w: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    q = x @ w.t()
    a, b = q.chunk(2, -1)
    return q * cos + torch.cat([-b, a], -1) * sin


def test_a_point_computes_both_halves() -> None:
    found = one_pass("rotary", rotated, X, W, COS, SIN)
    assert (len(found.before.kernels), len(found.after.kernels)) == (2, 1)
    (joined,) = found.made
    assert isinstance(joined, LoopKernel) and is_vector_product(joined.loop)
    assert [a.size for a in joined.loop.parallel] == [32]
    found.require_same_results()


def test_it_takes_fuel() -> None:
    found = one_pass("rotary", rotated, X, W, COS, SIN)
    assert len(found.steps) == 1 and found.steps[0].startswith("rotary: ")
    assert str(found.without_fuel) == str(found.before)


def test_a_product_that_is_returned_stays_in_memory() -> None:
    found = one_pass("rotary", lambda x, w, cos, sin: (x @ w.t(), rotated(x, w, cos, sin)), X, W, COS, SIN)
    assert not found.steps


def test_what_the_product_reads_may_not_change_in_between() -> None:
    def written(x: torch.Tensor, w: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        q = x @ w.t()
        a, b = q.chunk(2, -1)
        result = q * cos + torch.cat([-b, a], -1) * sin
        x.add_(1)
        return result

    one_pass("rotary", written, X, W, COS, SIN).require_same_results()


def test_quarters_are_no_halves() -> None:
    def quartered(x: torch.Tensor, w: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        q = x @ w.t()
        return q * cos + q.roll(16, -1) * sin

    found = one_pass("rotary", quartered, X, W, COS, SIN)
    assert not found.steps
    found.require_same_results()
