"""Decoding step by step: caches are written where they are, and a step compiles once for all positions."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from transformers import StaticCache

import burnish
from tests.against_eager import served_by_us, whole_copies
from tests.models.zoo import ARCHITECTURES, BATCH, VOCABULARY, text

ROOM = 64


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gpt2", "llama", "mistral", "qwen3", "phi3"])
def test_a_static_cache_stays_where_it_is(name: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    eager = ARCHITECTURES[name].make()[0].eval()
    if getattr(eager.config, "sliding_window", None):
        eager.config.sliding_window = None  # a sliding cache moves its contents along by design
    # Without the gate: what is asserted is what the compiled step writes.
    compiled = burnish.compile(copy.deepcopy(eager), gate=False, options={"dump_dir": tmp_path})
    caches = [StaticCache(config=eager.config, max_cache_len=ROOM) for _ in range(2)]
    with torch.no_grad():
        for cache in caches:
            eager(text()["input_ids"], past_key_values=cache, use_cache=True)
        addresses = [layer.keys.data_ptr() for layer in caches[0].layers]
        for step in range(4):
            token = torch.full((BATCH, 1), (step * 31 + 5) % VOCABULARY)
            ours, theirs = (
                net(token, past_key_values=cache, use_cache=True).logits
                for net, cache in zip((compiled, eager), caches, strict=True)
            )
            torch.testing.assert_close(ours, theirs, atol=2e-6, rtol=1e-5)
    for ours, theirs in zip(caches[0].layers, caches[1].layers, strict=True):
        torch.testing.assert_close(ours.keys, theirs.keys, atol=2e-6, rtol=1e-5)
        torch.testing.assert_close(ours.values, theirs.values, atol=2e-6, rtol=1e-5)
    assert addresses == [layer.keys.data_ptr() for layer in caches[0].layers]
    served_by_us(compiled, 1)
    smallest = caches[0].layers[0].keys.numel()
    assert whole_copies((tmp_path / "inference.schedule.txt").read_text(), smallest) == []


@pytest.mark.slow
@pytest.mark.parametrize("name", ["llama", "t5"])
def test_generating(name: str) -> None:
    """generate() with the cache that grows: the same tokens as eager, and no compile for each length."""
    torch.manual_seed(0)
    eager, inputs = ARCHITECTURES[name].make()
    inputs.pop("decoder_input_ids", None)
    eager.eval()
    compiled = burnish.compile(copy.deepcopy(eager))
    settings = {"max_new_tokens": 8, "min_new_tokens": 8, "do_sample": False}
    ours, theirs = compiled.generate(**inputs, **settings), eager.generate(**inputs, **settings)
    assert torch.equal(ours, theirs)
    stats = burnish.stats(compiled)
    assert stats.fallbacks == () and stats.compiles <= 8, stats
