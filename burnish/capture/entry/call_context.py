"""TorchDynamo's state around a call, for the race of whole calls (`burnish/trust/whole_call.py`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch

from burnish.capture.background.frames import DeferredFrames
from burnish.observe.log import CompileLog
from burnish.runtime.graph_capture import wait_for_stream
from burnish.torch_private.dispatch import len_torch_dispatch_stack, peek_interpreter_stack
from burnish.trust.saved_tensor_hooks import hooks_are_active
from burnish.trust.variant import Variant
from burnish.trust.whole_call import Graphs, Surroundings

_LEAST_ALLOWANCE, _SHARE_OF_COMPILE = 0.25, 0.10  # seconds; of what compiling took


class Compiler(Protocol):
    """The part of a FrameCompiler that this module needs."""

    compiles: int
    deferred: DeferredFrames | None

    def variants(self) -> list[Variant]: ...


class EntranceSurroundings(Surroundings):
    def __init__(self, compiler: Compiler, log: CompileLog, is_ordinary: Callable[[], bool]) -> None:
        self._compiler = compiler
        self._log = log
        self._is_ordinary = is_ordinary

    def can_time(self) -> bool:
        deferred = self._compiler.deferred
        if deferred is not None and deferred.is_busy():
            return False
        if len_torch_dispatch_stack() or peek_interpreter_stack() is not None:
            return False
        if hooks_are_active():  # checkpointing counts saved tensors: forward and recomputation must use the same engine
            return False
        if torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing():
            return False
        return self._is_ordinary()

    def exempt(self) -> str:
        """The ranks of a process group would decide differently, each by its own clock."""
        distributed = torch.distributed
        if distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1:
            return "ranks must not decide alone"
        return ""

    def activity(self) -> int:
        return self._compiler.compiles + sum(variant.counts.judgings for variant in self._compiler.variants())

    def synchronise(self, args: tuple[Any, ...]) -> None:
        if torch.cuda.is_initialized():
            here = torch.device("cuda", torch.cuda.current_device())
            for device in {here} | {x.device for x in args if isinstance(x, torch.Tensor) and x.is_cuda}:
                wait_for_stream(device)

    def watching(self) -> Callable[[], Graphs]:
        reached: list[Variant] = []
        ends = [each.noting(reached.append) for each in self._compiler.variants()]

        def end() -> Graphs:
            for each in ends:
                each()
            return _known_of(reached)

        return end

    def allowance(self) -> float:
        return max(_LEAST_ALLOWANCE, _SHARE_OF_COMPILE * sum(self._log.seconds.values()))


def _known_of(reached: list[Variant]) -> Graphs:
    """A variant that is reached twice in a call counts twice."""
    backwards = [_backwards(variant) for variant in reached if variant.facts.kind == "training"]
    gates = [variant.gate_here() for variant in reached]
    return Graphs(
        _seconds([ours for ours, _ in backwards]),
        _seconds([theirs for _, theirs in backwards]),
        _seconds([gate.eager_us if gate is not None else None for gate in gates]),
    )


def _backwards(variant: Variant) -> tuple[float | None, float | None]:
    """The backwards' times in us, of the serving engine and of eager. Where eager serves, the two are equal and their
    value does not matter."""
    gate = variant.gate
    eager = gate.eager_backward_us if gate is not None else None
    if variant.engine == "eager":
        return eager or 0.0, eager or 0.0
    return (gate.compiled_backward_us if gate is not None else None), eager


def _seconds(times_us: list[float | None]) -> float | None:
    known = [us for us in times_us if us is not None]
    return sum(known) * 1e-6 if len(known) == len(times_us) else None
