"""max-autotune on the device: what it finds is used, kept and right; a device without memory never loses a call."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import burnish
from tests.gpu.on_device import DEVICE, NO_GATE, notices, randn

pytestmark = pytest.mark.gpu
HALF = torch.bfloat16


class Block(nn.Module):
    """A product with an epilogue, one of a long sum before a normalisation, attention, a transpose."""

    def __init__(self, width: int = 256, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.ModuleList(nn.Linear(width, width) for _ in range(3))
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.norm = nn.LayerNorm(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, n, w = x.shape
        q, k, v = (p(x).view(b, n, self.heads, w // self.heads).transpose(1, 2) for p in self.qkv)
        y = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, n, w)
        return self.norm(self.down(F.gelu(self.up(x + y))) + x)


def error(found: torch.Tensor, model: nn.Module, x: torch.Tensor) -> float:
    wide = model.double()(x.double())
    model.to(HALF)
    return float((found.double() - wide).abs().max() / wide.abs().max())


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("BURNISH_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("BURNISH_WARM_START", "0")  # compile anew: what is asked about is the tuning
    return tmp_path


@torch.no_grad()
def test_what_is_found_is_right_kept_and_taken_back(cache: Path) -> None:
    torch.manual_seed(0)
    model, x = Block().to(DEVICE, HALF).eval(), randn(1, 64, 256, dtype=HALF)
    c = burnish.compile(model, mode="max-autotune", **NO_GATE)
    for _ in range(3):
        found = c(x)
    stats = burnish.stats(c)
    assert not stats.fallbacks and {t.source for t in stats.tuning} == {"measured"}
    assert {t.key.split()[0] for t in stats.tuning} == {"backend", "launch"}
    assert all(t.seconds is not None and 0 < t.seconds < 1 for t in stats.tuning)
    assert error(found, model, x) <= 2 * error(model(x), model, x) + 1e-3
    again = burnish.compile(model, mode="max-autotune-no-cudagraphs", **NO_GATE)
    torch.testing.assert_close(again(x), found)
    assert {t.source for t in burnish.stats(again).tuning} == {"cached"}
    pasted = burnish.compile(model, tuning=eval(str(stats.tuning_record)), **NO_GATE)
    torch.testing.assert_close(pasted(x), found)
    assert {t.source for t in burnish.stats(pasted).tuning} == {"given"}
    assert burnish.stats(pasted).tuning_record == stats.tuning_record


@torch.no_grad()
def test_convolutions(cache: Path) -> None:
    torch.manual_seed(0)
    layers = [nn.Conv2d(64, 64, 3, padding=1), nn.ReLU(), nn.Conv2d(64, 128, 1), nn.ReLU()]
    model = nn.Sequential(*layers).to(DEVICE, HALF).to(memory_format=torch.channels_last).eval()
    x = randn(1, 64, 28, 28, dtype=HALF).to(memory_format=torch.channels_last)
    c = burnish.compile(model, mode="max-autotune", **NO_GATE)
    for _ in range(3):
        found = c(x)
    assert any("backend convolution" in t.key for t in burnish.stats(c).tuning)
    assert error(found, model, x) <= 2 * error(model(x), model, x) + 1e-3


@torch.no_grad()
def test_a_budget_ends_the_search_and_not_the_call(cache: Path) -> None:
    model, x = Block().to(DEVICE, HALF).eval(), randn(1, 64, 256, dtype=HALF)
    c = burnish.compile(model, mode="max-autotune-no-cudagraphs", budget=2.0, **NO_GATE)
    torch.testing.assert_close(c(x), model(x), rtol=0.05, atol=0.05)


def _without_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: Any, **settings: Any) -> None:
        raise torch.cuda.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(torch.cuda.CUDAGraph, "capture_begin", refuse)


@torch.no_grad()
def test_no_memory_while_tuning_and_capturing(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No trial can be captured, and neither can the program: the rule decides, and it runs plainly."""
    model, x = Block().to(DEVICE, HALF).eval(), randn(1, 64, 256, dtype=HALF)
    with monkeypatch.context() as short:
        _without_memory(short)
        c = burnish.compile(model, mode="max-autotune", **NO_GATE)
        for _ in range(3):
            torch.testing.assert_close(c(x), model(x), rtol=0.05, atol=0.05)
    stats = burnish.stats(c)
    assert not stats.fallbacks and not stats.tuning
    said = " ".join(notices(c))
    assert "tuning: a form was skipped: OutOfMemoryError" in said and "no CUDA graph: OutOfMemoryError" in said
    torch.testing.assert_close(c(x), model(x), rtol=0.05, atol=0.05)


@torch.no_grad()
def test_a_full_device_never_loses_a_call(cache: Path) -> None:
    """Hardly more is left than the call needs. (A limit of this process alone: other tests are on the device.)"""
    model, x = Block(1024, 16).to(DEVICE, HALF).eval(), randn(8, 512, 1024, dtype=HALF)
    expected = model(x)
    torch.cuda.empty_cache()
    _, total = torch.cuda.mem_get_info()
    torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + (256 << 20)) / total)
    try:
        c = burnish.compile(model, mode="max-autotune", **NO_GATE)
        for _ in range(3):
            torch.testing.assert_close(c(x), expected, rtol=0.05, atol=0.05)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
