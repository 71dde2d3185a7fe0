"""Function modes: a user's mode sees what eager calls and no more; a default device only places new tensors."""

from __future__ import annotations

from typing import ClassVar

import pytest
import torch
from torch import nn
from torch.overrides import TorchFunctionMode

import burnish
from tests.against_eager import served_by_us


class Seen(TorchFunctionMode):
    """The names of the functions that are called, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_function__(self, function, types, args=(), kwargs=None):
        self.names.append(getattr(function, "__name__", str(function)))
        return function(*args, **(kwargs or {}))


class TwiceTheRelu(TorchFunctionMode):
    def __torch_function__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        return 2 * result if getattr(function, "__name__", "") == "relu" else result


def placed(x):
    return torch.relu(x) + 1, torch.ones(3)


def seen(call, *args):
    with Seen() as mode:
        call(*args)
    return mode.names


@pytest.mark.parametrize("calls_before", [0, 1, 12])
def test_a_mode_sees_what_eager_calls(calls_before):
    eager = nn.Sequential(nn.Linear(8, 8), nn.ReLU())
    compiled = burnish.compile(eager)
    x = torch.randn(4, 8)
    for _ in range(calls_before):
        compiled(x)
    for _ in range(20):
        assert seen(compiled, x) == seen(eager, x)


def test_a_mode_around_a_sealed_call_takes_effect():
    compiled = burnish.compile(placed)
    x = torch.randn(4, 8)
    for _ in range(3):
        compiled(x)
    burnish.seal(compiled)
    for _ in range(3):  # the native comparison knows the call
        torch.testing.assert_close(compiled(x), placed(x), rtol=0, atol=0)
    with TwiceTheRelu():
        assert torch.equal(compiled(x)[0], placed(x)[0])
    assert torch.equal(compiled(x)[0], placed(x)[0])


def test_a_mode_around_the_first_call_takes_effect_once():
    compiled = burnish.compile(placed)
    x = torch.randn(4, 8)
    for _ in range(3):
        with TwiceTheRelu():
            assert torch.equal(compiled(x)[0], placed(x)[0])
        assert torch.equal(compiled(x)[0], placed(x)[0])
    served_by_us(compiled)


def test_a_mode_entered_inside_before_a_graph_break():
    def broken(x):
        with TwiceTheRelu():
            y = torch.relu(x)
            torch._dynamo.graph_break()
            return torch.relu(y)

    compiled = burnish.compile(broken)
    x = torch.randn(4, 8)
    for _ in range(4):
        assert torch.equal(compiled(x), broken(x))
    assert not burnish.stats(compiled).fallbacks


def test_a_mode_around_the_backward_alone():
    eager = nn.Sequential(nn.Linear(8, 8), nn.ReLU())
    compiled = burnish.compile(eager)
    x = torch.randn(4, 8)
    for _ in range(3):
        eager.zero_grad()
        loss = compiled(x).sum()
        with Seen() as mode:
            loss.backward()
        assert mode.names == ["backward"]
        ours = eager[0].weight.grad.clone()
        eager.zero_grad()
        eager(x).sum().backward()
        torch.testing.assert_close(ours, eager[0].weight.grad)
    served_by_us(compiled)


@pytest.mark.parametrize("sealed", [False, True])
def test_a_default_device_set_between_calls(sealed):
    compiled = burnish.compile(placed)
    x = torch.randn(4, 8)
    for _ in range(3):
        compiled(x)
    if sealed:
        burnish.seal(compiled)
        compiled(x)
    for device in ("meta", None, "cpu", "meta", "meta", None):
        torch.set_default_device(device)
        try:
            ours, theirs = compiled(x), placed(x)
        finally:
            torch.set_default_device(None)
        assert ours[1].device == theirs[1].device
        assert torch.equal(ours[0], theirs[0])


def test_a_backward_under_another_default_device():
    eager = nn.Sequential(nn.Linear(8, 8), nn.ReLU())
    compiled = burnish.compile(eager)
    x = torch.randn(4, 8)
    for device in ("cpu", "meta", "meta"):
        eager.zero_grad()
        loss = compiled(x).sum()
        with torch.device(device):
            loss.backward()
        ours = eager[0].weight.grad.clone()
        eager.zero_grad()
        eager(x).sum().backward()
        torch.testing.assert_close(ours, eager[0].weight.grad)
    served_by_us(compiled)


def test_a_default_device_is_compiled_for():
    compiled = burnish.compile(placed)
    x = torch.randn(4, 8)
    with torch.device("cpu"):
        for _ in range(3):
            torch.testing.assert_close(compiled(x), placed(x))
        served_by_us(compiled)
        burnish.seal(compiled)
        for _ in range(3):
            torch.testing.assert_close(compiled(x), placed(x))
    assert not burnish.stats(compiled).notices


class Watching(torch.Tensor):
    """Sees what is asked of it."""

    asked: ClassVar[list[str]] = []

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        cls.asked.append(getattr(function, "__name__", str(function)))
        return super().__torch_function__(function, types, args, kwargs or {})


def test_a_tensor_class_is_asked_no_more_than_in_eager():
    def once(x):
        return x + 1

    compiled = burnish.compile(once)
    x = torch.randn(4).as_subclass(Watching)
    Watching.asked.clear()
    once(x)
    theirs = Watching.asked[:]
    assert theirs
    for _ in range(40):
        compiles = burnish.stats(compiled).compiles, len(burnish.stats(compiled).graph_breaks)
        Watching.asked.clear()
        assert type(compiled(x)) is Watching
        if compiles == (
            burnish.stats(compiled).compiles,
            len(burnish.stats(compiled).graph_breaks),
        ):  # Dynamo asks more
            assert set(Watching.asked) <= set(theirs)
