"""Arguments for a shadow run: tensors that a call changes are copied, all others are shared.

A captured graph is pure except for the inputs it writes. With copies of those it can run any number of times.
Parameters are never copied unless they are written, because a captured CUDA graph refers to their addresses.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import torch


class CannotCopy(Exception):
    """A written input that does not own plain memory, or has too much of it; the message says which."""


Key = tuple[str, int]  # a device, and an address in it


@dataclass(frozen=True)
class _Place:
    """A tensor's position in its storage."""

    key: Key
    dtype: torch.dtype
    device: torch.device
    start: int  # in bytes
    end: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    requires_grad: bool

    @staticmethod
    def of(tensor: torch.Tensor) -> _Place:
        if not isinstance(tensor, (torch.nn.Parameter, torch.nn.Buffer)) and type(tensor) is not torch.Tensor:
            raise CannotCopy(f"it takes a {type(tensor).__name__}")
        if tensor.layout is not torch.strided or tensor.is_conj() or tensor.is_neg():
            raise CannotCopy("it takes a tensor without plain strides")
        steps = sum((d - 1) * s for d, s in zip(tensor.shape, tensor.stride(), strict=True)) if tensor.numel() else -1
        start = int(tensor.storage_offset()) * tensor.itemsize
        key = str(tensor.device), tensor.untyped_storage().data_ptr() or -id(tensor)
        end = start + (int(steps) + 1) * tensor.itemsize
        shape, strides = tuple(tensor.shape), tensor.stride()
        return _Place(key, tensor.dtype, tensor.device, start, end, shape, strides, tensor.requires_grad)

    def over(self, memory: torch.Tensor, begin: int) -> torch.Tensor:
        """The same view over `memory`, which holds the bytes of the storage from `begin` on."""
        tensor = torch.empty(0, dtype=self.dtype, device=self.device)
        offset = (self.start - begin) // self.dtype.itemsize
        tensor.set_(memory.untyped_storage(), offset, self.shape, self.strides)
        return tensor.requires_grad_() if self.requires_grad else tensor


class SideInputs:
    """`take()` gives the arguments of one more run. Before the real call, the real inputs hold the start values. To use
    it after the real call, call `keep_start()` before it."""

    def __init__(self, args: Sequence[Any], changed: Collection[int], *, detached: bool = False) -> None:
        self._args = list(args)
        self._detached = detached  # leaves of a separate autograd graph, so that no .grad of the caller is changed
        self.devices = devices_of(args)
        if not any(isinstance(args[i], torch.Tensor) for i in changed):
            self._places, self._memory = {}, {}
            return
        places = {i: _Place.of(x) for i, x in enumerate(args) if isinstance(x, torch.Tensor)}
        written = {places[i].key for i in changed if i in places}
        self._places = {i: place for i, place in places.items() if place.key in written}
        self._memory = {key: self._window(key) for key in written}
        size = sum(memory.numel() for memory, _ in self._memory.values())
        if 3 * size > free_bytes(next(iter(self._places.values())).device):
            raise CannotCopy(f"the {size >> 20} MiB that it changes leave no room for copies")

    def _window(self, key: Key) -> tuple[torch.Tensor, int]:
        """The bytes of one storage that the arguments cover, and their start; the whole storage may be a dataset."""
        seen = [(i, place) for i, place in self._places.items() if place.key == key]
        begin = min(place.start for _, place in seen) // 16 * 16
        end = max(place.end for _, place in seen)
        owner = self._args[seen[0][0]]
        window = torch.empty(0, dtype=torch.uint8, device=owner.device)
        window.set_(owner.untyped_storage(), begin, (max(end - begin, 0),), (1,))
        return window, begin

    @property
    def copies_anything(self) -> bool:
        return bool(self._places)

    @property
    def written(self) -> Collection[int]:
        """The inputs that are copied for each run."""
        return self._places.keys()

    def keep_start(self) -> None:
        """Store the current values of the written inputs as start values, and release the inputs themselves."""
        self._memory = {key: (window.clone(), begin) for key, (window, begin) in self._memory.items()}
        for i in self._places:
            self._args[i] = None

    def take(self) -> tuple[Any, ...]:
        fresh = {key: (window.clone(), begin) for key, (window, begin) in self._memory.items()}
        args = list(self._args)
        for i, place in self._places.items():
            args[i] = place.over(*fresh[place.key])
        if self._detached:
            args = [_leaf(x, i in self._places) for i, x in enumerate(args)]
        return tuple(args)

    def changed(self, args: Sequence[Any]) -> list[torch.Tensor]:
        """Of the arguments of a run, those that it may have changed."""
        return [args[i] for i in self._places]


def _leaf(value: Any, is_written: bool) -> Any:
    if not isinstance(value, torch.Tensor) or not value.requires_grad:
        return value
    leaf = value.detach().requires_grad_()
    return leaf.clone() if is_written else leaf  # a leaf itself may not be written in place


def free_bytes(device: torch.device) -> int:
    """The approximate free memory of a device."""
    if device.type == "cuda":
        kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)  # by torch, for tensors to come
        return torch.cuda.mem_get_info(device)[0] + kept
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
