"""Reentrant checkpoints: where no argument requires a gradient, eager records nothing of the region."""

import copy

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

import burnish

pytestmark = pytest.mark.filterwarnings("ignore")


class Stack(nn.Module):
    def __init__(self, **settings):
        super().__init__()
        self.a, self.b, self.h = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 2)
        self.settings = settings

    def forward(self, x):
        return self.h(checkpoint(self.b, checkpoint(self.a, x, **self.settings), **self.settings))


class Last(Stack):
    def forward(self, x):
        return checkpoint(self.h, x.sin(), use_reentrant=True)


class Nested(Stack):
    """Tensors in a list do not count."""

    def forward(self, x):
        return self.h(checkpoint(lambda pair: self.b(pair[0]), [self.a(x), x], use_reentrant=True))


class Inside(Stack):
    """A region in a region, which is run again with arguments that require a gradient as they did."""

    def forward(self, x):
        inner = lambda y: checkpoint(self.b, y.detach(), use_reentrant=True) + y  # noqa: E731
        return self.h(checkpoint(inner, self.a(x), use_reentrant=False))


class InPlace(Stack):
    def forward(self, x):
        y = x * 1
        y.requires_grad_()
        return self.h(checkpoint(self.b, y, use_reentrant=True))


class Parts(Stack):
    def forward(self, x):
        return checkpoint_sequential(nn.Sequential(self.a, self.b, self.h), 2, x, use_reentrant=True)


def _step(model, x):
    model.zero_grad()
    x = x.detach().requires_grad_(x.requires_grad)
    y = model(x)
    raises = False
    try:
        y.square().sum().backward()
    except RuntimeError:
        raises = True
    return y.detach(), raises, [p.grad for p in model.parameters()], x.grad


@pytest.mark.parametrize("requires", [False, True])
@pytest.mark.parametrize(
    "make",
    [
        lambda: Stack(use_reentrant=True),
        lambda: Stack(use_reentrant=None),
        Stack,
        lambda: Stack(use_reentrant=False),
        Last,
        Nested,
        Inside,
        InPlace,
        Parts,
    ],
)
def test_gradients_are_eagers(make, requires):
    torch.manual_seed(0)
    model = make()
    compiled = burnish.compile(copy.deepcopy(model))
    for _ in range(3):
        x = torch.randn(3, 4, requires_grad=requires)
        torch.testing.assert_close(_step(compiled, x), _step(model, x))


def test_both_kinds_of_input_in_turns():
    torch.manual_seed(0)
    model = Stack(use_reentrant=True)
    compiled = burnish.compile(copy.deepcopy(model))
    for requires in (True, False, True, False):
        x = torch.randn(3, 4, requires_grad=requires)
        torch.testing.assert_close(_step(compiled, x), _step(model, x))


@pytest.mark.parametrize("settings", [{"use_reentrant": True}, {"use_reentrant": False}, {}])
def test_what_eager_records_is_compiled_whole(settings):
    compiled = burnish.compile(Stack(**settings))
    _step(compiled, torch.randn(3, 4, requires_grad=True))
    stats = burnish.stats(compiled)
    assert not stats.graph_breaks and not stats.fallbacks and stats.graphs


@pytest.mark.parametrize("no_grad", [False, True])
def test_a_region_without_weights_or_without_gradients_is_compiled_whole(no_grad):
    weight = torch.randn(4, 4, requires_grad=no_grad)
    compiled = burnish.compile(lambda x: checkpoint(lambda x: x @ weight, x, use_reentrant=True) + 1)
    x = torch.randn(3, 4)
    with torch.set_grad_enabled(not no_grad):
        for _ in range(2):
            torch.testing.assert_close(compiled(x), x @ weight.detach() + 1)
    stats = burnish.stats(compiled)
    assert not stats.graph_breaks and not stats.fallbacks and stats.graphs


def test_a_region_that_is_not_recorded_breaks_the_graph():
    compiled = burnish.compile(Stack(use_reentrant=True))
    _step(compiled, torch.randn(3, 4))
    assert any("checkpoint" in each.reason for each in burnish.stats(compiled).graph_breaks)
