"""A sealed object whose weights, buffers or arguments become others: eager's result, or the program that still fits."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import burnish
from burnish.errors import SealedError

FORCED = {"gate": False, "verify": "off"}


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 16))
        self.register_buffer("shift", torch.randn(16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.body(x) + self.shift


def _data(net: Any, value: torch.Tensor) -> None:
    net.body[0].weight.data = value


def _smaller(net: Any) -> None:
    net.body[2].weight.data, net.body[2].bias.data = torch.randn(1, 16), torch.randn(1)


def _assigned(net: Any) -> None:
    net.load_state_dict({name: torch.randn_like(value) for name, value in net.state_dict().items()}, assign=True)


def _parameter(net: Any) -> None:
    net.body[0].weight = nn.Parameter(torch.randn(16, 16))


def _dictionary(net: Any) -> None:
    net.body[0]._parameters["weight"] = nn.Parameter(torch.randn(16, 16))


def _module(net: Any) -> None:
    net.body[2] = nn.Linear(16, 4, bias=False)
    net.shift = torch.randn(4)


def _nothing_to_begin_with(net: Any) -> None:
    net.body[0].bias = None


# what is done to a sealed module, and whether a program still fits it
CHANGES: dict[str, tuple[Callable[[Any], Any], bool]] = {
    "in place": (lambda net: net.body[0].weight.data.mul_(2), True),
    "an optimiser's step": (lambda net: torch.optim.SGD(net.parameters(), 0.1).step(), True),
    "other memory": (lambda net: _data(net, torch.randn(16, 16)), True),
    "a slice of other memory": (lambda net: _data(net, torch.randn(40, 16)[7:23]), True),
    "other strides": (lambda net: _data(net, torch.randn(16, 16).t()), False),
    "a smaller weight": (_smaller, False),
    "another type": (lambda net: net.double(), False),
    "load_state_dict(assign=True)": (_assigned, True),
    "another parameter": (_parameter, True),
    "another parameter, past the module": (_dictionary, True),
    "another buffer": (lambda net: setattr(net, "shift", torch.randn(16)), True),
    "another buffer that broadcasts": (lambda net: setattr(net, "shift", torch.randn(1)), False),
    "another module": (_module, False),
    "another module without parameters": (lambda net: setattr(net.body, "1", nn.ReLU()), False),
    "a module more": (lambda net: net.body.append(nn.ReLU()), False),
    "a module less": (lambda net: net.body.pop(1), False),
    "a parameter less": (_nothing_to_begin_with, False),
}


def _sealed(net: nn.Module, **sealing: Any) -> Any:
    compiled = burnish.compile(net, options=FORCED)
    for _ in range(2):
        compiled(torch.randn(8, 16))
    burnish.seal(compiled, **sealing)
    for _ in range(3):  # from the second on they are compared in C
        compiled(torch.randn(8, 16))
    return compiled


@pytest.mark.parametrize("name", CHANGES)
@torch.no_grad()
def test_a_module_that_becomes_another(name):
    change, fits = CHANGES[name]
    net = Net().eval()
    compiled = _sealed(net)
    change(net)
    compiles = burnish.stats(compiled).compiles
    for _ in range(3):
        x = torch.randn(8, 16, dtype=net.body[0].weight.dtype)
        torch.testing.assert_close(compiled(x), net(x), rtol=1e-4, atol=1e-5)
    stats = burnish.stats(compiled)
    in_eager = sum(count for notice, count in stats.notices.items() if notice.startswith("sealed call in eager"))
    assert (in_eager == 0) == fits and stats.compiles == compiles and not stats.fallbacks


@pytest.mark.parametrize("name", [name for name, (_, fits) in CHANGES.items() if not fits])
@torch.no_grad()
def test_strictly_sealed(name):
    net = Net().eval()
    compiled = _sealed(net, strict=True)
    CHANGES[name][0](net)
    with pytest.raises(SealedError):
        compiled(torch.randn(8, 16, dtype=net.body[0].weight.dtype))


@torch.no_grad()
def test_inputs_that_nothing_was_compiled_for():
    compiled = _sealed(Net().eval(), strict=True)
    with pytest.raises(SealedError, match="nothing was compiled"):
        compiled(torch.randn(3, 16))


@torch.no_grad()
def test_back_to_what_it_was_compiled_for():
    net = Net().eval()
    compiled, weight = _sealed(net), net.body[0].weight.data
    _data(net, torch.randn(16, 16).t())
    compiled(torch.randn(8, 16))
    _data(net, weight)
    x = torch.randn(8, 16)
    torch.testing.assert_close(compiled(x), net(x))


def test_a_parameter_that_is_thawed():
    net = Net().eval().requires_grad_(False)
    compiled = _sealed(net)
    net.body[0].weight.requires_grad_(True)
    assert compiled(torch.randn(8, 16)).requires_grad


def test_a_parameter_that_is_frozen():
    eager = Net()
    net = copy.deepcopy(eager)
    compiled = burnish.compile(net, options=FORCED)
    for _ in range(2):
        compiled(torch.randn(8, 16)).sum().backward()
    burnish.seal(compiled)
    compiled(torch.randn(8, 16)).sum().backward()
    for each in (net, eager):
        each.body[2].weight.requires_grad_(False)
        each.zero_grad()
    x = torch.randn(8, 16)
    compiled(x).sum().backward()
    eager(x).sum().backward()
    assert net.body[2].weight.grad is None
    torch.testing.assert_close(net.body[0].weight.grad, eager.body[0].weight.grad)


class Cache:
    def __init__(self, *shape: int, dtype: torch.dtype = torch.float32) -> None:
        self.keys = torch.zeros(shape, dtype=dtype)


@pytest.mark.parametrize(
    "other", [lambda: torch.ones(8), lambda: torch.ones(16, dtype=torch.float64), lambda: torch.ones(32)[::2]]
)
@torch.no_grad()
def test_a_tensor_of_an_object_among_the_arguments(other):
    def fn(x: torch.Tensor, cache: Cache) -> torch.Tensor:
        return x[: cache.keys.shape[0]] * 2 + cache.keys

    compiled, cache = burnish.compile(fn, dynamic=False, options=FORCED), Cache(16)
    for _ in range(2):
        compiled(torch.ones(16), cache)
    burnish.seal(compiled)
    for _ in range(3):
        compiled(torch.ones(16), cache)
    cache.keys = other()
    torch.testing.assert_close(compiled(torch.ones(16), cache), fn(torch.ones(16), cache))


@pytest.mark.parametrize("values", [(2.5, 3.5, 6.5, 7.0), (2, 3, 6, 0, 1, -1), (True, False), ("a", "b")])
def test_plain_arguments(values):
    def fn(x: torch.Tensor, k: Any) -> torch.Tensor:
        return (x * len(k)).sin() if isinstance(k, str) else (x * k).sin() + 1

    compiled, x = burnish.compile(fn, options=FORCED), torch.randn(8, 8)
    for k in values[:2] * 2:
        compiled(x, k)
    burnish.seal(compiled)
    for k in (*values, *values):
        torch.testing.assert_close(compiled(x, k), fn(x, k))


def test_written_arguments_that_overlap():
    def fn(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        return x * y

    compiled = burnish.compile(fn, options=FORCED)
    for _ in range(3):
        compiled(torch.ones(16), torch.ones(16))
    burnish.seal(compiled)
    for first, second in ((0, 16), (0, 8), (0, 0), (0, 16)):
        theirs, ours = torch.arange(32.0), torch.arange(32.0)
        want = fn(theirs[first : first + 16], theirs[second : second + 16])
        got = compiled(ours[first : first + 16], ours[second : second + 16])
        torch.testing.assert_close((got, ours), (want, theirs))
