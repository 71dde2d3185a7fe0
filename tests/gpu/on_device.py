"""What the GPU tests share. Programs are used as compiled: the gate, which might let eager serve, is switched off."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import torch

import burnish

# Tests that need no more than some device can be tried on a CPU while they are written.
DEVICE = os.environ.get("BURNISH_TEST_DEVICE", "cuda")
NO_GATE: dict[str, Any] = {"gate": False, "verify": "off"}


def compiled(fn: Any, **settings: Any) -> Any:
    return burnish.compile(fn, **NO_GATE, **settings)


def graphed(fn: Any, **options: Any) -> Any:
    """Compiled, and captured as CUDA graphs."""
    return compiled(fn, options={"cuda_graphs": True, **options})


def notices(target: Any) -> dict[str, int]:
    return dict(burnish.stats(target).notices)


def captured(target: Any) -> int:
    return notices(target).get("CUDA graph captured", 0)


def randn(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, device=DEVICE, dtype=dtype)


def calls_agree(
    ours: Callable[..., Any], theirs: Callable[..., Any], make: Callable[[], tuple[Any, ...]], n: int = 4
) -> None:
    """The same results as eager's, in calls with arguments of their own; earlier results stay as they were."""
    kept = []
    for _ in range(n):
        args = make()
        kept.append((ours(*args), theirs(*args)))
    for found, expected in kept:
        torch.testing.assert_close(found, expected)
