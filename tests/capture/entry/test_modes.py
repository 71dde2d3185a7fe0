"""Gradient modes, autocast, and results in whatever container the model puts them."""

from __future__ import annotations

import copy
import dataclasses
from typing import NamedTuple

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import burnish
from tests.against_eager import agree, check, fallback_warnings, served_by_us


def model() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.GELU(), nn.Linear(16, 4))


@pytest.mark.parametrize("mode", [torch.no_grad, torch.enable_grad, torch.inference_mode])
def test_modes(mode):
    eager = model()
    compiled = burnish.compile(eager)
    x = torch.randn(5, 8)
    agree(compiled, eager, x, mode=mode)
    with mode():
        ours, theirs = compiled(x), eager(x)
    assert ours.requires_grad == theirs.requires_grad and ours.is_inference() == theirs.is_inference()
    served_by_us(compiled)


def test_a_mode_entered_inside():
    def fn(x, w):
        with torch.no_grad():
            scale = (x * w).sum()
        return x * w * scale, scale

    check(fn, torch.randn(4), torch.randn(4, requires_grad=True))


def test_detached_in_the_middle():
    def fn(x):
        y = x.exp()
        return (y.detach() * y).sum(), y.detach()

    check(fn, torch.randn(4, 3, requires_grad=True))


def test_arguments_that_need_no_gradient_among_some_that_do():
    def fn(a, b, c):
        return a * b + c, (a * c).sum(0)

    for wanted in ((True, False, False), (False, True, True), (False, False, False)):
        check(fn, *(torch.randn(3, 4).requires_grad_(w) for w in wanted))


def test_a_result_no_gradient_flows_to():
    def fn(x):
        return x.sin(), x.argmax(-1), x.detach() * 2, (x > 0).sum()

    check(fn, torch.randn(4, 3, requires_grad=True))


def test_one_result_unused_in_the_backward():
    def fn(x):
        return x.sin().sum(), x.cos().sum()

    compiled = burnish.compile(fn)
    grads = []
    for call in (compiled, fn):
        x = torch.linspace(0, 1, 5, requires_grad=True)
        call(x)[1].backward()
        grads.append(x.grad)
    torch.testing.assert_close(*grads)
    served_by_us(compiled)


def test_gradient_of_a_gradient():
    """torch's own compiled functions have no second derivative."""
    compiled = burnish.compile(lambda x: (x**3).sum())
    x = torch.randn(3, requires_grad=True)
    (grad,) = torch.autograd.grad(compiled(x), x, create_graph=True)
    grad.sum().backward()
    torch.testing.assert_close(x.grad, 6 * x.detach())


# --- autocast ---------------------------------------------------------------------------------------------------


class Mixed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(16, 32), nn.LayerNorm(32), nn.Linear(32, 8)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        hidden = F.gelu(self.norm(self.first(x)))
        scores = torch.matmul(hidden, hidden.transpose(-1, -2)).softmax(-1)
        return self.last(scores @ hidden), scores


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_around_the_call(grad, dtype):
    eager = Mixed()
    compiled = burnish.compile(eager)
    x = torch.randn(2, 6, 16, requires_grad=grad)

    def mode():
        return torch.autocast("cpu", dtype=dtype)

    with torch.set_grad_enabled(grad):
        agree(compiled, eager, x, mode=mode, referee=copy.deepcopy(eager).double())
    served_by_us(compiled)


def test_autocast_inside():
    def fn(x, w):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = x @ w
        return y, y.float().sum()

    check(fn, torch.randn(4, 16), torch.randn(16, 8))


def test_autocast_on_and_off():
    eager = Mixed()
    compiled = burnish.compile(eager)
    x = torch.randn(2, 6, 16)
    with torch.no_grad():
        for enabled in (True, False, True):
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=enabled):
                ours, theirs = compiled(x)[0], eager(x)[0]
            assert ours.dtype == theirs.dtype == (torch.bfloat16 if enabled else torch.float32)
            torch.testing.assert_close(ours, theirs, atol=3e-2, rtol=3e-2)
    served_by_us(compiled, 2)


# --- containers -------------------------------------------------------------------------------------------------


class Pair(NamedTuple):
    left: torch.Tensor
    right: torch.Tensor


@dataclasses.dataclass
class Output:
    logits: torch.Tensor
    hidden: tuple[torch.Tensor, ...]
    loss: torch.Tensor | None = None


def nested(x: torch.Tensor) -> dict[str, object]:
    return {
        "tensor": x + 1,
        "list": [x * 2, (x * 3, {"deep": x.sum()})],
        "pair": Pair(x.sin(), x.cos()),
        "dataclass": Output(x.exp(), (x, x + 2)),
        "number": 3,
        "text": "kept",
        "nothing": None,
        "size": x.shape[0],
    }


@pytest.mark.parametrize("grad", [False, True])
def test_nested_results(grad):
    compiled = burnish.compile(nested)
    x = torch.randn(3, 4, requires_grad=grad)
    ours, theirs = compiled(x), nested(x)
    assert list(ours) == list(theirs)
    assert isinstance(ours["pair"], Pair) and isinstance(ours["dataclass"], Output)
    assert (ours["number"], ours["text"], ours["nothing"], ours["size"]) == (3, "kept", None, 3)
    assert ours["dataclass"].loss is None and ours["dataclass"].hidden[0] is x
    for got, want in (
        (ours["pair"].right, theirs["pair"].right),
        (ours["dataclass"].logits, theirs["dataclass"].logits),
        (ours["list"][1][1]["deep"], theirs["list"][1][1]["deep"]),
    ):
        torch.testing.assert_close(got, want)
        assert got.requires_grad == want.requires_grad
    served_by_us(compiled)


def test_nested_arguments():
    def fn(batch, *rest, scale=1.0, **more):
        return batch["x"] * scale + rest[0][1] + more["extra"].left

    x = torch.randn(3)
    compiled = burnish.compile(fn)
    arguments = ({"x": x}, [x, x + 1]), {"scale": 2.0, "extra": Pair(x, x)}
    torch.testing.assert_close(compiled(*arguments[0], **arguments[1]), fn(*arguments[0], **arguments[1]))
    served_by_us(compiled)


def test_a_model_that_returns_no_tensor():
    assert burnish.compile(lambda x: x.shape[0] + 1)(torch.randn(3)) == 4


def test_nothing_is_said_when_all_is_well():
    compiled = burnish.compile(model())
    _, messages = fallback_warnings(lambda: compiled(torch.randn(5, 8)))
    assert messages == []
