"""Capturing CUDA graphs in a process that does other things, too.

While a thread captures, CUDA refuses to wait for the whole device, whichever thread asks: who asks gets an error, and
the capture may be lost. Beginning a capture waits like that itself. So captures take turns, device-wide waits of ours
take turns with them, and whoever can, waits for a stream instead. What Python's garbage collector lets go in the
capturing thread (another graph, a pinned tensor) may call what is refused in a capture, so it waits as well.
"""

from __future__ import annotations

import contextlib
import gc
import threading
from collections.abc import Iterator
from typing import Any

import torch

_turn = threading.RLock()  # no lock of ours is waited for while it is held


@contextlib.contextmanager
def capturing(graph: Any, **settings: Any) -> Iterator[None]:
    """`torch.cuda.graph`, while no other thread of ours captures or waits for the device."""
    with _turn, _no_collections(), torch.cuda.graph(graph, capture_error_mode="thread_local", **settings):
        yield


def wait_for_device(device: torch.device | None = None) -> None:
    """For all that is under way on it, on whatever stream."""
    with _turn:
        torch.cuda.synchronize(device)


def wait_for_stream(device: torch.device) -> None:
    """For what was launched on the stream that is current in this thread."""
    torch.cuda.current_stream(device).synchronize()


@contextlib.contextmanager
def _no_collections() -> Iterator[None]:
    were_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if were_on:
            gc.enable()
