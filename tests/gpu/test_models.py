"""Small models as a whole, plain and as CUDA graphs."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

import burnish
from burnish.tools.workloads.resnet import Bottleneck
from tests.against_eager import check_training, difference, served_by_us
from tests.gpu.on_device import DEVICE, NO_GATE, captured, compiled, randn

pytestmark = pytest.mark.gpu
MODES = pytest.mark.parametrize("mode", ["default", "reduce-overhead"])


def bert() -> torch.nn.Module:
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=128, vocab_size=500
    )
    return transformers.BertModel(config).eval().to(DEVICE)


def llama() -> torch.nn.Module:
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        intermediate_size=128,
        vocab_size=500,
    )
    return transformers.LlamaForCausalLM(config).eval().to(DEVICE)


@MODES
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_bert(mode: str, dtype: torch.dtype) -> None:
    eager = bert().to(dtype)
    exact = copy.deepcopy(eager).double()
    c = compiled(eager, mode=mode)
    with torch.no_grad():
        for _ in range(3):
            ids = torch.randint(0, 500, (2, 16), device=DEVICE)
            inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
            ours, theirs, truth = (net(**inputs).last_hidden_state for net in (c, eager, exact))
            assert not (problem := difference(ours, theirs, truth)), problem
    served_by_us(c)
    assert captured(c) == (mode == "reduce-overhead")


@MODES
def test_decoding_into_a_static_cache(mode: str) -> None:
    eager = llama()
    from transformers import StaticCache

    c = compiled(copy.deepcopy(eager), mode=mode)
    caches = [StaticCache(config=eager.config, max_cache_len=32) for _ in range(2)]
    with torch.no_grad():
        for cache in caches:
            eager(torch.arange(7, device=DEVICE).view(1, 7), past_key_values=cache, use_cache=True)
        addresses = [layer.keys.data_ptr() for layer in caches[0].layers]
        for step in range(6):
            token = torch.full((1, 1), 31 * step % 500, device=DEVICE)
            ours, theirs = (
                net(token, past_key_values=cache, use_cache=True).logits
                for net, cache in zip((c, eager), caches, strict=True)
            )
            torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-4)
    for ours, theirs in zip(caches[0].layers, caches[1].layers, strict=True):
        torch.testing.assert_close(ours.keys, theirs.keys, atol=1e-4, rtol=1e-4)
    assert addresses == [layer.keys.data_ptr() for layer in caches[0].layers]
    if mode == "reduce-overhead":
        assert captured(c) >= 1


@MODES
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_residual_convolutions(mode: str, dtype: torch.dtype) -> None:
    blocks = torch.nn.Sequential(Bottleneck(16, 8, 1), Bottleneck(32, 8, 2)).eval()
    eager = blocks.to(DEVICE, dtype=dtype, memory_format=torch.channels_last)
    exact = copy.deepcopy(eager).double()
    c = compiled(eager, mode=mode)
    with torch.no_grad():
        for _ in range(3):
            x = randn(2, 16, 20, 20, dtype=dtype).to(memory_format=torch.channels_last)
            ours, theirs, truth = c(x), eager(x), exact(x.double())
            assert not (problem := difference(ours, theirs, truth)), problem
    served_by_us(c)


@MODES
def test_a_training_step(mode: str) -> None:
    layer = torch.nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True).to(DEVICE)
    check_training(layer, randn(3, 10, 32), steps=4, mode=mode, **NO_GATE)


def test_a_training_step_under_autocast() -> None:
    model: Any = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.GELU(), torch.nn.Linear(128, 64)).to(DEVICE)
    twin = copy.deepcopy(model)
    c = compiled(model, mode="reduce-overhead")
    for _ in range(4):
        x = randn(32, 64)
        outcomes = []
        for net, kept in ((c, model), (twin, twin)):
            with torch.autocast(DEVICE, dtype=torch.bfloat16):
                loss = net(x).square().mean()
            loss.backward()
            outcomes.append([loss.detach(), *(p.grad for p in kept.parameters())])
            for p in kept.parameters():
                p.grad = None
        torch.testing.assert_close(*outcomes, rtol=2e-2, atol=2e-2)
    assert burnish.stats(c).compiles == 1


def test_gate_and_comparison_on_a_device() -> None:
    """With everything on, as users have it: right, whoever serves."""
    eager = bert()
    c = burnish.compile(eager, mode="reduce-overhead")
    with torch.no_grad():
        for _ in range(4):
            ids = torch.randint(0, 500, (2, 16), device=DEVICE)
            torch.testing.assert_close(c(ids).last_hidden_state, eager(ids).last_hidden_state, atol=1e-4, rtol=1e-4)
    assert burnish.stats(c).fallbacks == ()
