"""Arguments for a run beside the real one: what a call changes is copied, everything else is shared.

A captured graph is pure but for the inputs it writes, so that with those copied it can be run as often as one likes.
Parameters are never copied unless they are written: a captured CUDA graph knows them by their address.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from typing import Any

import torch


class CannotCopy(Exception):
    """A changed input that has no plain memory of its own, or too much of it; the text says which."""


class SideInputs:
    """`take()` gives the arguments of one more run. Until the real call is made, the real inputs hold what to
    start from; after it, `keep_start()` must have been asked for before."""

    def __init__(self, args: Sequence[Any], changed: Collection[int], *, detached: bool = False) -> None:
        self._args = tuple(args)
        self._detached = detached  # leaves of an autograd graph of their own, so that nobody's .grad is touched
        written = {_storage_key(args[i]) for i in changed if isinstance(args[i], torch.Tensor)}
        self._positions = [i for i, x in enumerate(args) if isinstance(x, torch.Tensor) and _storage_key(x) in written]
        self._sources = {_storage_key(args[i]): args[i].untyped_storage() for i in self._positions}
        size = sum(source.nbytes() for source in self._sources.values())
        if size and 3 * size > free_bytes(self._args[self._positions[0]].device):
            raise CannotCopy(f"the {size >> 20} MiB that it changes leave no room for copies")

    @property
    def copies_anything(self) -> bool:
        return bool(self._sources)

    def keep_start(self) -> None:
        """From now on, start from what the changed inputs hold at this moment."""
        self._sources = {key: source.clone() for key, source in self._sources.items()}

    def take(self) -> tuple[Any, ...]:
        fresh = {key: source.clone() for key, source in self._sources.items()}
        args = list(self._args)
        for i in self._positions:
            args[i] = _over(fresh[_storage_key(self._args[i])], self._args[i])
        if self._detached:
            args = [_leaf(x, i in self._positions) for i, x in enumerate(args)]
        return tuple(args)

    def changed(self, args: Sequence[Any]) -> list[torch.Tensor]:
        """Of arguments that went through a run: those it may have changed."""
        return [args[i] for i in self._positions]


def _storage_key(tensor: torch.Tensor) -> tuple[str, int]:
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer) and not isinstance(
        tensor, (torch.nn.Parameter, torch.nn.Buffer)
    ):
        raise CannotCopy(f"it takes a {type(tensor).__name__}")
    if tensor.layout is not torch.strided or tensor.is_conj() or tensor.is_neg():
        raise CannotCopy("it takes a tensor without plain strides")
    return str(tensor.device), tensor.untyped_storage().data_ptr() or -id(tensor)


def _over(storage: torch.UntypedStorage, like: torch.Tensor) -> torch.Tensor:
    tensor = torch.empty(0, dtype=like.dtype, device=like.device)
    tensor.set_(storage, like.storage_offset(), like.shape, like.stride())
    return tensor.requires_grad_() if like.requires_grad else tensor


def _leaf(value: Any, is_written: bool) -> Any:
    if not isinstance(value, torch.Tensor) or not value.requires_grad:
        return value
    leaf = value.detach().requires_grad_()
    return leaf.clone() if is_written else leaf  # a leaf itself may not be written in place


def free_bytes(device: torch.device) -> int:
    """Memory that could be had on a device now, roughly."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    try:
        with open("/proc/meminfo") as file:
            for line in file:
                if line.startswith("MemAvailable:"):
                    return int(line.split()[1]) << 10
    except OSError:
        pass
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError):
        return 1 << 62


class RandomState:
    """The generators that eager's ops draw from, so that two runs draw the same numbers."""

    def __init__(self, devices: Collection[torch.device]) -> None:
        self._cuda = sorted({d.index or 0 for d in devices if d.type == "cuda"})
        self._cpu_state = torch.get_rng_state()
        self._cuda_states = [torch.cuda.get_rng_state(i) for i in self._cuda]

    def restore(self) -> None:
        torch.set_rng_state(self._cpu_state)
        for i, state in zip(self._cuda, self._cuda_states, strict=True):
            torch.cuda.set_rng_state(state, i)


def devices_of(args: Sequence[Any]) -> set[torch.device]:
    return {x.device for x in args if isinstance(x, torch.Tensor)}
