"""Products of the same few rows whose results meet are one kernel."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from burnish.schedule.kernels import ContractKernel
from tests.schedule.one_pass import one_pass

X = torch.randn(8, 512).bfloat16()
GATE, UP = (torch.randn(512, 512).bfloat16() / 16 for _ in range(2))


def gated(x: torch.Tensor, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    return F.silu(x @ gate.t()) * (x @ up.t())


def test_gate_and_up_are_multiplied_together() -> None:
    found = one_pass("siblings", gated, X, GATE, UP)
    (joined,) = found.made
    assert isinstance(joined, ContractKernel) and len(joined.others) == 1
    assert len(found.after.kernels) == len(found.before.kernels) - 1
    found.require_same_results(2e-2)


def test_it_takes_fuel() -> None:
    found = one_pass("siblings", gated, X, GATE, UP)
    assert [step.partition(":")[0] for step in found.steps] == ["siblings"]
    assert str(found.without_fuel) == str(found.before)


def test_what_others_read_is_stored_as_well() -> None:
    def kept(x: torch.Tensor, gate: torch.Tensor, up: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        first = F.silu(x @ gate.t())
        return first, first * (x @ up.t())

    one_pass("siblings", kept, X, GATE, UP).require_same_results(2e-2)


def test_products_of_other_rows_are_not_joined() -> None:
    found = one_pass("siblings", lambda x, y, w: F.silu(x @ w.t()) * (y @ w.t()), X, X + 1, GATE)
    assert not found.steps
