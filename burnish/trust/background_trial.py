"""The gate in a background compile: the compiling thread tries each graph on copies before a call is served by it.

Only tensors that a call could change are copied: its arguments, and tensors that the graph writes. Parameters are
shared; if one was changed during the trial (by an optimiser's step), or a setting of the process (the default dtype),
the trial does not count, and the first call is the trial, as without background compiling. The first call is also the
trial for graphs that draw random numbers, because only calls may advance the generators.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from typing import Any, Protocol

import torch

from burnish.runtime.graph_capture import wait_for_device
from burnish.runtime.host.thread_state import ProcessSettings
from burnish.trust.gate import GraphFacts
from burnish.trust.inputs import SideInputs


class OnTrial(Protocol):
    """The part of a Variant that this module needs."""

    state: Any
    is_provisional: bool
    facts: GraphFacts
    call: Callable[..., Any]

    def retry(self) -> None: ...


Candidate = tuple[OnTrial, Sequence[Any]]
_candidates: ContextVar[list[Candidate] | None] = ContextVar("burnish_candidates", default=None)


@contextlib.contextmanager
def collecting() -> Iterator[list[Candidate]]:
    """While open, graphs compiled in this thread are put into the list, with the inputs they were captured with."""
    found: list[Candidate] = []
    token = _candidates.set(found)
    try:
        yield found
    finally:
        _candidates.reset(token)


def propose(variant: OnTrial, inputs: Sequence[Any]) -> None:
    """Called with every new variant; in a call that waits for its compile, that call will be the trial."""
    found = _candidates.get()
    if found is not None:
        found.append((variant, inputs))


def try_in_background(variant: OnTrial, inputs: Sequence[Any]) -> None:
    """Judge the variant; where that is not possible in this thread, leave it unchanged."""
    if variant.state != "on trial" or variant.facts.stays_in_thread or variant.facts.unjudgeable:
        return
    shared = variant.facts.static - variant.facts.changed
    with contextlib.suppress(Exception):  # the trial of a call will meet the same error, and can report it
        if any(isinstance(x, torch.Tensor) and x.is_cuda for x in inputs):
            wait_for_device()  # the copies may still be pending on the calling thread's stream
        versions, settings = _versions(inputs, shared), ProcessSettings.now()
        side = SideInputs(inputs, [i for i in range(len(inputs)) if i not in shared])
        variant.call(*side.take())
        if variant.is_provisional:
            variant.call(*side.take())
        if (_versions(inputs, shared), ProcessSettings.now()) != (versions, settings):
            variant.retry()


def _versions(inputs: Sequence[Any], positions: frozenset[int]) -> list[int]:
    tensors = [inputs[i] for i in sorted(positions) if isinstance(inputs[i], torch.Tensor)]
    return [0 if tensor.is_inference() else tensor._version for tensor in tensors]
