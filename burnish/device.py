"""The properties of a device on which compiler decisions depend: read once, and stored as data.

Decisions read the description that a schedule carries (`Schedule.gpu`), never the device: a program for any GPU can be
made on any machine. `KNOWN` are GPUs that the tests make programs for.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import torch

_KIB, _MIB = 1 << 10, 1 << 20


@dataclass(frozen=True)
class Gpu:
    """Memory is in bytes; `shared_memory` is what one thread block may have of it at most."""

    name: str
    capability: tuple[int, int]
    multiprocessors: int
    shared_memory: int
    l2_cache: int
    bandwidth: float  # bytes a second, from memory
    registers: int = 65536  # of 32 bits, of a multiprocessor

    def __str__(self) -> str:
        major, minor = self.capability
        shared, cache = f"{self.shared_memory / _KIB:.0f} KiB shared", f"L2 {self.l2_cache / _MIB:.0f} MiB"
        speed = f", {self.bandwidth / 1e12:.2f} TB/s" if self.bandwidth else ""
        return f"sm_{major}{minor}, {self.multiprocessors} multiprocessors, {shared}, {cache}{speed}"


H200 = Gpu("NVIDIA H200", (9, 0), 132, 227 * _KIB, 50 * _MIB, 4.8e12)
KNOWN = (
    H200,
    Gpu("NVIDIA H100", (9, 0), 132, 227 * _KIB, 50 * _MIB, 3.35e12),
    Gpu("NVIDIA A100", (8, 0), 108, 163 * _KIB, 40 * _MIB, 2.04e12),
    Gpu("NVIDIA L4", (8, 9), 58, 99 * _KIB, 48 * _MIB, 0.3e12),
    Gpu("NVIDIA GeForce RTX 4090", (8, 9), 128, 99 * _KIB, 72 * _MIB, 1.01e12),
    Gpu("NVIDIA B200", (10, 0), 148, 227 * _KIB, 126 * _MIB, 8.0e12),
)
REFERENCE = H200  # the default target of a schedule that is made on a machine without a GPU


def gpu_of(device: torch.device) -> Gpu:
    """The description of a device; for a device other than a GPU, that of the reference GPU."""
    return _found(device.index or 0) if device.type == "cuda" else REFERENCE


@functools.cache
def _found(index: int) -> Gpu:
    return described(torch.cuda.get_device_properties(index))


def described(properties: Any) -> Gpu:
    """From the result of `torch.cuda.get_device_properties`, which has fewer fields in older versions."""
    # The clock is in kHz, and the bus transfers its bits twice a cycle. Some drivers report neither.
    clock, bits = (getattr(properties, name, 0) for name in ("memory_clock_rate", "memory_bus_width"))
    return Gpu(
        properties.name,
        (properties.major, properties.minor),
        properties.multi_processor_count,
        getattr(properties, "shared_memory_per_block_optin", 0) or 48 * _KIB,
        getattr(properties, "L2_cache_size", 0) or REFERENCE.l2_cache,
        2e3 * clock * bits / 8,
        getattr(properties, "regs_per_multiprocessor", REFERENCE.registers),
    )
