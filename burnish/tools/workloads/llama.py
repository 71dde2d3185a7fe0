"""A small Llama: the prompt in one go, and one decode step against a static key/value cache updated in place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from burnish.tools.workloads.registry import Inputs, Workload, import_transformers

FULL = {
    "hidden_size": 512,
    "num_hidden_layers": 8,
    "intermediate_size": 1376,
    "num_attention_heads": 8,
    "vocab_size": 8000,
    "max_position_embeddings": 2048,
}
TINY = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 500,
    "max_position_embeddings": 128,
}


class Prefill(nn.Module):
    """Logits of a whole prompt, without a cache."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        return self.model(input_ids=input_ids, use_cache=False).logits


class DecodeStep(nn.Module):
    """One token in, its logits out, the cache updated in place at `position`.

    The cache counts the tokens it holds and would overflow after a few hundred timed calls, so a step first sets
    the count to `position`: calling twice with the same inputs gives the same result.
    """

    def __init__(self, model: nn.Module, cache: Any) -> None:
        super().__init__()
        self.model = model
        self.cache = cache
        for index, layer in enumerate(cache.layers):
            self.register_buffer(f"keys_{index}", layer.keys)
            self.register_buffer(f"values_{index}", layer.values)

    def _apply(self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> DecodeStep:
        """`.double()` and `.to()` give the buffers new tensors; the cache must go on sharing them."""
        super()._apply(fn, recurse)
        for index, layer in enumerate(self.cache.layers):
            layer.keys = self.get_buffer(f"keys_{index}")
            layer.values = self.get_buffer(f"values_{index}")
            layer.cumulative_length = layer.cumulative_length.to(layer.keys.device)
            layer.dtype, layer.device = layer.keys.dtype, layer.keys.device
        return self

    def forward(self, input_ids: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
        for layer in self.cache.layers:
            layer.cumulative_length.copy_(position)
        out = self.model(
            input_ids=input_ids, position_ids=position.view(1, 1), past_key_values=self.cache, use_cache=True
        )
        return out.logits


def _llama(name: str, size: str) -> tuple[nn.Module, Any]:
    transformers = import_transformers(name)
    config = transformers.LlamaConfig(**(TINY if size == "tiny" else FULL))
    return transformers.LlamaForCausalLM(config).eval(), config


def build_prefill(size: str) -> tuple[nn.Module, Inputs]:
    model, config = _llama("llama-prefill", size)
    length = {"full": 128, "tiny": 12}[size]
    return Prefill(model).eval(), (torch.randint(0, config.vocab_size, (1, length)),)


def build_decode(size: str) -> tuple[nn.Module, Inputs]:
    model, config = _llama("llama-decode", size)
    capacity, held = {"full": (1024, 400), "tiny": (64, 20)}[size]
    cache = import_transformers("llama-decode").StaticCache(config=config, max_cache_len=capacity)
    with torch.no_grad():
        model(input_ids=torch.randint(0, config.vocab_size, (1, held)), past_key_values=cache, use_cache=True)
    return DecodeStep(model, cache).eval(), (torch.randint(0, config.vocab_size, (1, 1)), torch.tensor(held))


PREFILL = Workload("llama-prefill", "small Llama (h512 L8), 128-token prompt, fp32", build_prefill, extra="hf")
DECODE = Workload(
    "llama-decode", "small Llama (h512 L8), one token, static cache of 1024 holding 400, fp32", build_decode, extra="hf"
)
