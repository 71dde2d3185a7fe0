"""Who shares memory with whom on a device: results that are one tensor in eager, or several over one memory."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import burnish
from tests.gpu.on_device import NO_GATE, captured, randn

pytestmark = pytest.mark.gpu
Results = tuple[torch.Tensor, ...]


def few(x: torch.Tensor) -> Results:
    """Few kernels and whole results: launched directly."""
    y, z = (x * 2).exp(), x + 1
    return y, y.float(), y.detach(), z, y[:]


def detached(x: torch.Tensor) -> Results:
    part = (x * 2).exp().detach()
    return x + 1, part, part.contiguous(), part.float()


def windows(x: torch.Tensor) -> Results:
    y = torch.softmax(x, -1)
    return y, y.view(-1), y[1:], y.t(), y[:, ::2]


def parts(x: torch.Tensor) -> Results:
    """Nobody is given all of it."""
    y = torch.softmax(x, -1)
    return y[1:], y[2:].detach(), x + 1


def with_a_product(x: torch.Tensor) -> Results:
    y = x @ x.t()
    return y, y.float(), torch.tanh(y).view(-1), y.detach()


def with_a_wait(x: torch.Tensor) -> Results:
    """Cut into partitions where graphs are captured."""
    y = (x * 2).exp()
    found = torch.nonzero(y > 1)
    return y, y.float(), y.view(-1), found


FUNCTIONS = [few, detached, windows, parts, with_a_product, with_a_wait]
WAYS: dict[str, dict[str, Any]] = {
    "default": {},
    "reduce-overhead": {"mode": "reduce-overhead"},
    "graphs": {"options": {"cuda_graphs": True}},
    "reused": {"options": {"cuda_graphs": True, "reuse_outputs": True}},
    "max-autotune": {"mode": "max-autotune"},
}


def objects(results: Results) -> list[list[tuple[bool, bool]]]:
    memory = [x.untyped_storage().data_ptr() for x in results]
    pairs = list(zip(results, memory, strict=True))
    return [[(a is b, s == t) for b, t in pairs] for a, s in pairs]


def layout(results: Results) -> list[Any]:
    return [(x.shape, x.stride(), x.storage_offset(), x.requires_grad) for x in results]


def changed(results: Results) -> Results:
    with torch.no_grad():
        for k, x in enumerate(results):
            x.add_(k + 1)
    return results


@pytest.mark.parametrize("gate", [True, False], ids=["judged", "forced"])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("fn", FUNCTIONS)
def test_results_over_one_memory(fn: Callable[..., Results], way: str, gate: bool) -> None:
    c = burnish.compile(fn, **(WAYS[way] | {"gate": True} if gate else NO_GATE | WAYS[way]))
    for _ in range(5):
        x = randn(8, 8)
        ours, theirs = c(x), fn(x)
        torch.testing.assert_close(ours, theirs)
        assert objects(ours) == objects(theirs) and layout(ours) == layout(theirs)
        torch.testing.assert_close(changed(ours), changed(theirs))
    assert not burnish.stats(c).fallbacks
    if way == "graphs" and not gate and fn is not with_a_wait:
        assert captured(c) >= 1


@pytest.mark.parametrize("way", ["default", "reduce-overhead", "graphs"])
@pytest.mark.parametrize("fn", [few, windows, parts, with_a_product])
def test_results_of_training_over_one_memory(fn: Callable[..., Results], way: str) -> None:
    def step(call: Callable[..., Results], x: torch.Tensor) -> tuple[Any, Any, torch.Tensor]:
        x = x.clone().requires_grad_()
        results = call(x)
        seen = objects(results), layout(results)
        loss = sum((k + 1) * r.square().sum() for k, r in enumerate(results) if r.requires_grad)
        loss.backward()  # type: ignore[union-attr]
        assert x.grad is not None
        return *seen, x.grad

    c = burnish.compile(fn, **NO_GATE, **WAYS[way])
    for _ in range(4):
        x = randn(8, 8)
        ours, theirs = step(c, x), step(fn, x)
        assert ours[:2] == theirs[:2]
        torch.testing.assert_close(ours[2], theirs[2], rtol=1e-3, atol=1e-3)


def repeated(x: torch.Tensor) -> Results:
    y, z = (x * 2).exp(), x + 1
    return z, y, y.float(), y.contiguous()


@pytest.mark.parametrize("way", ["default", "graphs"])
def test_a_second_process_has_them_so(way: str, tmp_path: Path) -> None:
    options = {"cache_dir": tmp_path, "warm_start": True, **WAYS[way].get("options", {})}
    for again in (False, True):
        torch.compiler.reset()
        c = burnish.compile(repeated, **NO_GATE, options=options)
        for _ in range(4):
            x = randn(8, 8)
            ours, theirs = c(x), repeated(x)
            assert objects(ours) == objects(theirs)
            torch.testing.assert_close(changed(ours), changed(theirs))
        assert any("warm start: restored" in n for n in burnish.stats(c).notices) == again
        c.burnish.close()


Loss = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], Results]
IN_SAVED_MEMORY: dict[str, Loss] = {
    "view": lambda x, w, y: (lambda h: (h.view(-1), F.cross_entropy(h, y)))(x @ w),
    "detached": lambda x, w, y: (lambda h: (h.detach(), F.cross_entropy(h, y)))(x @ w),
    "part": lambda x, w, y: (lambda h: (h[1:], F.cross_entropy(h, y)))(x @ w),
    "itself": lambda x, w, y: (lambda h: (h, F.cross_entropy(h, y)))(x @ w),
}


@pytest.mark.parametrize("gate", [True, False], ids=["judged", "forced"])
@pytest.mark.parametrize("way", ["default", "reduce-overhead", "graphs"])
@pytest.mark.parametrize("name", IN_SAVED_MEMORY)
def test_a_result_in_saved_memory_changed_before_the_backward(name: str, way: str, gate: bool) -> None:
    """Eager has saved the log-softmax's own result: the gradient is that of the old values."""
    fn = IN_SAVED_MEMORY[name]
    c = burnish.compile(fn, **(WAYS[way] | {"gate": True} if gate else NO_GATE | WAYS[way]))

    def gradient(call: Loss, x: torch.Tensor, w: torch.Tensor, change: bool) -> torch.Tensor:
        w = w.clone().requires_grad_()
        first, loss = call(x, w, torch.arange(8, device=x.device))
        if change:
            with torch.no_grad():
                first.zero_()
        loss.backward()
        assert w.grad is not None
        return w.grad

    for change in (False, True, False, True, True, True):
        x, w = randn(8, 16), randn(16, 8)
        ours, theirs = gradient(c, x, w, change), gradient(fn, x, w, change)
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-3)
    assert not burnish.stats(c).fallbacks
