"""The bytes that compiled programs hold between calls."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from burnish.stats import MemoryStats


def memory_of(programs: Iterable[Callable[..., Any]]) -> MemoryStats:
    """The sum over programs. A program is a function over a namespace of its own, which has its pool of workspaces
    and its constants; one captured as a CUDA graph also has `pool_bytes()`."""
    arena = constants = pool = 0
    for program in list(programs):
        graphed = getattr(program, "pool_bytes", None)
        pool += graphed() if callable(graphed) else 0
        namespace: Mapping[str, Any] = getattr(getattr(program, "run", program), "__globals__", {})
        if "pool" in namespace and "constants" in namespace:
            arena += namespace["pool"].held_bytes()
            constants += sum(tensor.nbytes for tensor in namespace["constants"].values())
    return MemoryStats(arena, constants, pool)
