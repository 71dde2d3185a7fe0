"""Sizes at which kernels share their work among threads: the same numbers, and the same again."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import burnish
from tests.against_eager import agree, check, check_training, served_by_us

pytestmark = pytest.mark.threads

LARGE = torch.linspace(0, 600, 512 * 384).sin().reshape(512, 384)
WORK: dict[str, Callable[[torch.Tensor], object]] = {
    "elementwise": lambda x: ((x * 2).exp() + x.t().reshape(512, 384), x.t() * 3, x > 0.5),
    "rows": lambda x: (x.sum(-1), x.softmax(-1), x.amax(-1), x.argmin(-1), x.var(-1), x.log_softmax(-1)),
    "columns": lambda x: (x.sum(0), x.mean(0), x.amax(0), x.argmax(0), x.softmax(0), x.std(0)),
    "everything": lambda x: (x.sum(), x.mean(), x.max(), x.argmax(), x.var(), x.any(), (x > 0).sum()),
    "product of elements": lambda x: x.prod(),
    "few rows": lambda x: (x.reshape(3, -1).sum(-1), x.reshape(2, -1).softmax(-1), x.reshape(-1, 3).sum(0)),
    "norms": lambda x: (F.layer_norm(x, (384,)), F.rms_norm(x, (384,)), F.group_norm(x.reshape(4, 128, 384), 8)),
    "scan": lambda x: (x.cumsum(0), x.cumsum(1), x.cumprod(1)),
    "products": lambda x: (x @ x.t(), x.t() @ x, x[0] @ x.t(), (x @ x.t()).relu() + 1, x[:2] @ x[:, :384].t()),
    "batched": lambda x: torch.bmm(x.reshape(16, 32, 384), x.reshape(16, 384, 32)),
    "gather": lambda x: (
        x[torch.arange(511, -1, -1)],
        x.gather(1, x.argsort(1)),
        F.embedding(torch.arange(512) % 7, x),
    ),
    "scatter": lambda x: (
        torch.zeros(7, 384).index_add(0, torch.arange(512) % 7, x),
        torch.zeros(512, 5).scatter_add(1, torch.arange(512 * 384).reshape(512, 384) % 5, x),
        x.index_put((torch.arange(512) % 3,), x, accumulate=True),
    ),
    "join": lambda x: (torch.cat([x, x * 2]), torch.stack([x, x], 1), F.pad(x, (3, 5, 1, 2)), x.repeat(2, 2)),
    "windows": lambda x: (F.max_pool2d(x.reshape(2, 2, 256, 192), 3, 2, 1), F.avg_pool2d(x[None], 2)),
    "half": lambda x: (x.bfloat16() * 2, x.bfloat16().sum(-1), x.half().softmax(-1), x.bfloat16().mean(0)),
    "integers": lambda x: ((x * 100).long().sum(0), (x * 9).int().amax(-1), (x * 9).to(torch.uint8) + 250),
    "attention": lambda x: F.scaled_dot_product_attention(
        *(t.reshape(2, 4, 256, 32) for t in x.reshape(-1)[: 3 * 65536].chunk(3)), is_causal=True
    ),
}


@pytest.mark.parametrize("name", WORK)
def test_large(name):
    check(WORK[name], LARGE, strides=name != "attention")


@pytest.mark.parametrize("name", [n for n in WORK if n not in ("integers", "gather", "half", "product of elements")])
def test_gradients_of_large(name):
    check(WORK[name], LARGE.clone().requires_grad_(), strides=name != "attention")


@pytest.mark.parametrize("name", ["rows", "columns", "norms", "products", "attention"])
def test_the_same_bits_every_time(name):
    compiled = burnish.compile(WORK[name])
    first = compiled(LARGE)
    for _ in range(5):
        for ours, again in zip(first, compiled(LARGE), strict=True):
            assert torch.equal(ours, again)
    served_by_us(compiled)


def test_thread_counts_that_change():
    compiled = burnish.compile(lambda x: (x.exp().sum(-1), x.sum(0), x @ x.t()))
    for threads in (2, 1, 2, 3):
        torch.set_num_threads(threads)
        agree(compiled, compiled.burnish.eager, LARGE)
    served_by_us(compiled, 3)  # torch's guards include the number of threads; the cache knows the kernels


def test_a_network():
    net = nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(16 * 16 * 16, 64), nn.LayerNorm(64), nn.GELU(), nn.Linear(64, 10),
    )  # fmt: skip
    check_training(net, torch.randn(8, 3, 32, 32), steps=2)
