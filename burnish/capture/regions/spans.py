"""Marks of repeated blocks in a graph of Dynamo's: `replay.py` writes them and `sharing.py` reads them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from burnish.capture.regions.guard_match import Differs

MARK = "burnish_block"  # in a node's meta: the `Span` it belongs to
SHARES = "burnish_shares"  # in a copied result's meta: it may share memory with an argument of its block


@dataclass(frozen=True, eq=False)
class Span:
    """One call of a block: its nodes in Dynamo's graph carry this."""

    name: str  # of the block's class
    serial: int


def metadata(value: Any) -> tuple[Any, ...]:
    if type(value).__name__ not in ("FakeTensor", "Parameter") or value.layout is not torch.strided:
        raise Differs("a tensor of an unusual kind")
    sizes = tuple(map(str, (*value.shape, *value.stride(), value.storage_offset())))
    return (value.dtype, value.device, value.dim(), sizes, value.requires_grad, value.is_conj(), value.is_neg())
