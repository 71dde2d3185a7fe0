"""Checkpointed regions and custom autograd functions within one another: gradients, and gradients of gradients."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

import burnish
from tests.capture.autograd.test_autograd_surface import Cube

pytestmark = pytest.mark.filterwarnings("ignore")

FORCED = {"gate": False, "verify": "off"}
Call = Callable[[torch.Tensor], torch.Tensor]


class Hyperbolic(torch.autograd.Function):
    """Saves what it returns."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        y = x.tanh()
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        (y,) = ctx.saved_tensors
        return gradient * (1 - y * y)


class Checked(torch.autograd.Function):
    """Checkpoints within its own forward, of which autograd sees nothing."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return checkpoint(torch.sin, x, use_reentrant=False)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        (x,) = ctx.saved_tensors
        return gradient * x.cos()


def _policy(ctx: Any, op: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
    kept = op is torch.ops.aten.sin.default
    return CheckpointPolicy.MUST_SAVE if kept else CheckpointPolicy.PREFER_RECOMPUTE


plain = functools.partial(checkpoint, use_reentrant=False)
reentrant = functools.partial(checkpoint, use_reentrant=True)
selective = functools.partial(plain, context_fn=functools.partial(create_selective_checkpoint_contexts, _policy))


def both(x: torch.Tensor) -> torch.Tensor:
    return Hyperbolic.apply(Cube.apply((x * 0.7).sin()) * 2).sin() * x


REGIONS: dict[str, Call] = {
    "plain": lambda x: plain(both, x),
    "selective": lambda x: selective(both, x),
    "a region in a region": lambda x: plain(lambda y: plain(both, y.sin()) * y, x),
    "a selective one in another": lambda x: plain(lambda y: selective(both, y.sin()) * y, x),
    "three of them": lambda x: plain(lambda z: plain(lambda y: plain(both, y) + y, z) * z, x.cos()),
    "beside": lambda x: plain(both, x) * both(x.cos()),
    "among the arguments": lambda x: plain(both, Cube.apply(x)) + Cube.apply(plain(both, x)),
    "a region in a forward": lambda x: Checked.apply(x * 2) * x,
}


def _penalised(call: Call) -> Any:
    x = torch.tensor([0.3, 0.7, -1.2], requires_grad=True)
    y = call(x)
    (gradient,) = torch.autograd.grad(y.square().sum(), x, create_graph=True)
    (y.sum() + 10 * gradient.square().sum()).backward()
    return gradient.detach(), x.grad


def _weighted(call: Call) -> Any:
    x = torch.tensor([0.3, 0.7, -1.2], requires_grad=True)
    weight = torch.tensor([2.0, -0.5, 0.1], requires_grad=True)
    (gradient,) = torch.autograd.grad(call(x), x, weight, create_graph=True)
    return torch.autograd.grad(gradient.square().sum(), (x, weight))


def _third(call: Call) -> Any:
    x = torch.tensor([0.3, 0.7, -1.2], requires_grad=True)
    value = call(x).sum()
    for _ in range(3):
        (gradient,) = torch.autograd.grad(value, x, create_graph=True)
        value = gradient.square().sum()
    return gradient.detach()


def _hessian(call: Call) -> Any:
    x = torch.tensor([0.3, 0.7, -1.2])
    return torch.autograd.functional.hessian(lambda x: call(x).square().sum(), x)


def _outcome(derive: Callable[[Call], Any], call: Call) -> Any:
    try:
        return derive(call)
    except RuntimeError as error:
        return str(error)


@pytest.mark.parametrize("options", [FORCED, {}], ids=["forced", "judged"])
@pytest.mark.parametrize("name", REGIONS)
def test_gradients_of_gradients_of_custom_functions_in_regions(name, options):
    fn = REGIONS[name]
    compiled = burnish.compile(fn, **options)
    for derive in (_penalised, _weighted, _third, _hessian, _penalised):
        ours, eagers = _outcome(derive, compiled), _outcome(derive, fn)
        assert isinstance(eagers, str) == ("selective" in name)  # which one may go through only once
        if isinstance(eagers, str):
            assert ours == eagers
        else:
            torch.testing.assert_close(ours, eagers)
    stats = burnish.stats(compiled)
    assert not stats.fallbacks and not stats.graph_breaks


class Layer(nn.Module):
    def __init__(self, way: Callable[..., Any], inner: Callable[..., Any]) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 8)
        self.way, self.inner = way, inner

    def dropped(self, x: torch.Tensor) -> torch.Tensor:
        return F.dropout(self.a(x).sin(), 0.5, self.training)

    def outer(self, x: torch.Tensor) -> torch.Tensor:
        return F.dropout(self.inner(self.dropped, x), 0.5, self.training) + Cube.apply(self.b(x))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.way(self.outer, x)


@pytest.mark.parametrize("options", [FORCED, {}], ids=["forced", "judged"])
@pytest.mark.parametrize("inner", [plain, reentrant, selective])
@pytest.mark.parametrize("way", [plain, reentrant, selective])
def test_dropout_in_a_region_in_a_region(way, inner, options):
    """What is run again draws what the forward drew, at any depth."""
    torch.manual_seed(0)
    eager = Layer(way, inner)
    ours = copy.deepcopy(eager)
    compiled = burnish.compile(ours, **options)

    def step(model: Any, net: Layer, seed: int) -> list[Any]:
        torch.manual_seed(seed)
        x = torch.randn(4, 8, requires_grad=True)
        y = model(x)
        y.square().sum().backward()
        gradients = [p.grad for p in net.parameters()]
        net.zero_grad()
        return [y.detach(), x.grad, *gradients, torch.rand(())]

    for seed in range(3):
        torch.testing.assert_close(step(compiled, ours, seed), step(eager, eager, seed))
