"""Host overhead of a captured call, and the overhead of eager that a captured graph saves; in microseconds."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import Any

import torch

from burnish.torch_private import dynamo

_CALLS = 50
_ROUNDS = 5


def guards_us(guard_manager: Any, frame_locals: Any) -> float:
    """One check of a compiled frame's guards. It has no side effects."""
    return _fastest(lambda: guard_manager.check(frame_locals), calls=4)


@functools.cache
def way_in_us() -> float:
    """The overhead of our entrance, Dynamo's frame evaluation, and its wrapper around a compiled graph. The wrapper can
    be measured separately; it is less than half of the total."""
    nothing = dynamo.disable(lambda: None)
    return 2.5 * _fastest(nothing)


@functools.cache
def module_call_us() -> float:
    """From a module's `__call__` to its `forward`."""
    module, argument = torch.nn.Identity(), torch.zeros(1)
    forward = module.forward
    return max(0.0, _fastest(lambda: module(argument)) - _fastest(lambda: forward(argument)))


def _fastest(call: Callable[[], Any], calls: int = _CALLS) -> float:
    best = float("inf")
    for _ in range(_ROUNDS):
        start = time.perf_counter()
        for _ in range(calls):
            call()
        best = min(best, time.perf_counter() - start)
    return best / calls * 1e6
