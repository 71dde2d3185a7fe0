"""Compares many tensors' addresses at once: reading each from Python costs as much as a kernel launch."""

from __future__ import annotations

from collections.abc import Callable

import torch

from burnish.runtime.host.extension import host_if_built
from burnish.torch_private import dynamo
from burnish.torch_private.cuda import tensors_data_ptrs_at_indices_equal

Same = Callable[[list[torch.Tensor], list[int], list[int]], bool]


# (tensors, addresses, positions): whether each tensor k of `positions` begins at addresses[k]. Torch has it for its
# own CUDA graphs, where it was built for CUDA.
same_addresses: Same = tensors_data_ptrs_at_indices_equal  # type: ignore[assignment]


def still_at(addresses: list[int], positions: list[int]) -> Callable[[list[torch.Tensor]], bool]:
    """A function that compares as `same_addresses` does, with these; some five times as fast, if C does it."""
    host = host_if_built()
    if host is not None:
        compare: Callable[[list[torch.Tensor]], bool] = host.Addresses(positions, addresses)
        return compare
    known = list(addresses)
    return lambda tensors: same_addresses(tensors, known, positions)


def stay(tensor: torch.Tensor) -> None:
    """Promise that the tensor stays where it is: a CUDA graph reads and writes it in place."""
    dynamo.mark_static_address(tensor)
