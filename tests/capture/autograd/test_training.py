"""Gradients, optimiser steps and weights that change between calls, judged against eager with a float64 referee."""

from __future__ import annotations

import copy
import types
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch._dynamo import convert_frame
from torch.nn import functional as F

import burnish
from tests.against_eager import agree, assert_same_tensors, check, check_training, served_by_us, trained


class Attention(nn.Module):
    def __init__(self, heads: int = 2, width: int = 16) -> None:
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        return self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))


class Embedded(nn.Module):
    def __init__(self, padding: int | None = None) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(20, 8, padding_idx=padding), nn.Linear(8, 20)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(self.head(self.table(ids)).flatten(0, 1), ids.flatten().roll(1))


class Residual(nn.Module):
    def __init__(self, norm: Callable[[], nn.Module]) -> None:
        super().__init__()
        self.up, self.norm, self.down = nn.Conv2d(3, 8, 3, padding=1), norm(), nn.Conv2d(8, 3, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(F.relu(self.norm(self.up(x))))


NETS: dict[str, tuple[Callable[[], nn.Module], Callable[[], torch.Tensor]]] = {
    "mlp": (
        lambda: nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 32), nn.SiLU(), nn.Linear(32, 4)),
        lambda: torch.randn(6, 8),
    ),
    "batch norm": (lambda: Residual(lambda: nn.BatchNorm2d(8)), lambda: torch.randn(4, 3, 6, 6)),
    "batch norm 1d": (
        lambda: nn.Sequential(nn.Linear(8, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, 3)),
        lambda: torch.randn(7, 8),
    ),
    "group norm": (lambda: Residual(lambda: nn.GroupNorm(2, 8)), lambda: torch.randn(2, 3, 6, 6)),
    "instance norm": (lambda: Residual(lambda: nn.InstanceNorm2d(8, affine=True)), lambda: torch.randn(2, 3, 6, 6)),
    "layer norm": (
        lambda: nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.Sigmoid(), nn.Linear(16, 4)),
        lambda: torch.randn(2, 5, 8),
    ),
    "rms norm": (lambda: nn.Sequential(nn.Linear(8, 16), nn.RMSNorm(16), nn.Linear(16, 4)), lambda: torch.randn(5, 8)),
    "depthwise": (
        lambda: nn.Sequential(nn.Conv2d(4, 4, 3, groups=4, stride=2), nn.Hardswish(), nn.Conv2d(4, 2, 1)),
        lambda: torch.randn(2, 4, 9, 9),
    ),
    "conv 1d": (lambda: nn.Sequential(nn.Conv1d(3, 6, 3, dilation=2), nn.ELU()), lambda: torch.randn(2, 3, 12)),
    "transposed conv": (
        lambda: nn.Sequential(nn.ConvTranspose2d(3, 5, 2, 2), nn.PReLU()),
        lambda: torch.randn(2, 3, 4, 4),
    ),
    "pools": (
        lambda: nn.Sequential(nn.MaxPool2d(3, 2, 1), nn.AvgPool2d(2), nn.Conv2d(3, 2, 1), nn.AdaptiveAvgPool2d(1)),
        lambda: torch.randn(2, 3, 12, 12),
    ),
    "upsampled": (
        lambda: nn.Sequential(nn.Conv2d(2, 3, 1), nn.Upsample(scale_factor=2), nn.Conv2d(3, 1, 3)),
        lambda: torch.randn(1, 2, 5, 5),
    ),
    "attention": (lambda: Attention(), lambda: torch.randn(2, 5, 16)),
    "multi-head": (lambda: nn.MultiheadAttention(16, 4, batch_first=True), lambda: torch.randn(2, 5, 16)),
    "encoder layer": (
        lambda: nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True),
        lambda: torch.randn(2, 5, 16),
    ),
    "embedding": (lambda: Embedded(), lambda: torch.randint(0, 20, (3, 7))),
    "padded embedding": (lambda: Embedded(3), lambda: torch.randint(0, 20, (3, 7))),
    "lstm": (lambda: nn.LSTM(4, 6, batch_first=True), lambda: torch.randn(2, 5, 4)),
    "gru cell": (lambda: nn.GRUCell(4, 6), lambda: torch.randn(3, 4)),
}


@pytest.mark.parametrize("name", NETS)
def test_gradients(name):
    make, data = NETS[name]
    model, x = make(), data()
    args = (x, x, x) if name == "multi-head" else (x,)
    # torch keeps recurrent networks out of graphs: a graph break, and nothing of theirs to compile
    check_training(model, *args, compiles=0 if name == "lstm" else 1, steps=2)


def test_gradients_of_inputs():
    model = nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.GELU(), nn.Linear(16, 4))
    compiled = burnish.compile(model)
    agree(compiled, model, torch.randn(3, 8, requires_grad=True), referee=copy.deepcopy(model).double())
    served_by_us(compiled)


LOSSES: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "cross entropy": lambda x, y: F.cross_entropy(x, y.argmax(-1), label_smoothing=0.1),
    "cross entropy ignoring": lambda x, y: F.cross_entropy(x, torch.where(y[:, 0] > 0, y.argmax(-1), -100)),
    "nll": lambda x, y: F.nll_loss(x.log_softmax(-1), y.argmax(-1)),
    "mse": lambda x, y: F.mse_loss(x, y),
    "smooth l1": lambda x, y: F.smooth_l1_loss(x, y),
    "huber": lambda x, y: F.huber_loss(x, y, delta=0.5),
    "bce": lambda x, y: F.binary_cross_entropy_with_logits(x, y.sigmoid()),
    "kl": lambda x, y: F.kl_div(x.log_softmax(-1), y.softmax(-1), reduction="batchmean"),
    "cosine": lambda x, y: (1 - F.cosine_similarity(x, y)).mean(),
    "triplet": lambda x, y: F.triplet_margin_loss(x, y, y.flip(0)),
    "norm": lambda x, y: torch.linalg.vector_norm(x - y) + (x - y).abs().amax(),
}


@pytest.mark.parametrize("name", LOSSES)
def test_losses(name):
    check(LOSSES[name], torch.randn(6, 5, requires_grad=True), torch.randn(6, 5))


OPTIMISERS: dict[str, Callable[[list[nn.Parameter]], torch.optim.Optimizer]] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "adamw": lambda p: torch.optim.AdamW(p, lr=1e-2),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=1e-2),
}


@pytest.mark.parametrize("name", OPTIMISERS)
def test_optimiser_steps(name):
    eager = nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.GELU(), nn.Linear(16, 4))
    compiled = burnish.compile(copy.deepcopy(eager))
    nets = compiled, eager, copy.deepcopy(eager).double()
    optimisers = [OPTIMISERS[name](list(net.parameters())) for net in nets]
    for _ in range(5):
        x, y = torch.randn(6, 8), torch.randn(6, 4)
        for net, optimiser in zip(nets, optimisers, strict=True):
            kind = next(net.parameters()).dtype
            optimiser.zero_grad()
            F.mse_loss(net(x.to(kind)), y.to(kind)).backward()
            optimiser.step()
    weights = [[p.detach() for p in net.parameters()] for net in nets]
    assert_same_tensors(*weights)
    served_by_us(compiled)


def test_gradients_accumulate():
    eager = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    compiled = burnish.compile(copy.deepcopy(eager))
    nets = compiled, eager, copy.deepcopy(eager).double()
    for _ in range(3):
        x = torch.randn(6, 8)
        for net in nets:
            net(x.to(next(net.parameters()).dtype)).square().sum().backward()
    assert_same_tensors(*([p.grad for p in net.parameters()] for net in nets))
    served_by_us(compiled)


def test_backward_twice_over_one_forward():
    compiled = burnish.compile(lambda x: (x * x).sin())
    x = torch.randn(5, requires_grad=True)
    y = compiled(x)
    y.sum().backward(retain_graph=True)
    first = x.grad.clone()
    y.sum().backward()
    torch.testing.assert_close(x.grad, 2 * first)


def test_two_forwards_before_their_backwards():
    """Saved tensors are each call's own."""
    compiled = burnish.compile(lambda x: (x.exp() * x).sin())
    one, other = torch.randn(5, requires_grad=True), torch.randn(5, requires_grad=True)
    first, second = compiled(one), compiled(other)
    first.sum().backward()
    second.sum().backward()
    for x in (one, other):
        y = x.detach().requires_grad_()
        (y.exp() * y).sin().sum().backward()
        torch.testing.assert_close(x.grad, y.grad)


# --- weights that change between calls --------------------------------------------------------------------------

EDITS: dict[str, Callable[[nn.Linear], object]] = {
    "in place": lambda m: m.weight.detach().mul_(2),
    "data in place": lambda m: m.weight.data.add_(1),
    "data replaced": lambda m: setattr(m.weight, "data", torch.ones_like(m.weight)),
    "one element": lambda m: m.weight.data.__setitem__((0, 0), 5.0),
    "copy": lambda m: m.weight.data.copy_(torch.full_like(m.weight, 0.25)),
    "a new parameter": lambda m: setattr(m, "weight", nn.Parameter(torch.ones_like(m.weight))),
    "a state dict": lambda m: m.load_state_dict({"weight": torch.eye(4), "bias": torch.zeros(4)}),
    "initialised": lambda m: nn.init.constant_(m.weight, 0.5),
}


@pytest.mark.parametrize("name", EDITS)
@pytest.mark.parametrize("grad", [False, True])
def test_an_edited_weight_is_seen(name, grad):
    compiled = burnish.compile(nn.Linear(4, 4))
    x = torch.randn(3, 4)
    with torch.set_grad_enabled(grad):
        compiled(x)
        with torch.no_grad():
            EDITS[name](compiled)
        torch.testing.assert_close(compiled(x), F.linear(x, compiled.weight, compiled.bias))
        if grad:
            compiled(x).sum().backward()
            torch.testing.assert_close(compiled.bias.grad, torch.full((4,), 3.0))
    assert burnish.stats(compiled).fallbacks == ()


def test_frozen_and_thawed():
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
    compiled = burnish.compile(model)
    x = torch.randn(3, 4)
    for frozen in (True, False):
        model[0].requires_grad_(not frozen)
        eager = copy.deepcopy(model)
        got, want = (trained(net, lambda net: net(x).square().sum()) for net in (compiled, eager))
        assert len(got) == len(want) == (3 if frozen else 5)
        torch.testing.assert_close(got, want)
    served_by_us(compiled, 2)


def test_a_hook_on_a_gradient():
    seen = []
    model = nn.Linear(4, 2)
    model.weight.register_hook(lambda grad: seen.append(grad.clone()) or grad * 0)
    compiled = burnish.compile(model)
    compiled(torch.randn(3, 4)).sum().backward()
    assert len(seen) == 1 and not model.weight.grad.any() and seen[0].any()


def test_checkpointed_blocks_inside():
    class Checkpointed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(8, 8), nn.GELU()) for _ in range(2))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for block in self.blocks:
                x = torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False)
            return x

    check_training(Checkpointed(), torch.randn(3, 8))


def test_a_function_of_ones_own():
    class Clipped(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x.exp()

        @staticmethod
        def backward(ctx, grad):
            (x,) = ctx.saved_tensors
            return grad * x.exp().clamp(-1, 1)

    check(lambda x: Clipped.apply(x) * 2, torch.randn(5, requires_grad=True))


def whole_step(net: nn.Module) -> Callable[[torch.Tensor], torch.Tensor]:
    optimizer = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9)

    def step(x: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = net(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


@pytest.mark.parametrize(
    "compile", [burnish.compile, partial(torch.compile, backend="burnish")], ids=["ours", "torch's"]
)
def test_a_step_that_calls_backward_itself(compile: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """The compiler at work on the backward, within the function that is compiled, is not traced: it would wait for
    locks that it holds, for good."""
    own, traced, ordinary = str(Path(burnish.__file__).parent), [], convert_frame._compile

    def watched(code: types.CodeType, *args: Any, **kwargs: Any) -> Any:
        if code.co_filename.startswith(own):
            traced.append(code.co_name)
            raise RuntimeError("not to be traced")
        return ordinary(code, *args, **kwargs)

    monkeypatch.setattr(convert_frame, "_compile", watched)
    x, net = torch.linspace(-1, 1, 24).reshape(4, 6), nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
    twin = copy.deepcopy(net)
    step, eager = compile(whole_step(net)), whole_step(twin)
    torch.testing.assert_close([step(x) for _ in range(4)], [eager(x) for _ in range(4)])
    torch.testing.assert_close(list(net.parameters()), list(twin.parameters()))
    assert traced == []


@pytest.mark.parametrize(
    "change",
    [lambda x: x.mul_(2), lambda x: x[:, 1:3].mul_(2), lambda x: torch.relu_(x), lambda x: x.t()[0].add_(5)],
    ids=["all", "columns", "relu", "transposed"],
)
def test_a_step_that_changes_what_it_is_given_is_judged_by_the_gradient_of_what_it_was(change):
    """After the call, an input that was changed has another place in the history of gradients."""

    def fn(x):
        change(x)
        return x.sum(0)

    def gradient(call):
        leaf = torch.arange(-4.0, 4.0).reshape(2, 4).requires_grad_()
        (call(leaf * 1) * torch.arange(4.0)).sum().backward()
        return leaf.grad

    compiled = burnish.compile(fn)
    for _ in range(3):
        torch.testing.assert_close(gradient(compiled), gradient(fn))
    assert [variant.rollbacks for variant in burnish.stats(compiled).variants] == [0]
    assert not burnish.stats(compiled).fallbacks
