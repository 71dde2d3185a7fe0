"""Sizes that change: compiled once with dynamic=True, twice when left to notice, and right at every size."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import burnish
from tests.against_eager import agree, served_by_us, trained


def norm_and_pool(x, mask):
    hidden = F.layer_norm(x, (x.shape[-1],)) * mask.unsqueeze(-1)
    return hidden.sum(1) / mask.sum(1, keepdim=True).clamp(min=1), hidden.softmax(1)


def attention(x, mask):
    q, k, v = (x.view(x.shape[0], x.shape[1], 2, -1).transpose(1, 2) for _ in range(3))
    scores = (q @ k.transpose(-1, -2) / 8**0.5).masked_fill(mask[:, None, None, :] == 0, -1e9)
    return (scores.softmax(-1) @ v).transpose(1, 2).reshape(x.shape)


def causal(x, mask):
    n = x.shape[1]
    positions = torch.arange(n)
    allowed = positions[:, None] >= positions[None, :]
    scores = (x @ x.transpose(1, 2)).masked_fill(~allowed, float("-inf"))
    return scores.softmax(-1) @ x, torch.tril(torch.ones(n, n)), positions * 2


def rearranged(x, mask):
    b, n, d = x.shape
    return (
        x.reshape(b * n, d) * 2, x.flip(1), torch.cat([x, x[:, :1]], 1), x[:, : n // 2], x[:, 1:] - x[:, :-1],
        F.pad(x, (0, 0, 1, 1)), x.transpose(1, 2).reshape(b, -1), mask.cumsum(1), x.view(b, n, 4, d // 4).mean(2),
        x.repeat(1, 2, 1), torch.stack([x, x], 1), x.new_zeros(b, n).add(n), x.unfold(1, 2, 1).sum(-1),
    )  # fmt: skip


def gathered(x, mask):
    last = mask.long().sum(1) - 1
    order = x[..., 0].argsort(1)
    return (
        x[torch.arange(x.shape[0]), last],
        x.gather(1, order.unsqueeze(-1).expand_as(x)),
        x.argmax(1),
        x.topk(2, 1).values,
    )


SIZES = [(2, 5), (2, 9), (3, 7), (5, 16), (2, 4), (7, 33)]  # torch keeps 0 and 1 apart, also as half of a length


@pytest.mark.parametrize("work", [norm_and_pool, attention, causal, rearranged, gathered])
def test_one_compile_for_all_sizes(work):
    compiled = burnish.compile(work, dynamic=True)
    for batch, length in SIZES:
        agree(compiled, work, *inputs(batch, length))
    served_by_us(compiled, 1)


@pytest.mark.parametrize("work", [norm_and_pool, attention, rearranged])
def test_the_second_size_makes_it_dynamic(work):
    compiled = burnish.compile(work)
    for batch, length in [(2, 5), (2, 9), (2, 12), (2, 40), (2, 5)]:
        agree(compiled, work, *inputs(batch, length))
    stats = served_by_us(compiled, 2)
    assert len(stats.recompiles) == 1


def test_static_sizes_compile_each():
    compiled = burnish.compile(norm_and_pool, dynamic=False)
    for batch, length in SIZES[:3]:
        agree(compiled, norm_and_pool, *inputs(batch, length))
    served_by_us(compiled, 3)


def inputs(batch: int, length: int) -> tuple[torch.Tensor, torch.Tensor]:
    mask = torch.ones(batch, length)
    mask[0, 2:] = 0
    return torch.randn(batch, length, 16), mask


def test_sizes_of_one_and_none():
    def fn(x):
        return (x * 2).sum(-1), x.softmax(-1)

    compiled = burnish.compile(fn, dynamic=True)
    for rows in (4, 1, 0, 7):
        agree(compiled, fn, torch.randn(rows, 6))
    assert burnish.stats(compiled).fallbacks == ()
    assert burnish.stats(compiled).compiles <= 3, "one for all, and torch may keep 0 and 1 apart"


def test_a_number_that_changes():
    def fn(x, n):
        return x[:n] * n, x.sum() / n

    compiled = burnish.compile(fn, dynamic=True)
    for n in (3, 5, 8):
        agree(compiled, fn, torch.randn(10, 2), n)
    served_by_us(compiled, 1)


def test_a_python_float_that_changes():
    def fn(x, scale):
        return x * scale + scale

    compiled = burnish.compile(fn)
    for scale in (0.5, 1.5, 2.5, -3.0):
        torch.testing.assert_close(compiled(torch.ones(3), scale), fn(torch.ones(3), scale))
    assert burnish.stats(compiled).fallbacks == ()
    assert burnish.stats(compiled).compiles <= 2


def test_strides_that_change_with_the_size():
    def fn(x):
        return x.t() * 2, x.sum(0)

    compiled = burnish.compile(fn, dynamic=True)
    base = torch.randn(20, 30)
    for rows, columns in ((4, 6), (7, 11), (15, 30)):
        agree(compiled, fn, base[:rows, :columns].t())
    assert burnish.stats(compiled).fallbacks == ()


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(30, 16)
        self.qkv, self.out = nn.Linear(16, 48), nn.Linear(16, 16)
        self.norm, self.up, self.down = nn.LayerNorm(16), nn.Linear(16, 32), nn.Linear(32, 16)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.table(ids)
        q, k, v = self.qkv(self.norm(x)).chunk(3, -1)
        x = x + self.out((q @ k.transpose(1, 2) / 4).softmax(-1) @ v)
        return x + self.down(F.gelu(self.up(x)))


def test_training_at_many_sizes():
    eager = Block()
    compiled = burnish.compile(copy.deepcopy(eager), dynamic=True)
    referee = copy.deepcopy(eager).double()
    for batch, length in SIZES:
        ids = torch.randint(0, 30, (batch, length))
        got, want, truth = (
            trained(net, lambda net, ids=ids: net(ids).square().mean()) for net in (compiled, eager, referee)
        )
        for ours, theirs, exact in zip(got, want, truth, strict=True):
            error, allowed = (ours - exact).abs().max(), (theirs - exact).abs().max()
            assert error <= max(2 * allowed, 1e-6)
    served_by_us(compiled, 1)


def test_a_model_left_to_notice_compiles_twice():
    compiled = burnish.compile(Block().eval())
    with torch.no_grad():
        for length in (4, 6, 9, 13, 21):
            agree(compiled, compiled.eager, torch.randint(0, 30, (2, length)))
    served_by_us(compiled, 2)


def test_marked_dynamic():
    def fn(x):
        return x.softmax(0).sum(-1)

    compiled = burnish.compile(fn)
    for rows in (4, 8, 12):
        x = torch.randn(rows, 5)
        torch._dynamo.mark_dynamic(x, 0)
        torch.testing.assert_close(compiled(x), fn(x))
    served_by_us(compiled, 1)


@pytest.mark.parametrize("looked_for", [3, 4, 5.0, True])
def test_a_size_that_varies_is_found_among_sizes(looked_for):
    def function(x):
        return x + 1, looked_for in x.shape, looked_for in list(x.shape), looked_for not in (2, *x.shape)

    compiled = burnish.compile(function, gate=False)
    for size in (3, 4, 5, 6, 3, 4, 1):
        x = torch.ones(size, 7)
        assert compiled(x)[1:] == function(x)[1:]
