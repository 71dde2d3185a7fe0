"""Blocks that Dynamo traces once: the graph is the one it traces without, and what differs is never taken for equal."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import burnish
from tests.against_eager import agree


class Block(nn.Module):
    def __init__(self, size: int, index: int = 0) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(size)
        self.up = nn.Linear(size, 2 * size)
        self.act = nn.GELU()
        self.down = nn.Linear(2 * size, size)
        self.index = index
        self.scale = 1.0

    def forward(self, x: torch.Tensor, shift: torch.Tensor | None = None) -> torch.Tensor:
        out = x + self.down(self.act(self.up(self.norm(x)))) * self.scale
        return out if shift is None else out + shift


class Indexed(Block):
    def forward(self, x: torch.Tensor, shift: torch.Tensor | None = None) -> torch.Tensor:
        return super().forward(x, shift) if self.index % 2 else super().forward(-x, shift)


class Counting(Block):
    def forward(self, x: torch.Tensor, seen: list[int]) -> torch.Tensor:  # type: ignore[override]
        seen.append(len(seen))
        return super().forward(x) * len(seen)


class Caching(Block):
    """Writes what it sees into a buffer, as a key/value cache does."""

    def __init__(self, size: int, index: int = 0) -> None:
        super().__init__(size, index)
        self.register_buffer("held", torch.zeros(8, size))

    def forward(self, x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        self.held.index_copy_(0, at, x)
        return super().forward(x) + self.held.sum(0)


class Stack(nn.Module):
    def __init__(self, block: type[Block], layers: int = 4, size: int = 16) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(block(size, i) for i in range(layers))
        self.head = nn.Linear(size, 3)

    def forward(self, x: torch.Tensor, *more: Any) -> torch.Tensor:
        for block in self.blocks:
            x = block(x, *more)
        return self.head(x)


class CountingStack(Stack):
    def forward(self, x: torch.Tensor, *more: Any) -> torch.Tensor:
        seen: list[int] = []
        for block in self.blocks:
            x = block(x, seen)
        return self.head(x)


def seen_by(model: nn.Module, *inputs: Any, **options: Any) -> tuple[Any, Any]:
    """The compiled model and its regions after a call that must agree with eager."""
    compiled = burnish.compile(model, options={"verify": "off", **options})
    _agree(compiled, model, *inputs)
    stats = burnish.stats(compiled)
    assert stats.compiles == 1 and not stats.fallbacks and not stats.graph_breaks
    return compiled, {region.name: region for region in stats.regions}


def _agree(compiled: nn.Module, model: nn.Module, *inputs: Any) -> None:
    agree(compiled, model, *inputs, mode=torch.no_grad, referee=copy.deepcopy(model).double())


def test_equal_blocks_are_traced_once() -> None:
    _, regions = seen_by(Stack(Block).eval(), torch.randn(5, 16))
    assert (regions["Block"].traced, regions["Block"].copied) == (1, 3)


def test_without_regions_nothing_is_copied() -> None:
    _, regions = seen_by(Stack(Block).eval(), torch.randn(5, 16), regions=None)
    assert not regions


@pytest.mark.parametrize("wanted", [[nn.Linear], ["blocks.1", "blocks.2"]])
def test_the_user_says_what_is_a_region(wanted: list[Any]) -> None:
    _, regions = seen_by(Stack(Block).eval(), torch.randn(5, 16), regions=wanted)
    assert list(regions) == (["Linear"] if wanted == [nn.Linear] else ["Block"])
    assert all(region.copied for region in regions.values())


@burnish.region
class Small(nn.Linear):
    pass


@pytest.mark.parametrize("regions", ["auto", None])
def test_a_marked_class_is_a_region_however_small(regions: str | None) -> None:
    model = nn.Sequential(Small(4, 4), Small(4, 4), Small(4, 4)).eval()
    compiled = burnish.compile(model, regions=regions, verify="off")
    _agree(compiled, model, torch.randn(2, 4))
    assert [r.copied for r in burnish.stats(compiled).regions] == ([2] if regions else [])


def test_a_number_that_the_code_reads_forms_classes() -> None:
    _, regions = seen_by(Stack(Indexed).eval(), torch.randn(5, 16))
    assert regions["Indexed"].copied == 0 and "index" in regions["Indexed"].reason


def test_an_attribute_of_one_block_is_guarded() -> None:
    model = Stack(Block).eval()
    x = torch.randn(5, 16)
    compiled, _ = seen_by(model, x)
    for change in (_set_scale, _set_epsilon, _set_weight, _set_hook):
        change(model.blocks[2])
        _agree(compiled, model, x)


def _set_scale(block: Block) -> None:
    block.scale = 0.5


def _set_epsilon(block: Block) -> None:
    block.norm.eps = 0.5


def _set_weight(block: Block) -> None:
    block.up.weight = nn.Parameter(torch.randn_like(block.up.weight))


def _set_hook(block: Block) -> None:
    block.register_forward_hook(lambda module, inputs, result: result * 2)


@pytest.mark.parametrize("change", [_set_scale, _set_epsilon, _set_hook])
def test_a_block_that_differs_is_traced(change: Callable[[Block], None]) -> None:
    model = Stack(Block).eval()
    change(model.blocks[1])
    _, regions = seen_by(model, torch.randn(5, 16))
    assert (regions["Block"].traced, regions["Block"].copied) == (2, 2)


def test_a_side_effect_is_traced() -> None:
    _, regions = seen_by(CountingStack(Counting).eval(), torch.randn(5, 16))
    assert regions["Counting"].copied == 0


def test_a_cache_in_the_block_is_written() -> None:
    model = Stack(Caching).eval()
    reference = copy.deepcopy(model)
    compiled = burnish.compile(model, options={"verify": "off"})
    for at in (2, 5):
        x, where = torch.randn(1, 16), torch.tensor([at])
        with torch.no_grad():
            torch.testing.assert_close(compiled(x, where), reference(x, where))
    torch.testing.assert_close(model.blocks[3].held, reference.blocks[3].held)
    assert burnish.stats(compiled).regions[0].copied == 3 and burnish.stats(compiled).compiles == 1


def test_gradients_and_dynamic_sizes() -> None:
    model = Stack(Block)
    compiled = burnish.compile(model, dynamic=True, options={"verify": "off"})
    for rows in (5, 9):
        x = torch.randn(rows, 16)
        expected = torch.autograd.grad(model(x).square().sum(), list(model.parameters()))
        got = torch.autograd.grad(compiled(x).square().sum(), list(model.parameters()))
        torch.testing.assert_close(got, expected)
    stats = burnish.stats(compiled)
    assert stats.compiles == 1 and stats.graphs == {"forward": 1, "backward": 1}
    assert stats.regions[0].copied == 2  # what the first block is given asks for no gradient
