"""Products of one matrix with several others share a launch."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from burnish.schedule.kernels import ContractGroup, ContractKernel
from tests.schedule.one_pass import OnePass, one_pass

X = torch.randn(128, 96).bfloat16()
A, B, C = (torch.randn(96, 96).bfloat16() / 8 for _ in range(3))


def projections(x: torch.Tensor, *weights: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return tuple(x @ w.t() for w in weights)


def kinds(found: OnePass) -> list[type]:
    return [type(k) for k in found.after.kernels]


def test_products_of_one_matrix_are_one_launch() -> None:
    found = one_pass("group products", projections, X, A, B, C)
    (group,) = found.after.kernels
    assert isinstance(group, ContractGroup) and len(group.parts) == 3
    found.require_same_results(2e-2)


def test_their_widths_may_differ() -> None:
    found = one_pass("group products", projections, X, A, B[:32].contiguous())
    assert kinds(found) == [ContractGroup]
    found.require_same_results(2e-2)


def test_without_fuel_each_is_launched_by_itself() -> None:
    found = one_pass("group products", projections, X, A, B)
    assert [step.partition(":")[0] for step in found.steps] == ["group products"]
    assert str(found.without_fuel) == str(found.before)


def test_a_product_of_another_matrix_is_not_beside_it() -> None:
    found = one_pass("group products", lambda x, y, a, b: (x @ a.t(), y @ b.t()), X, X + 1, A, B)
    assert not found.steps and kinds(found) == [ContractKernel, ContractKernel]


def test_a_matrix_in_another_layout_is_not_beside_it() -> None:
    found = one_pass("group products", lambda x, a, b: (x @ a.t(), x @ b), X, A, B)
    assert not found.steps


def test_a_product_that_needs_another_is_not_beside_it() -> None:
    found = one_pass("group products", lambda x, a: x @ (x @ a.t()), torch.randn(96, 96).bfloat16() / 8, A)
    assert not found.steps and kinds(found) == [ContractKernel, ContractKernel]


def test_what_another_product_reads_is_not_beside_that() -> None:
    """The third goes on with what the second made: beside the first is the second, or the third, and not both."""

    def gated(x: torch.Tensor, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        gate = F.silu(x @ b)
        return torch.relu(x @ a), (x @ c) * gate

    found = one_pass("group products", gated, X, A, B, C)
    assert kinds(found) == [ContractGroup, ContractKernel]
    found.require_same_results(2e-2)
