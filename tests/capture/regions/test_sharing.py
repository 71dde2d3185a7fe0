"""Blocks that AOTAutograd sees once: the program is the one that is made without, to the bit."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

import burnish
from burnish.capture import graph_capture
from tests.capture.regions.test_replay import Block, Caching, Stack


class Dropping(Block):
    """Draws random numbers, returns more than one result, one of them without a gradient."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:  # type: ignore[override]
        kept = nn.functional.dropout(super().forward(x), 0.5)
        return kept, kept.argmax(-1)


class DroppingStack(Stack):
    def forward(self, x: torch.Tensor, *more: Any) -> torch.Tensor:
        chosen = 0
        for block in self.blocks:
            x, best = block(x)
            chosen = chosen + best
        return self.head(x) + chosen[:, None]


class Casting(Stack):
    """Half of its blocks under autocast, by turns: the operations of all of them are the same."""

    def forward(self, x: torch.Tensor, *more: Any) -> torch.Tensor:
        for i, block in enumerate(self.blocks):
            with torch.autocast("cpu", torch.bfloat16), torch.autocast("cpu", torch.bfloat16, enabled=i % 2 == 0):
                x = block(x.float())
        return self.head(x.float())


class Viewing(Block):
    """Its result is a view of its argument: no operation of its own."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        super().forward(x)
        return x.flip(0)[:, :].view(x.shape) if self.training else x.view(x.shape)


def trained(model: nn.Module, x: torch.Tensor, regions: str | None) -> tuple[list[torch.Tensor], burnish.Stats]:
    model = copy.deepcopy(model)
    compiled = burnish.compile(model, options={"verify": "off", "regions": regions})
    torch.manual_seed(3)
    result = compiled(x)
    result.square().sum().backward()
    return [result.detach(), *(p.grad for p in model.parameters())], burnish.stats(compiled)


@pytest.mark.parametrize("kind", [Stack, DroppingStack, Casting])
def test_training_is_the_same_to_the_bit(kind: type[Stack]) -> None:
    model = kind(Dropping if kind is DroppingStack else Block)
    x = torch.randn(6, 16, requires_grad=True)
    (got, shared), (expected, alone) = trained(model, x, "auto"), trained(model, x, None)
    assert all(torch.equal(a, b) for a, b in zip(got, expected, strict=True))
    assert shared.regions[0].shared == 4 and not shared.notices and not shared.fallbacks
    assert (shared.kernels, shared.graphs, shared.compiles) == (alone.kernels, alone.graphs, 1)


@pytest.mark.parametrize(("block", "more", "shared"), [(Caching, (torch.tensor([2]),), 4), (Viewing, (), 0)])
def test_what_cannot_be_shared_is_compiled_all_the_same(block: type[Block], more: tuple[Any, ...], shared: int) -> None:
    model = Stack(block).eval()
    compiled = burnish.compile(copy.deepcopy(model), options={"verify": "off"})
    x = torch.randn(1, 16)
    with torch.no_grad():
        torch.testing.assert_close(compiled(x, *more), model(x, *more))
    stats = burnish.stats(compiled)
    assert stats.compiles == 1 and not stats.fallbacks and not stats.graph_breaks
    assert stats.regions[0].shared == shared and stats.regions[0].copied == 3


def test_autocast_around_some_blocks() -> None:
    model = Casting(Block).eval()
    compiled = burnish.compile(model, options={"verify": "off"})
    x = torch.randn(6, 16)
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), model(x), rtol=2e-2, atol=2e-2)
    stats = burnish.stats(compiled)
    assert not stats.fallbacks and stats.regions[0].shared == 4


def test_autocast_goes_into_the_blocks() -> None:
    model = Stack(Block).eval()
    x = torch.randn(6, 16)
    compiled = burnish.compile(model, options={"verify": "off"})
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(compiled(x), model(x), rtol=2e-2, atol=2e-2)
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), model(x))
    stats = burnish.stats(compiled)
    assert stats.compiles == 2 and not stats.fallbacks and not stats.notices


@torch.no_grad()
def test_inputs_that_stay_in_place_are_known_to(monkeypatch: pytest.MonkeyPatch) -> None:
    """A CUDA graph reads them where they are; others it copies."""
    found: list[frozenset[int]] = []
    original = graph_capture._static_inputs

    def asked() -> frozenset[int]:
        found.append(original())
        return found[-1]

    monkeypatch.setattr(graph_capture, "_static_inputs", asked)
    for regions in ("auto", None):
        model = Stack(Block)
        burnish.compile(model, options={"verify": "off", "warm_start": False, "regions": regions})(torch.randn(4, 16))
    shared, whole = found
    assert len(shared) == len(whole) == len(list(model.parameters()))
