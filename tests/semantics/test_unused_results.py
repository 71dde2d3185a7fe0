"""What no loss depends on has no gradient, as in eager: zeros would be a step to an optimiser."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import fx, nn

import burnish
from burnish.capture.flow import Flow, sources_of

FORCED = {"gate": False, "verify": "off"}


class TwoHeads(nn.Module):
    def __init__(self, breaks: bool = False) -> None:
        super().__init__()
        self.trunk, self.first, self.second = nn.Linear(8, 16), nn.Linear(16, 4), nn.Linear(16, 3)
        self.breaks = breaks

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        h = torch.tanh(self.trunk(x))
        first, second = self.first(h), self.second(h)
        if self.breaks:
            torch._dynamo.graph_break()
        return first.relu(), second * 2


def steps(model: nn.Module, call: Callable[..., Any], losses: Sequence[int], options: dict[str, Any]) -> list[Any]:
    """Which parameters have a gradient in each step, and what they all are in the end."""
    found: list[Any] = []
    optimiser = torch.optim.AdamW(model.parameters(), **options)
    for step, head in enumerate(losses):
        torch.manual_seed(step)
        optimiser.zero_grad()
        call(torch.randn(5, 8))[head].square().sum().backward()
        optimiser.step()
        found.append([p.grad is None for p in model.parameters()])
    return [*found, *(p.detach() for p in model.parameters())]


@pytest.mark.parametrize("breaks", [False, True], ids=["one graph", "two graphs"])
@pytest.mark.parametrize("losses", [(0, 0, 0), (1, 0, 1), (0, 1, 0)], ids=str)
def test_a_head_that_no_loss_depends_on_stays(breaks: bool, losses: Sequence[int]) -> None:
    eager = TwoHeads(breaks)
    model = copy.deepcopy(eager)
    compiled = burnish.compile(model, options=FORCED)
    decay = {"lr": 0.1, "weight_decay": 0.5}
    want, got = steps(eager, eager, losses, decay), steps(model, compiled, losses, decay)
    assert got[: len(losses)] == want[: len(losses)]
    torch.testing.assert_close(got[len(losses) :], want[len(losses) :])
    assert burnish.stats(compiled).compiles == 1 + breaks and not burnish.stats(compiled).fallbacks


def test_a_head_that_no_loss_depends_on_stays_after_a_warm_start(tmp_path: Path) -> None:
    eager = TwoHeads()
    options = FORCED | {"cache_dir": tmp_path, "warm_start": True}
    for is_warm in (False, True):
        torch.compiler.reset()
        model = copy.deepcopy(eager)
        compiled = burnish.compile(model, options=options)
        got = steps(model, compiled, (0, 0), {"weight_decay": 0.5})
        assert got[1] == [False] * 4 + [True] * 2
        assert (burnish.stats(compiled).seconds.get("aot", 0.0) == 0.0) == is_warm


def test_a_gradient_that_is_zero_is_no_missing_one() -> None:
    """The derivative of `floor` is zero: a gradient, unlike that of what is left out."""

    def function(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x.floor() + y, x * y

    compiled = burnish.compile(function, options=FORCED)
    for used in (0, 1):
        x, y = (torch.linspace(-2, 2, 8, requires_grad=True) for _ in range(2))
        compiled(x, y)[used].sum().backward()
        got, want = (x.grad, y.grad), torch.autograd.grad(function(x, y)[used].sum(), (x, y))
        assert all(gradient is not None for gradient in got)
        torch.testing.assert_close(got, want)


def test_an_argument_that_is_changed_and_not_used_again() -> None:
    """Behind a graph break: eager never asks for the gradient of what `sub_` has made of a saved tensor."""

    def function(x: torch.Tensor) -> torch.Tensor:
        y = x.exp()
        norm = y.norm(2, -1)
        torch._dynamo.graph_break()
        norm.sub_(norm)
        return y.sin()

    compiled = burnish.compile(function, options=FORCED)
    x = torch.linspace(-1, 1, 4, requires_grad=True)
    (got,) = torch.autograd.grad(compiled(x).sum(), x)
    torch.testing.assert_close(got, (x.exp().cos() * x.exp()).detach())


def test_second_derivatives_of_what_no_result_depends_on() -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        a, b = x.sum(1), y.square()
        torch._dynamo.graph_break()
        return a * 0.1, b.sin()

    def second(call: Callable[..., Any]) -> list[Any]:
        x, y = torch.ones(1, 7, requires_grad=True), torch.linspace(0, 1, 7, requires_grad=True)
        gradients = torch.autograd.grad([r.sum() for r in call(x, y)], (x, y), create_graph=True)
        torch.autograd.backward([g.sum() for g in gradients if g.requires_grad])
        return [x.grad is None, y.grad]

    got, want = second(burnish.compile(function, options=FORCED)), second(function)
    assert got[0] == want[0]
    torch.testing.assert_close(got[1], want[1])


def test_a_formula_that_adds_numbers_of_the_forward_is_no_sum_of_gradients() -> None:
    """The gradient of `logcumsumexp` is computed in logarithms, which add to what a loss may leave out."""

    def function(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return (x * 2).logcumsumexp(0), x.detach() * y

    compiled = burnish.compile(function, options=FORCED)
    for used in (0, 1):
        x, y = (torch.linspace(-2, 2, 8, requires_grad=True) for _ in range(2))
        compiled(x, y)[used].sum().backward()
        want = torch.autograd.grad(function(x, y)[used].sum(), (x, y), allow_unused=True)
        assert (want[0] is None, want[1] is None) == (used == 1, used == 0)
        torch.testing.assert_close([x.grad, y.grad], list(want))


def test_what_gradients_are_made_of() -> None:
    """A sum of what depends on tangents and what does not has lost where its zero came from."""
    aten = torch.ops.aten
    graph = fx.Graph()
    x, first, second = (graph.placeholder(name) for name in ("primals_1", "tangents_1", "tangents_2"))
    of_first = graph.call_function(aten.mul.Tensor, (first, x))
    of_both = graph.call_function(aten.add.Tensor, (of_first, second))
    zero = graph.call_function(aten.full.default, ([4], 0))
    of_lost = graph.call_function(aten.add.Tensor, (of_first, zero))
    graph.output((x, of_first, of_both, of_lost, zero, None))
    assert sources_of(graph, 1, 1) == (frozenset({0}), frozenset({0, 1}), None, None, None)


def test_gradients_without_sources_are_taken_back() -> None:
    flow = Flow((0, 2), (frozenset({0}), frozenset({2}), None))
    assert flow.missing([None, None, 1.0]) == [0]
    assert flow.found([1.0, 2.0, 3.0], [0], frozenset()) == (None, 2.0, 3.0)
    assert flow.found([1.0, 2.0, 3.0], [0], frozenset({0})) == flow.found([1.0, 2.0, 3.0], [0], None) == (1.0, 2.0, 3.0)


@pytest.mark.parametrize("register", ["register_hook", "register_post_accumulate_grad_hook"])
def test_a_hook_on_what_no_loss_depends_on_is_given_a_tensor(register: str) -> None:
    model, seen = TwoHeads(), list[Any]()
    getattr(model.second.weight, register)(seen.append)
    burnish.compile(model, options=FORCED)(torch.randn(5, 8))[0].sum().backward()
    assert all(isinstance(x, torch.Tensor) for x in seen)
    assert model.second.bias.grad is None
