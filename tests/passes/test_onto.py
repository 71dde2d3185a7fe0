"""A sum with a scatter onto zeros is a scatter onto the other term."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from burnish.fuel import Fuel
from burnish.ir.graph import Full, Graph, Scatter
from burnish.ir.reference import evaluate_graph
from burnish.passes.fold import scatter_onto
from burnish.passes.rewrite import rewrite
from tests.programs import capture

X, AT, V = torch.randn(7, 6), torch.tensor([3, 1, 3]), torch.randn(3, 6)


def scattered(v: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
    return torch.zeros(7, 6, dtype=v.dtype).index_put((at,), v, accumulate=True)


def after(fn: Callable[..., torch.Tensor], *given: torch.Tensor) -> tuple[Graph, Graph, list[str]]:
    """The graph, what the pass makes of it, and the steps it took."""
    (found,) = capture(fn, *given, device="cuda")
    fuel = Fuel()
    made = rewrite(found.captured.graph, scatter_onto, "onto", fuel)
    made.verify()
    return found.captured.graph, made, fuel.spent


@pytest.mark.parametrize(
    "fn", [lambda x, at, v: x.exp() + scattered(v, at), lambda x, at, v: scattered(v, at) + x.exp()], ids=["x+", "+x"]
)
def test_the_other_term_is_scattered_onto(fn: Callable[..., torch.Tensor]) -> None:
    graph, made, _ = after(fn, X, AT, V)
    (scatter,) = (n for n in made.nodes if isinstance(n.op, Scatter))
    assert not isinstance(scatter.inputs[0].op, Full)
    (got,), (want,) = evaluate_graph(made, [X, AT, V]), evaluate_graph(graph, [X, AT, V])
    assert isinstance(got, torch.Tensor)
    torch.testing.assert_close(got, want)


def test_an_input_would_have_to_be_copied_first() -> None:
    _, _, steps = after(lambda x, at, v: x + scattered(v, at), X, AT, V)
    assert not steps


def test_only_zeros_may_be_left_out() -> None:
    _, _, steps = after(lambda x, at, v: x.exp() + (scattered(v, at) * 2), X, AT, V)
    assert not steps


def test_a_half_type_would_round_after_each_addition() -> None:
    _, _, steps = after(lambda x, at, v: x.exp() + scattered(v, at), X.bfloat16(), AT, V.bfloat16())
    assert not steps


def test_a_scatter_that_replaces_is_no_sum() -> None:
    def fn(x: torch.Tensor, at: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return x.exp() + torch.zeros(7, 6).index_put((at,), v)

    _, _, steps = after(fn, X, torch.tensor([3, 1, 0]), V)
    assert not steps
