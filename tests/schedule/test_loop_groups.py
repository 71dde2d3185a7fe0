"""Kernels that do not need one another share a launch."""

from __future__ import annotations

import torch

from burnish.schedule.kernels import LoopGroup
from tests.schedule.one_pass import one_pass

X = torch.randn(1, 64)
QKV = [torch.randn(48, 64) for _ in range(3)]


def projections(x: torch.Tensor, *weights: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return tuple(x @ w.t() for w in weights)


def test_vector_products_of_one_vector_are_one_launch() -> None:
    found = one_pass("group loops", projections, X, *QKV)
    (group,) = found.after.kernels
    assert isinstance(group, LoopGroup) and len(group.parts) == 3
    found.require_same_results()


def test_without_fuel_each_is_launched_by_itself() -> None:
    found = one_pass("group loops", projections, X, *QKV)
    assert len(found.steps) == 1 and len(found.without_fuel.kernels) == 3


def test_what_needs_another_is_not_beside_it() -> None:
    found = one_pass("group loops", lambda x, w: (x @ w.t()) @ w, X, torch.randn(64, 64))
    assert not any(isinstance(k, LoopGroup) for k in found.after.kernels)
