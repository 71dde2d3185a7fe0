"""CUDA's streams and graphs, as torch's own compiler uses them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from burnish.torch_private.names import PrivateName, lookup_in

if TYPE_CHECKING:
    from torch._C import _cuda_getCurrentRawStream as cuda_getCurrentRawStream
    from torch._C import _cuda_isCurrentStreamCapturing as cuda_isCurrentStreamCapturing
    from torch._C import _tensors_data_ptrs_at_indices_equal as tensors_data_ptrs_at_indices_equal


def _no_stream(device: int) -> int:
    return 0


def _one_by_one(tensors: list[torch.Tensor], addresses: list[int], positions: Sequence[int]) -> bool:
    return all(tensors[k].data_ptr() == addresses[k] for k in positions)


NAMES = (
    PrivateName(
        "torch._C._cuda_isCurrentStreamCapturing",
        "whether a CUDA graph is captured",
        with_cuda_only=True,
    ),
    PrivateName(
        "torch._C._cuda_getCurrentRawStream",
        "the stream on which kernels are launched",
        instead=_no_stream,
        with_cuda_only=True,
    ),
    PrivateName(
        "torch._C._tensors_data_ptrs_at_indices_equal",
        "compares many addresses at once",
        instead=_one_by_one,
        fallback="tensors are asked one by one",
        with_cuda_only=True,
    ),
)

__getattr__ = lookup_in(globals(), NAMES)
