"""Blocks that are given a cache object and find their own layer in it by their number, as transformers' do."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import nn

import burnish
from tests.against_eager import check_training
from tests.capture.regions.test_replay import Block

SIZE, SLOTS = 16, 8


class Layer:
    def __init__(self) -> None:
        self.keys = torch.zeros(SLOTS, SIZE)
        self.values = torch.zeros(SLOTS, SIZE)
        self.scale = 1.0

    def update(self, at: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        self.keys.index_copy_(0, at, x * self.scale)
        self.values.index_copy_(0, at, -x)
        return self.keys, self.values


class Cache:
    def __init__(self, layers: int = 4) -> None:
        self.layers = [Layer() for _ in range(layers)]

    def update(self, at: torch.Tensor, x: torch.Tensor, number: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.layers[number].update(at, x)


class Cached(Block):
    def forward(self, x: torch.Tensor, cache: Cache, at: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        x = self.prepared(x, cache)
        keys, values = cache.update(at, self.norm(x), self.index)
        return super().forward(x) + torch.softmax(x @ keys.T, -1) @ values

    def prepared(self, x: torch.Tensor, cache: Cache) -> torch.Tensor:
        return x


class Compared(Cached):
    def prepared(self, x: torch.Tensor, cache: Cache) -> torch.Tensor:
        return -x if self.index == 2 or self.index > 7 else x


class Computed(Cached):
    def prepared(self, x: torch.Tensor, cache: Cache) -> torch.Tensor:
        return x * (self.index + 1)


class LooksAtTheFirst(Cached):
    """The first layer is the one that its number finds in the first block, and in no other."""

    def prepared(self, x: torch.Tensor, cache: Cache) -> torch.Tensor:
        return x + cache.layers[0].keys.sum(0)


class Decoder(nn.Module):
    def __init__(self, block: type[Cached], cache: Cache) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(block(SIZE, i) for i in range(len(cache.layers)))
        self.cache = cache

    def forward(self, x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x, self.cache, at)
        return x


class ChangesOne(Decoder):
    def forward(self, x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        self.cache.layers[0].scale = 2.0
        return super().forward(x, at)


def one_layer_is_anothers(cache: Cache) -> None:
    cache.layers[2] = cache.layers[1]


def keys_are_values(cache: Cache) -> None:
    cache.layers[2].keys = cache.layers[2].values


def nothing(cache: Cache) -> None:
    pass


def steps_agree(compiled: nn.Module, model: Decoder, reference: Decoder, at: int = 0) -> None:
    for place in (at, at + 1):
        x, where = torch.randn(1, SIZE), torch.tensor([place])
        with torch.no_grad():
            torch.testing.assert_close(compiled(x, where), reference(x, where))
    for mine, theirs in zip(model.cache.layers, reference.cache.layers, strict=True):
        torch.testing.assert_close((mine.keys, mine.values, mine.scale), (theirs.keys, theirs.values, theirs.scale))


@pytest.mark.parametrize(
    ("kind", "block", "prepare", "traced", "shared"),
    [
        (Decoder, Cached, nothing, 1, 4),
        (Decoder, Compared, nothing, 2, 3),
        (Decoder, Computed, nothing, 4, 0),
        (Decoder, LooksAtTheFirst, nothing, 4, 3),
        (Decoder, Cached, one_layer_is_anothers, 1, 4),
        (Decoder, Cached, keys_are_values, 2, 3),
        (ChangesOne, Cached, nothing, 2, 3),
    ],
)
def test_a_layer_of_a_cache_is_found_by_its_number(
    kind: type[Decoder], block: type[Cached], prepare: Callable[[Cache], None], traced: int, shared: int
) -> None:
    cache = Cache()
    prepare(cache)
    model = kind(block, cache).eval()
    reference = copy.deepcopy(model)
    compiled = burnish.compile(model, verify="off")
    steps_agree(compiled, model, reference)
    stats = burnish.stats(compiled)
    assert stats.compiles == 1 and not stats.fallbacks and not stats.graph_breaks
    region = stats.regions[0]
    assert (region.traced, region.copied, region.shared) == (traced, 4 - traced, shared), region
    assert bool(region.reason) == (shared < 4)


def _other_scale(model: Decoder) -> None:
    model.cache.layers[2].scale = 0.5


def _other_tensor(model: Decoder) -> None:
    model.cache.layers[2].keys = torch.zeros(SLOTS, SIZE)


def _other_number(model: Decoder) -> None:
    model.blocks[2].index, model.blocks[3].index = 3, 2


def _other_layer(model: Decoder) -> None:
    model.cache.layers[1], model.cache.layers[2] = model.cache.layers[2], model.cache.layers[1]


def test_what_a_copied_block_found_is_guarded() -> None:
    model = Decoder(Cached, Cache()).eval()
    reference = copy.deepcopy(model)
    compiled = burnish.compile(model, verify="off")
    steps_agree(compiled, model, reference)
    for at, change in enumerate((_other_scale, _other_tensor, _other_number, _other_layer), 1):
        change(model)
        change(reference)
        steps_agree(compiled, model, reference, at)
    assert burnish.stats(compiled).compiles == 4  # a tensor like the one before needs none


class Normed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(4, 4, 1), nn.Conv2d(4, 4, 1)
        self.norm = nn.BatchNorm2d(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.second(torch.relu(self.norm(self.first(x))))


def test_running_means_are_written_in_training() -> None:
    stats = check_training(nn.Sequential(*(Normed() for _ in range(4))), torch.randn(2, 4, 3, 3), steps=2, verify="off")
    assert stats.graphs == {"forward": 1, "backward": 1} and not stats.notices
    assert [(r.copied, r.shared) for r in stats.regions] == [(2, 3)]  # what the first is given asks for no gradient


@pytest.mark.parametrize(("family", "traced", "copied"), [("Llama", 1, 3), ("Qwen3", 1, 3), ("Gemma2", 2, 2)])
def test_a_decode_step_of_transformers_is_traced_once_for_each_kind_of_layer(
    family: str, traced: int, copied: int
) -> None:
    """Gemma's layers look far and near by turns; they keep as many slots, as in `burnish.generation`."""
    transformers = pytest.importorskip("transformers")
    from burnish.generation.cache import allocate, cache_over, model_shape

    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4, "num_key_value_heads": 2}
    config = getattr(transformers, f"{family}Config")(num_hidden_layers=4, vocab_size=32, head_dim=8, **sizes)
    model = getattr(transformers, f"{family}ForCausalLM")(config).eval()
    shape, length, token = model_shape(model), torch.tensor(3), torch.tensor([[5]])
    memories = [allocate(shape, 1, 16) for _ in range(2)]
    caches = [cache_over(model, shape, memory, length, 16) for memory in memories]

    def step(cache: object) -> torch.Tensor:
        out = model(input_ids=token, past_key_values=cache, use_cache=True, position_ids=length.view(1, 1))
        return out.logits

    compiled = burnish.compile(step, dynamic=False, verify="off")
    with torch.no_grad():
        for _ in range(2):
            torch.testing.assert_close(compiled(caches[0]), step(caches[1]))
            length.add_(1)
    for mine, theirs in zip(*memories, strict=True):
        torch.testing.assert_close(mine, theirs)
    stats = burnish.stats(compiled)
    assert stats.compiles == 1 and not stats.fallbacks and not stats.graph_breaks
    (region,) = stats.regions
    assert (region.traced, region.copied, region.shared) == (traced, copied, 4), region
