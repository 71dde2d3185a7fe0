"""The static key/value cache: transformers' own layout, one length for all layers, the same memory for all programs."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers.cache_utils import StaticCache, StaticLayer, StaticSlidingWindowLayer

from burnish.errors import CannotGenerate

_SHARE_OF_GPU = 0.8  # of what is free
_SHARE_OF_HOST = 0.5


@dataclass(frozen=True)
class LayerShape:
    """The cached data of one layer per token. `sliding` layers have as many slots as the others: their mask hides
    tokens outside the window, and one program serves every length."""

    heads: int
    key_size: int
    value_size: int
    dtype: torch.dtype
    sliding: bool

    @property
    def slot_bytes(self) -> int:
        return self.heads * (self.key_size + self.value_size) * self.dtype.itemsize


@dataclass(frozen=True)
class ModelShape:
    """The sizes of the model's cache and logits, found by a call on one token."""

    layers: tuple[LayerShape | None, ...]  # None: a layer that shares another's keys and values
    vocabulary: int
    device: torch.device

    @property
    def slot_bytes(self) -> int:
        """Bytes that the cache takes for one token of one row."""
        return sum(layer.slot_bytes for layer in self.layers if layer is not None)


def model_shape(model: Any) -> ModelShape:
    """Found by a call of the model, because configurations name their sizes differently."""
    cache = StaticCache(config=model.config, max_cache_len=2)
    device = next(model.parameters()).device
    for layer in cache.layers:
        if type(layer) not in (StaticLayer, StaticSlidingWindowLayer):
            raise CannotGenerate(
                f"its cache has layers of type {type(layer).__name__}, which keep more than keys and values"
            )
    with torch.no_grad():
        out = model(input_ids=torch.zeros(1, 1, dtype=torch.long, device=device), past_key_values=cache, use_cache=True)
    layers = tuple(_layer_shape(layer) for layer in cache.layers)
    if not any(layers):
        raise CannotGenerate("it left the cache empty: it keeps no keys and values in `past_key_values`")
    return ModelShape(layers, out.logits.shape[-1], device)


def _layer_shape(layer: Any) -> LayerShape | None:
    if not layer.is_initialized:
        return None
    keys, values = layer.keys, layer.values
    return LayerShape(keys.shape[1], keys.shape[3], values.shape[3], keys.dtype, bool(layer.is_sliding))


class SharedLayer(StaticLayer):
    """A layer over memory and a length that it does not own. All layers see one length, which the program moves on
    once; transformers' layers count for themselves, each with a kernel of its own."""

    def __init__(
        self, keys: torch.Tensor, values: torch.Tensor, length: torch.Tensor, visible: int, sliding: bool
    ) -> None:
        super().__init__(max_cache_len=visible)
        self.keys, self.values = keys, values
        self.cumulative_length = length
        self.whole = visible == keys.shape[2]
        self.is_sliding = sliding
        self.dtype, self.device = keys.dtype, keys.device
        self.is_initialized = True

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Also the interface's words for what other kinds of layers need are taken, and mean nothing here."""
        slots = torch.arange(key_states.shape[-2], device=self.device) + self.cumulative_length
        self.keys.index_copy_(2, slots, key_states)
        self.values.index_copy_(2, slots, value_states)
        if self.whole:
            return self.keys, self.values
        return self.keys[:, :, : self.max_cache_len], self.values[:, :, : self.max_cache_len]


Memory = tuple[tuple[torch.Tensor, torch.Tensor] | None, ...]


def allocate(shape: ModelShape, rows: int, capacity: int) -> Memory:
    def zeros(heads: int, size: int, dtype: torch.dtype) -> torch.Tensor:
        return torch.zeros(rows, heads, capacity, size, dtype=dtype, device=shape.device)

    def pair(layer: LayerShape) -> tuple[torch.Tensor, torch.Tensor]:
        return zeros(layer.heads, layer.key_size, layer.dtype), zeros(layer.heads, layer.value_size, layer.dtype)

    return tuple(None if layer is None else pair(layer) for layer in shape.layers)


def cache_over(model: Any, shape: ModelShape, memory: Memory, length: torch.Tensor, visible: int) -> StaticCache:
    """The object to give to the model as `past_key_values`."""
    cache = StaticCache(config=model.config, max_cache_len=visible)
    for n, (layer, held) in enumerate(zip(shape.layers, memory, strict=True)):
        if layer is not None and held is not None:
            cache.layers[n] = SharedLayer(*held, length, visible, layer.sliding)
    return cache


def room(device: torch.device) -> int:
    """Bytes that a cache may take now."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0] * _SHARE_OF_GPU)
    try:
        return int(os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") * _SHARE_OF_HOST)
    except (ValueError, OSError):  # not told: let the allocation itself fail
        return 1 << 62


def carried_over(old: Memory, new: Memory, slots: int) -> None:
    """Copy what the first `slots` hold, for a cache that has grown."""
    for before, after in zip(old, new, strict=True):
        if before is not None and after is not None:
            for source, target in zip(before, after, strict=True):
                n = min(source.shape[0], target.shape[0])
                target[:n, :, :slots].copy_(source[:n, :, :slots])


def memory_bytes(memory: Sequence[tuple[torch.Tensor, torch.Tensor] | None]) -> int:
    return sum(t.numel() * t.element_size() for pair in memory if pair is not None for t in pair)
