"""Attention of few queries that a model writes out is one operation, on a GPU."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest
import torch

from burnish.fuel import Fuel
from burnish.ir.graph import Attend, Graph
from burnish.ir.reference import evaluate_graph
from burnish.lower.contractions import FEWEST_QUERIES
from burnish.passes.attention import attend
from burnish.passes.rewrite import rewrite
from tests.programs import capture, copies

Attention = Callable[..., torch.Tensor]


@dataclass
class Found:
    before: Graph
    after: Graph
    inputs: list[torch.Tensor]
    steps: list[str]

    @property
    def ops(self) -> list[Attend]:
        return [n.op for n in self.after.nodes if isinstance(n.op, Attend)]

    def require_same_results(self) -> None:
        (got,) = evaluate_graph(self.after, copies(self.inputs))
        (want,) = evaluate_graph(self.before, copies(self.inputs))
        assert isinstance(got, torch.Tensor)
        torch.testing.assert_close(got, want, rtol=2e-2, atol=2e-2)


def found(fn: Attention, queries: int = 2, width: int = 16, dtype: torch.dtype = torch.bfloat16) -> Found:
    q = torch.randn(2, 4, queries, width).to(dtype)
    k, v = (torch.randn(2, 4, 70, width).to(dtype) for _ in range(2))
    (graph,) = capture(fn, q, k, v, (torch.randn(2, 1, queries, 70) * 2).to(dtype), device="cuda")
    before, fuel = graph.captured.graph, Fuel()
    after = rewrite(before, attend, "attention", fuel)
    after.verify()
    return Found(before, after, graph.inputs, fuel.spent)


def plain(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return (q @ k.transpose(2, 3) * 0.25).float().softmax(-1).to(q.dtype) @ v


def masked(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return (q @ k.transpose(2, 3) * 0.25 + mask).float().softmax(-1).to(q.dtype) @ v


def capped(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    scores = torch.tanh(q @ k.transpose(2, 3) * 0.25 / 5.0) * 5.0
    return (scores + mask).float().softmax(-1).to(q.dtype) @ v


@pytest.mark.parametrize(
    ("fn", "want"),
    [
        (plain, Attend(False, 0.25, False, 0.0)),
        (masked, Attend(False, 0.25, True, 0.0)),
        (capped, Attend(False, 0.25, True, 5.0)),
    ],
    ids=["plain", "masked", "capped"],
)
def test_written_out_attention_is_one_operation(fn: Attention, want: Attend) -> None:
    f = found(fn)
    (op,) = f.ops
    assert op == replace(want, scale=op.scale) and abs(op.scale - want.scale) < 1e-6
    f.require_same_results()


def test_without_fuel_it_stays_written_out() -> None:
    f = found(masked)
    assert [step.partition(":")[0] for step in f.steps] == ["attention"]
    without = rewrite(f.before, attend, "attention", Fuel(0))
    assert not any(isinstance(n.op, Attend) for n in without.nodes)


def test_many_queries_stay_products() -> None:
    assert not found(plain, queries=FEWEST_QUERIES).steps


def test_full_precision_keeps_its_roundings() -> None:
    assert not found(plain, dtype=torch.float32).steps


def test_heads_of_an_odd_width_stay_products() -> None:
    assert not found(plain, width=12).steps


def test_a_softmax_over_the_queries_is_no_attention() -> None:
    def fn(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return (q @ k.transpose(2, 3) * 0.25).float().softmax(-2).to(q.dtype) @ v

    assert not found(fn).steps


def test_weights_that_are_changed_before_they_are_used_are_no_softmax() -> None:
    def fn(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return ((q @ k.transpose(2, 3) * 0.25).float().softmax(-1) + 1).to(q.dtype) @ v

    assert not found(fn).steps
