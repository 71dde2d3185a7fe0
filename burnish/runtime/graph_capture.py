"""Captures CUDA graphs in a process with other threads.

During a capture, CUDA refuses a device-wide synchronisation from any thread: that thread gets an error, and the capture
may fail. Beginning a capture synchronises the device itself. So a lock serialises captures and our device-wide
synchronisations, and code synchronises on a stream where possible. Objects freed by Python's garbage collector in the
capturing thread (another graph, a pinned tensor) may make calls that a capture forbids, so the collector is disabled
during a capture.
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
    """Synchronise with all streams of the device."""
    with _turn:
        torch.cuda.synchronize(device)


def wait_for_stream(device: torch.device) -> None:
    """Synchronise with this thread's current stream."""
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
