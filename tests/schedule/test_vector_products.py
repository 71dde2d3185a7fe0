"""Products of one row are loops, which compute a matrix that a map makes, element by element."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from burnish.ir.dtypes import DType
from burnish.schedule.gpu.vector_loops import is_vector_product
from burnish.schedule.kernels import ContractKernel, LoopKernel
from tests.schedule.one_pass import one_pass

X, W = torch.randn(1, 64), torch.randn(48, 64)
INTEGERS, SCALE = torch.randint(-8, 8, (48, 64), dtype=torch.int8), torch.rand(48)
EXPERTS, CHOSEN = torch.randn(4, 48, 64), torch.tensor([2, 1])


def test_a_product_of_one_row_is_a_loop() -> None:
    found = one_pass("vector products", lambda x, w: x @ w.t(), X, W)
    (kernel,) = found.after.kernels
    assert isinstance(kernel, LoopKernel) and is_vector_product(kernel.loop)
    assert isinstance(found.without_fuel.kernels[0], ContractKernel)
    found.require_same_results()


def test_of_two_rows_it_is_none() -> None:
    found = one_pass("vector products", lambda x, w: x @ w.t(), torch.randn(2, 64), W)
    assert isinstance(found.after.kernels[0], ContractKernel)


# --- matrices that a map makes ----------------------------------------------------------------------------------


def scaled(x: torch.Tensor, integers: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    return x @ (integers.float() * scale[:, None]).t()


def test_integers_times_a_scale_are_read_as_integers() -> None:
    found = one_pass("vector products", scaled, X, INTEGERS, SCALE)
    (kernel,) = found.after.kernels
    assert isinstance(kernel, LoopKernel) and DType.i8 in {load.dtype for load in kernel.loop.loads}
    found.require_same_results()


def test_without_fuel_the_matrix_is_made_first() -> None:
    found = one_pass("vector products", scaled, X, INTEGERS, SCALE)
    assert [step.partition(":")[0] for step in found.steps] == ["vector products", "matrices"]
    assert str(found.without_fuel) == str(found.before)


def test_matrices_that_are_looked_up_are_read_in_place() -> None:
    found = one_pass("vector products", lambda x, w, at: torch.einsum("k,enk->en", x[0], w[at]), X, EXPERTS, CHOSEN)
    (kernel,) = found.after.kernels
    assert {"in1", "in2"} <= kernel.reads
    found.require_same_results()


def test_a_matrix_that_is_returned_stays_in_memory() -> None:
    def both(x: torch.Tensor, w: torch.Tensor, scale: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        matrix = w.float() * scale[:, None]
        return matrix, x @ matrix.t()

    found = one_pass("vector products", both, X, INTEGERS, SCALE)
    assert [step.partition(":")[0] for step in found.steps] == ["vector products"]
    found.require_same_results()


# --- products of few rows ---------------------------------------------------------------------------------------


def widened(x: torch.Tensor, integers: torch.Tensor) -> torch.Tensor:
    return F.linear(x, integers.bfloat16())


WIDE = torch.randint(-8, 8, (512, 512), dtype=torch.int8)


def test_a_product_of_few_rows_widens_integers_for_itself() -> None:
    found = one_pass("vector products", widened, torch.randn(8, 512).bfloat16(), WIDE)
    (kernel,) = found.after.kernels
    assert isinstance(kernel, ContractKernel) and kernel.b.dtype is DType.i8
    assert [step.partition(":")[0] for step in found.steps] == ["narrow"]
    found.require_same_results(2e-2)


def test_a_product_of_many_rows_would_widen_them_too_often() -> None:
    found = one_pass("vector products", widened, torch.randn(64, 512).bfloat16(), WIDE)
    assert not found.steps and str(found.after) == str(found.before)
