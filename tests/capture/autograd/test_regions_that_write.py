"""Checkpointed regions that write to tensors from outside, or read what is written after them. Eager runs a region
again in the backward: it writes again, and reads what is there by then."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

import burnish

pytestmark = pytest.mark.filterwarnings("ignore")

FORCED = {"gate": False, "verify": "off"}
Part = Callable[[Any, torch.Tensor], Any]


class Net(nn.Module):
    def __init__(self, region: Part, after: Part | None = None, **settings: Any) -> None:
        super().__init__()
        self.a, self.b, self.norm = nn.Linear(4, 4), nn.Linear(4, 2), nn.BatchNorm1d(4)
        self.embedding = nn.Embedding(5, 4, max_norm=0.5)
        self.register_buffer("seen", torch.ones(4))
        self.register_buffer("count", torch.zeros((), dtype=torch.long))
        self.region, self.after, self.settings = region, after, {"use_reentrant": False, **settings}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = checkpoint(functools.partial(self.region, self), x * 1, **self.settings)
        if self.after is not None:
            h = h + self.after(self, h)
        return self.b(h)


@torch.library.custom_op("burnish_tests::count_up", mutates_args={"count"})
def count_up(count: torch.Tensor, x: torch.Tensor) -> None:
    count.add_(1)


def normed(net: Net, h: torch.Tensor) -> torch.Tensor:
    return net.norm(net.a(h)).relu()


def added(net: Net, h: torch.Tensor) -> torch.Tensor:
    net.seen.add_(1)
    return net.a(h) * net.seen.clone()


def set_item(net: Net, h: torch.Tensor) -> torch.Tensor:
    net.seen[0] = h.detach().mean() + net.seen[0]
    return net.a(h).sin()


def by_a_view(net: Net, h: torch.Tensor) -> torch.Tensor:
    net.seen[1:].mul_(2)
    return net.a(h).sin()


def by_its_data(net: Net, h: torch.Tensor) -> torch.Tensor:
    net.seen.data.add_(1)
    return net.a(h).sin()


def out(net: Net, h: torch.Tensor) -> torch.Tensor:
    torch.add(net.seen, 1, out=net.seen)
    return net.a(h).sin()


def by_an_argument(net: Net, h: torch.Tensor) -> torch.Tensor:
    F.dropout(F.relu(net.seen.sub_(0.1), True), 0.0, True, True)
    return net.a(h).sin()


def by_foreach(net: Net, h: torch.Tensor) -> torch.Tensor:
    torch._foreach_add_([net.seen, net.count], 1)
    return net.a(h).sin()


def by_a_custom_operation(net: Net, h: torch.Tensor) -> torch.Tensor:
    count_up(net.count, h.detach())
    return net.a(h).sin()


def an_argument(net: Net, h: torch.Tensor) -> torch.Tensor:
    h.detach().add_(1)
    return net.a(h.sin()).sin()


def shortened(net: Net, h: torch.Tensor) -> torch.Tensor:
    return net.a(h).sin() + net.embedding(torch.tensor([0, 1, 2]))


def within_another(net: Net, h: torch.Tensor) -> torch.Tensor:
    return checkpoint(functools.partial(normed, net), h, use_reentrant=False).sin()


WRITING = [
    normed,
    added,
    set_item,
    by_a_view,
    by_its_data,
    out,
    by_an_argument,
    by_foreach,
    by_a_custom_operation,
    an_argument,
    shortened,
    within_another,
]


def in_place_of_its_own(net: Net, h: torch.Tensor) -> torch.Tensor:
    y = F.relu(net.a(h), inplace=True) * 2
    y[0] = 0
    return y.add_(1).sin()


def read(net: Net, h: torch.Tensor) -> torch.Tensor:
    return (net.a(h) * net.seen).sin()


def read_through_another_value(net: Net, h: torch.Tensor) -> torch.Tensor:
    return (net.a(h) * (net.seen * 2).exp()).sin()


def statistics(net: Net, h: torch.Tensor) -> torch.Tensor:
    return (net.a(h) * (net.norm.running_var * 2).exp()).sin()


def add(net: Net, h: torch.Tensor) -> Any:
    net.seen.add_(1)
    return 0


def add_to_a_view(net: Net, h: torch.Tensor) -> Any:
    net.seen[1:].mul_(h.detach()[0, 1:])
    return net.seen.clone()


def norm(net: Net, h: torch.Tensor) -> torch.Tensor:
    return net.norm(h)


def _step(model: Any, net: nn.Module, x: torch.Tensor) -> Any:
    net.zero_grad()
    x = x.clone().requires_grad_()
    try:
        y = model(x)
        y.square().sum().backward()
    except RuntimeError as error:
        return str(error).split(", which is")[0]
    return [y.detach(), x.grad, *(p.grad for p in net.parameters()), *(b.clone() for b in net.buffers())]


def _check(eager: nn.Module, **options: Any) -> burnish.Stats:
    net = copy.deepcopy(eager)
    compiled = burnish.compile(net, **options)
    for _ in range(3):
        x = torch.randn(3, 4)
        ours, eagers = _step(compiled, net, x), _step(eager, eager, x)
        if isinstance(eagers, str):
            assert ours == eagers
        else:
            torch.testing.assert_close(ours, eagers)
    return burnish.stats(compiled)


@pytest.mark.parametrize("options", [FORCED, {}], ids=["forced", "judged"])
@pytest.mark.parametrize("reentrant", [False, True], ids=["plain", "reentrant"])
@pytest.mark.parametrize("region", WRITING)
def test_a_region_that_writes_is_called_from_python(region, reentrant, options):
    torch.manual_seed(0)
    stats = _check(Net(region, use_reentrant=reentrant), **options)
    assert any("writes to a tensor from outside" in each.reason for each in stats.graph_breaks)
    assert stats.graphs and not stats.fallbacks


@pytest.mark.parametrize("reentrant", [False, True], ids=["plain", "reentrant"])
@pytest.mark.parametrize("region", [in_place_of_its_own, read])
def test_a_region_that_writes_to_its_own_values_is_compiled(region, reentrant):
    torch.manual_seed(0)
    stats = _check(Net(region, use_reentrant=reentrant), **FORCED)
    assert stats.graphs and not stats.graph_breaks and not stats.fallbacks


@pytest.mark.parametrize("region", [normed, added])
def test_a_region_that_is_not_run_again_is_compiled(region):
    torch.manual_seed(0)
    eager = Net(region).requires_grad_(False)
    net = copy.deepcopy(eager)
    compiled = burnish.compile(net, **FORCED)
    x = torch.randn(3, 4)
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), eager(x))
    torch.testing.assert_close(compiled(x), eager(x))  # nothing requires a gradient
    torch.testing.assert_close(dict(net.named_buffers()), dict(eager.named_buffers()))
    assert not burnish.stats(compiled).graph_breaks and not burnish.stats(compiled).fallbacks


@pytest.mark.parametrize("options", [FORCED, {}], ids=["forced", "judged"])
@pytest.mark.parametrize("reentrant", [False, True], ids=["plain", "reentrant"])
@pytest.mark.parametrize(
    ("region", "after"),
    [
        (read, add),
        (read, add_to_a_view),
        (read_through_another_value, add),
        (statistics, norm),
        (lambda net, h: checkpoint(functools.partial(read, net), h, use_reentrant=False) + h, add),
    ],
)
def test_what_is_written_after_a_region_that_reads_it(region, after, reentrant, options):
    torch.manual_seed(0)
    stats = _check(Net(region, after, use_reentrant=reentrant), **options)
    assert any("reads what is written after it" in each.reason for each in stats.fallbacks)


class Before(nn.Module):
    """What is written before the region is read as it is then."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(4, 4)
        self.register_buffer("seen", torch.ones(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen.add_(1)
        return checkpoint(lambda h: (self.a(h) * self.seen).sin(), x * 1, use_reentrant=False)


def test_what_is_written_before_a_region_that_reads_it():
    torch.manual_seed(0)
    stats = _check(Before(), **FORCED)
    assert stats.graphs and not stats.graph_breaks and not stats.fallbacks


class After(nn.Module):
    """A tensor that a region has as an argument, or closes over, changed when the region has run."""

    def __init__(self, call: Callable[[Any, torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.a = nn.Linear(4, 4)
        self.call = call

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = x * 1
        y = self.call(self, h)
        h.detach().add_(1)
        return y


plain = functools.partial(checkpoint, use_reentrant=False)


@pytest.mark.parametrize("options", [FORCED, {}], ids=["forced", "judged"])
@pytest.mark.parametrize(
    "call",
    [
        lambda net, h: plain(lambda h: net.a(h).sin() * h, h),
        lambda net, h: checkpoint(lambda h: net.a(h).sin() * h, h, use_reentrant=True),
        lambda net, h: plain(lambda y: net.a(h).sin() * h * y, h.cos()),
        lambda net, h: plain(lambda y, h: net.a(h).sin() * h * y, h.cos(), h=h),
        lambda net, h: plain(lambda y: net.a(y[0]).sin() * y[0], [h]),
    ],
    ids=["argument", "of a reentrant one", "closed over", "by name", "in a list"],
)
def test_a_value_that_is_changed_after_a_region_that_reads_it(call, options):
    torch.manual_seed(0)
    _check(After(call), **options)


@pytest.mark.parametrize("options", [FORCED, {}], ids=["forced", "judged"])
@pytest.mark.parametrize("reentrant", [False, True], ids=["plain", "reentrant"])
def test_a_region_that_does_not_draw_alike(reentrant, options):
    """Eager draws another mask when it runs the region again, and leaves the generator behind that."""

    def fn(x: torch.Tensor) -> torch.Tensor:
        return checkpoint(
            lambda x: F.dropout(x.sin(), 0.5) * x, x * 1, use_reentrant=reentrant, preserve_rng_state=False
        )

    def run(call: Callable[[torch.Tensor], torch.Tensor]) -> tuple[torch.Tensor, ...]:
        torch.manual_seed(0)
        x = torch.linspace(-1, 1, 16, requires_grad=True)
        y = call(x)
        (gradient,) = torch.autograd.grad(y.sum(), x) if not reentrant else (_gradient(y, x),)
        return y.detach(), gradient, torch.rand(())

    compiled = burnish.compile(fn, **options)
    for _ in range(2):
        torch.testing.assert_close(run(compiled), run(fn))


def _gradient(y: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    y.sum().backward()
    assert x.grad is not None
    return x.grad
