"""Bytes that one decode step must read: the weights it uses once, and the keys and values of every row."""

from __future__ import annotations

from typing import Any

import torch

# What configurations call the number of experts, and how many of them a token goes to.
_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")
_CHOSEN = ("num_experts_per_tok", "num_experts_per_token", "moe_topk")


def weight_bytes(model: Any, batch: int) -> int:
    """A token reads one row of the table of words, unless the head is the same table; and the experts it goes to."""
    table, head = model.get_input_embeddings(), model.get_output_embeddings()
    words = getattr(table, "weight", None)
    shared = words is not None and head is not None and getattr(head, "weight", None) is words
    experts, share = _experts(model, batch)
    total = 0.0
    for parameter in model.parameters():
        if parameter is words and not shared:
            continue
        stacked = parameter.dim() == 3 and parameter.shape[0] == experts
        total += parameter.numel() * parameter.element_size() * (share if stacked else 1.0)
    return round(total)


def _experts(model: Any, batch: int) -> tuple[int, float]:
    """The number of experts, and the fraction that a step of `batch` tokens reads if all are equally likely."""
    config = model.config.get_text_config(decoder=True)
    count = next((int(getattr(config, name)) for name in _EXPERTS if getattr(config, name, None)), 0)
    chosen = next((int(getattr(config, name)) for name in _CHOSEN if getattr(config, name, None)), 0)
    if not count or not chosen:
        return -1, 1.0
    return count, 1.0 - (1.0 - chosen / count) ** batch


def decode_bytes(model: Any, slot_bytes: int, batch: int, length: float) -> int:
    """Of a step with `length` tokens in the cache of each row."""
    return weight_bytes(model, batch) + round(slot_bytes * batch * length)


def synchronise(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
