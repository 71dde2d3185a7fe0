"""The random numbers of a run: every generator that a model may draw from, seeded, put back, and looked at.

Two runs can only be compared if both draw the same numbers, so both start from the same state: torch's generators on
the CPU and on every GPU, Python's `random`, and numpy's where numpy has been imported.
"""

from __future__ import annotations

import contextlib
import random
import sys
from collections.abc import Iterator
from typing import Any

import torch

SEED = 20240531


@contextlib.contextmanager
def same_draws(seed: int = SEED) -> Iterator[None]:
    """Start from `seed`; the caller's generators are as they were afterwards."""
    python, numpy = random.getstate(), _numpy_random()
    numpy_state = numpy.get_state() if numpy is not None else None
    with torch.random.fork_rng(devices=_gpus()):
        torch.manual_seed(seed)
        random.seed(seed)
        if numpy is not None:
            numpy.seed(seed)
        try:
            yield
        finally:
            random.setstate(python)
            if numpy is not None:
                numpy.set_state(numpy_state)


def generators() -> tuple[Any, ...]:
    """Where every generator stands; two of these compare equal if all stand at the same place."""
    devices = [torch.cuda.get_rng_state(index) for index in _gpus()]
    states: list[Any] = [bytes(state.numpy().tobytes()) for state in (torch.get_rng_state(), *devices)]
    states.append(random.getstate())
    if (numpy := _numpy_random()) is not None:
        name, keys, *rest = numpy.get_state()
        states.append((name, keys.tobytes(), *rest))
    return tuple(states)


def _gpus() -> list[int]:
    return list(range(torch.cuda.device_count())) if torch.cuda.is_available() else []


def _numpy_random() -> Any:
    """numpy's global generator, which nobody has drawn from before it was imported."""
    return getattr(sys.modules.get("numpy"), "random", None)
