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
from burnish.capture.autograd.missing_gradients import Behind, Flow, sources_of
from burnish.capture.autograd.saved_values import Kept
from burnish.capture.autograd.tangents import made_of
from burnish.torch_private.aot import unpack

one_by_one = pytest.mark.skipif(unpack is None, reason="this torch gives saved tensors back together")
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
    graph.output((of_first, of_both, of_lost, zero, None))
    assert sources_of(graph, made_of(graph)) == (frozenset({0}), frozenset({0, 1}), None, None, None)


def of_zero(x: torch.Tensor, sign: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return x.sin(), torch.copysign(x, sign)


@pytest.mark.parametrize("dynamic", [False, True], ids=["fixed", "dynamic"])
def test_a_formulas_zero_is_no_gradient_of_what_is_left_out(dynamic: bool) -> None:
    compiled = burnish.compile(of_zero, dynamic=dynamic, options=FORCED)
    for used in ([0], [1], [0, 1]):
        found = []
        for call in (compiled, of_zero):
            x, sign = torch.linspace(-1, 1, 5).requires_grad_(), torch.linspace(2, -3, 5).requires_grad_()
            results = call(x, sign)
            torch.autograd.backward([results[k].sum() for k in used])
            found.append((x.grad, sign.grad))
        torch.testing.assert_close(*found)


def test_gradients_without_sources_are_taken_back() -> None:
    x = torch.ones(3)
    flow = Flow((0, 2), Behind((frozenset({0}), frozenset({1}), None), None, (0, 1)))
    assert flow.missing([None, None, x]) == [0]
    assert flow.found([x, x, x], frozenset({0}), {}) == (None, x, x)
    assert flow.found([None, x, x], frozenset({0}), {0: x})[0].tolist() == [0.0, 0.0, 0.0]


@pytest.mark.parametrize("register", ["register_hook", "register_post_accumulate_grad_hook"])
def test_a_hook_on_what_no_loss_depends_on_is_given_a_tensor(register: str) -> None:
    model, seen = TwoHeads(), list[Any]()
    getattr(model.second.weight, register)(seen.append)
    burnish.compile(model, options=FORCED)(torch.randn(5, 8))[0].sum().backward()
    assert all(isinstance(x, torch.Tensor) for x in seen)
    assert model.second.bias.grad is None


# -- results that a loss leaves out: eager's backward goes through nothing that is made of them alone ---------------


class HalvedIfGiven(torch.autograd.Function):
    """Its backward is not linear: it makes a number of zeros, too."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 1

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient / gradient.norm()


def sum_and_root(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return (x * w).sum(), x.sqrt() * w


def behind_a_trunk(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
    h = (x * w).relu()
    return h.sin(), h.sqrt(), torch.cat([h, h.log()])


def normalised(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return (x * w).exp(), HalvedIfGiven.apply(x) * w


def gradients(call: Callable[..., Any], used: Sequence[int], **settings: Any) -> list[Any]:
    x, w = torch.linspace(0, 3, 7).requires_grad_(), torch.linspace(-1, 1, 7).requires_grad_()
    results = call(x, w)
    return list(torch.autograd.grad([results[k].sum() for k in used], (x, w), allow_unused=True, **settings))


@pytest.mark.parametrize("options", [FORCED, {}], ids=["forced", "judged"])
@pytest.mark.parametrize("dynamic", [False, True], ids=["fixed", "dynamic"])
@pytest.mark.parametrize("function", [sum_and_root, behind_a_trunk, normalised])
def test_a_derivative_of_what_is_left_out_is_not_taken(
    function: Callable[..., Any], dynamic: bool, options: dict[str, Any]
) -> None:
    """0 times infinity would be NaN."""
    compiled = burnish.compile(function, dynamic=dynamic, options=options)
    for used in ([0], [0, 1], [1], [0], [1], [0, 1]):
        torch.testing.assert_close(gradients(compiled, used), gradients(function, used), equal_nan=True)
    stats = burnish.stats(compiled)
    assert not stats.fallbacks and not any(variant.rollbacks for variant in stats.variants)


def test_a_derivative_of_what_is_left_out_is_not_taken_after_a_warm_start(tmp_path: Path) -> None:
    """Nor one that the process before has not asked for."""
    for used in ([0], [0], [1], [0, 1]):
        torch.compiler.reset()
        compiled = burnish.compile(behind_a_trunk, options=FORCED | {"cache_dir": tmp_path, "warm_start": True})
        torch.testing.assert_close(gradients(compiled, used), gradients(behind_a_trunk, used), equal_nan=True)
        assert not burnish.stats(compiled).fallbacks


def actor_and_critic(x: torch.Tensor, a: torch.Tensor, c: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return (x @ a).tanh().exp(), (x @ c).sigmoid().square()


def one_after_the_other(call: Callable[..., Any], order: Sequence[int], **settings: Any) -> list[Any]:
    torch.manual_seed(0)
    tensors = [torch.randn(4, 4, requires_grad=True) for _ in range(3)]
    results = call(*tensors)
    for k in order:
        results[k].sum().backward(**settings)
    return [x.grad for x in tensors]


@pytest.mark.parametrize("order", [(0, 1), (1, 0)], ids=str)
@pytest.mark.parametrize("dynamic", [False, True], ids=["fixed", "dynamic"])
def test_backwards_that_share_nothing_come_one_after_the_other(dynamic: bool, order: Sequence[int]) -> None:
    compiled = burnish.compile(actor_and_critic, dynamic=dynamic, options=FORCED)
    for _ in range(2):
        got, want = one_after_the_other(compiled, order), one_after_the_other(actor_and_critic, order)
        torch.testing.assert_close(got, want)
    assert not burnish.stats(compiled).fallbacks


def test_backwards_that_share_nothing_come_one_after_the_other_in_a_warm_process(tmp_path: Path) -> None:
    for _ in range(2):
        torch.compiler.reset()
        compiled = burnish.compile(actor_and_critic, options=FORCED | {"cache_dir": tmp_path, "warm_start": True})
        got, want = one_after_the_other(compiled, (1, 0)), one_after_the_other(actor_and_critic, (1, 0))
        torch.testing.assert_close(got, want)


def test_backwards_that_share_nothing_under_hooks_on_saved_tensors() -> None:
    compiled = burnish.compile(actor_and_critic, options=FORCED)
    with torch.autograd.graph.saved_tensors_hooks(lambda x: x.clone(), lambda x: x):
        got, want = one_after_the_other(compiled, (0, 1)), one_after_the_other(actor_and_critic, (0, 1))
    torch.testing.assert_close(got, want)


def shifted(x: torch.Tensor, a: torch.Tensor, c: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return x.repeat([1, 1]), x + a - 2, c.sin()


@pytest.mark.parametrize("order", [(0, 1, 0), (1, 1, 2), (2, 0, 1, 1)], ids=str)
def test_a_backward_that_reads_nothing_comes_as_often_as_one_likes(order: Sequence[int]) -> None:
    compiled = burnish.compile(shifted, options=FORCED)
    for _ in range(2):
        got, want = one_after_the_other(compiled, order), one_after_the_other(shifted, order)
        torch.testing.assert_close(got, want)


@pytest.mark.parametrize("order", [(0, 0), (0, 1, 0)], ids=str)
def test_a_backward_that_came_before_does_not_come_again(order: Sequence[int]) -> None:
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        one_after_the_other(burnish.compile(actor_and_critic, options=FORCED), order)


def test_what_was_saved_is_let_go_after_the_last_backward_that_reads_it() -> None:
    compiled = burnish.compile(actor_and_critic, options=FORCED)
    x, a, c = (torch.randn(4, 4, requires_grad=True) for _ in range(3))
    results = compiled(x, a, c)
    freed = []
    for k in (0, 1):
        results[k].sum().backward()
        own = results[0].grad_fn.burnish_own
        freed.append(not any(isinstance(x, Kept) for x in own._kept))
    assert freed == [False, True]


@one_by_one
@pytest.mark.parametrize("changed", ["a", "c"])
def test_an_argument_that_only_what_is_left_out_needs_may_be_changed(changed: str) -> None:
    def step(call: Callable[..., Any]) -> list[Any]:
        tensors = {
            name: torch.full((4, 4), value, requires_grad=True)
            for name, value in zip("xac", (0.1, 0.2, 0.3), strict=True)
        }
        results = call(*tensors.values())
        with torch.no_grad():
            tensors[changed].add_(1)
        try:
            results[0].sum().backward()
        except RuntimeError:
            return []
        return [x.grad for x in tensors.values()]

    got, want = step(burnish.compile(products, options=FORCED)), step(products)
    torch.testing.assert_close(got, want)


def products(x: torch.Tensor, a: torch.Tensor, c: torch.Tensor) -> tuple[torch.Tensor, ...]:
    h = x.sin()
    return h * a, h * c


@one_by_one
def test_what_was_changed_for_a_later_backward_is_noticed_there() -> None:
    for before in (True, False):
        compiled = burnish.compile(apart, options=FORCED)
        x, a, c = (torch.randn(4, 4, requires_grad=True) for _ in range(3))
        results = compiled(x, a, c)
        if before:
            c.detach().add_(1)
        results[0].sum().backward()
        if not before:
            c.detach().add_(1)
        with pytest.raises(RuntimeError, match="modified (by an )?inplace"):  # torch 2.14 has two ways to say it
            results[1].sum().backward()


def apart(x: torch.Tensor, a: torch.Tensor, c: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return x * a, c.square()


class Deep(nn.Module):
    """Blocks that are alike are compiled once."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(6))
        self.head = nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        for block in self.blocks:
            x = x + block(x)
        return self.head(x), x.relu().sqrt()


def test_shared_blocks_leave_out_what_the_process_before_did_not(tmp_path: Path) -> None:
    eager = Deep()
    for head in (1, 0):
        torch.compiler.reset()
        model = copy.deepcopy(eager)
        compiled = burnish.compile(
            model, options=FORCED | {"cache_dir": tmp_path, "warm_start": True, "regions": "auto"}
        )
        for parameters, call in ((model, compiled), (eager, eager)):
            parameters.zero_grad()
            call(torch.linspace(-1, 1, 8).expand(4, 8))[head].sum().backward()
        torch.testing.assert_close(
            [p.grad for p in model.parameters()], [p.grad for p in eager.parameters()], equal_nan=True
        )


def saves_a_result(w: torch.Tensor) -> tuple[torch.Tensor, ...]:
    h = w.clone()
    return h, h @ h.transpose(0, 1), h.sin()


@pytest.mark.parametrize("options", [FORCED, {}], ids=["forced", "judged"])
@pytest.mark.parametrize("used", [0, 1, 2])
def test_a_result_that_is_saved_and_left_out(used: int, options: dict[str, Any]) -> None:
    compiled = burnish.compile(saves_a_result, options=options)
    for _ in range(2):
        grads = []
        for call in (compiled, saves_a_result):
            w = torch.linspace(-1, 1, 12).reshape(3, 4).requires_grad_()
            grads += torch.autograd.grad(call(w)[used].sum(), w)
        torch.testing.assert_close(*grads)


def test_a_constant_in_the_graph_of_a_backward_that_the_process_before_did_not_ask_for(tmp_path: Path) -> None:
    model = nn.Linear(4, 4)

    def function(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return nn.functional.normalize(model(x), dim=-1), model(x).relu() * torch.tensor([1.0, 2.0, 3.0, 4.0])

    x = torch.linspace(-1, 1, 12).reshape(3, 4)
    for used in (0, 1, 0):
        torch.compiler.reset()
        compiled = burnish.compile(function, options=FORCED | {"cache_dir": tmp_path, "warm_start": True})
        got, want = (torch.autograd.grad(call(x)[used].sum(), model.weight)[0] for call in (compiled, function))
        torch.testing.assert_close(got, want)


def split_in_two(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
    a, b = (x * w).reshape(-1, 7).split(x.shape[0] // 2, 0)
    return a.sqrt(), b * 2


@pytest.mark.parametrize("used", [(0,), (1,)], ids=str)
def test_zeros_of_sizes_that_vary(used: Sequence[int]) -> None:
    """A `split` of which a part is left out is put together again."""
    compiled = burnish.compile(split_in_two, dynamic=True, options=FORCED)
    for rows in (4, 6, 10):
        found = []
        for call in (compiled, split_in_two):
            x, w = torch.zeros(rows, 7, requires_grad=True), torch.ones(7, requires_grad=True)
            results = call(x, w)
            found.append(torch.autograd.grad([results[k].sum() for k in used], (x, w), allow_unused=True))
        torch.testing.assert_close(*found, equal_nan=True)
    assert not burnish.stats(compiled).fallbacks


TRUNKS = {
    "a sum": lambda x, a, c: ((x + a).exp(), (x + a).sin()),
    "a transpose": lambda x, a, c: (x.t() * a, x.t() * c),
    "parts": lambda x, a, c: (x.chunk(2)[0].exp() * a[:2], x.chunk(2)[1].sin() * c[:2]),
    "rows again": lambda x, a, c: ((rows := torch.cat([x, a[: x.shape[0] // 2]]) + c[0]), rows.exp()),
}


@pytest.mark.parametrize("dynamic", [False, True], ids=["fixed", "dynamic"])
@pytest.mark.parametrize("name", TRUNKS)
def test_backwards_that_share_what_saves_nothing_come_one_after_the_other(name: str, dynamic: bool) -> None:
    compiled = burnish.compile(TRUNKS[name], dynamic=dynamic, options=FORCED)
    for order in ((0, 1), (1, 0)):
        got, want = one_after_the_other(compiled, order), one_after_the_other(TRUNKS[name], order)
        torch.testing.assert_close(got, want)


def test_a_backward_is_recorded_after_another_that_shares_nothing() -> None:
    def second(call: Callable[..., Any]) -> list[Any]:
        torch.manual_seed(0)
        x, a, c = (torch.randn(4, 4, requires_grad=True) for _ in range(3))
        first, other = call(x, a, c)
        first.sum().backward()
        gradients = torch.autograd.grad(other.sum(), (x, c), create_graph=True)
        torch.autograd.backward([g.square().sum() for g in gradients])
        return [t.grad for t in (x, a, c)]

    torch.testing.assert_close(second(burnish.compile(actor_and_critic, options=FORCED)), second(actor_and_critic))
