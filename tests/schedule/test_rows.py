"""A vector product computes the row that it multiplies, where that is one pass over it."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from burnish.ir.body import Reduced
from burnish.schedule.kernels import LoopKernel
from tests.schedule.one_pass import one_pass

X, W, G = torch.randn(1, 64), torch.randn(48, 64), torch.randn(64)


def normed_product(x: torch.Tensor, w: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
    return F.rms_norm(x, (64,), g) @ w.t()


def test_a_norm_is_computed_by_its_reader() -> None:
    found = one_pass("rows", normed_product, X, W, G)
    assert (len(found.before.kernels), len(found.after.kernels)) == (2, 1)
    (kernel,) = found.made
    assert isinstance(kernel, LoopKernel) and sum(isinstance(i, Reduced) for i in kernel.loop.body) == 2
    found.require_same_results()


def test_it_takes_fuel() -> None:
    found = one_pass("rows", normed_product, X, W, G)
    assert [step.partition(":")[0] for step in found.steps] == ["rows"]
    assert str(found.without_fuel) == str(found.before)


def test_each_of_several_readers_computes_it() -> None:
    def both(x: torch.Tensor, w: torch.Tensor, v: torch.Tensor, g: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        normed = F.rms_norm(x, (64,), g)
        return normed @ w.t(), normed @ v.t()

    found = one_pass("rows", both, X, W, torch.randn(32, 64), G)
    assert (len(found.before.kernels), len(found.after.kernels)) == (3, 2)
    found.require_same_results()


def test_a_row_that_the_product_takes_in_two_halves_is_computed_for_both_at_once() -> None:
    def halves(x: torch.Tensor, w: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
        first, second = F.rms_norm(x, (64,), g).chunk(2, -1)
        return first @ w.t() + second @ w.t()

    found = one_pass("rows", halves, X, torch.randn(48, 32), G)
    (kernel,) = found.made
    assert isinstance(kernel, LoopKernel) and [a.size for a in kernel.loop.reduction] == [32]
    found.require_same_results()


def test_a_norm_that_is_returned_stays_a_kernel() -> None:
    def both(x: torch.Tensor, w: torch.Tensor, g: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        normed = F.rms_norm(x, (64,), g)
        return normed, normed @ w.t()

    assert not one_pass("rows", both, X, W, G).steps


def test_a_norm_that_another_kernel_reads_stays_one() -> None:
    def both(x: torch.Tensor, w: torch.Tensor, g: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        normed = F.rms_norm(x, (64,), g)
        return normed @ w.t(), normed.cumsum(-1)

    assert not one_pass("rows", both, X, W, G).steps


def test_of_two_rows_each_program_would_compute_both() -> None:
    found = one_pass("rows", normed_product, torch.randn(2, 64), W, G)
    assert not found.steps and len(found.after.kernels) == 2


def test_a_running_sum_is_not_one_pass() -> None:
    found = one_pass("rows", lambda x, w: x.cumsum(-1) @ w.t(), X, W)
    assert not found.steps and len(found.after.kernels) == 2


def test_what_the_norm_reads_may_be_written_after_its_reader() -> None:
    def written(x: torch.Tensor, w: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
        result = normed_product(x, w, g)
        x.add_(1)
        return result

    one_pass("rows", written, X.clone(), W, G).require_same_results()
