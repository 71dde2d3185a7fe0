"""What the race of whole calls (`burnish/trust/whole_call.py`) must know of an entrance: TorchDynamo's side of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch

from burnish.capture.deferred import DeferredFrames
from burnish.observe.log import CompileLog
from burnish.trust.variant import Variant
from burnish.trust.whole_call import Backwards, Surroundings

_LEAST_ALLOWANCE, _SHARE_OF_COMPILE = 0.25, 0.10  # seconds; of what compiling took


class Compiler(Protocol):
    """Of a FrameCompiler, what is needed here."""

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
        if torch._C._len_torch_dispatch_stack() or torch._C._functorch.peek_interpreter_stack() is not None:
            return False
        if torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing():
            return False
        return self._is_ordinary()

    def activity(self) -> int:
        return self._compiler.compiles + sum(variant.judgings for variant in self._compiler.variants())

    def synchronise(self, args: tuple[Any, ...]) -> None:
        if torch.cuda.is_initialized():
            for device in {x.device for x in args if isinstance(x, torch.Tensor) and x.is_cuda}:
                torch.cuda.synchronize(device)
            torch.cuda.synchronize()

    def watching(self) -> Callable[[], Backwards | None]:
        reached: list[Variant] = []
        ends = [each.noting(reached.append) for each in self._compiler.variants() if each.facts.kind == "training"]

        def end() -> Backwards | None:
            for each in ends:
                each()
            return _backwards(reached)

        return end

    def allowance(self) -> float:
        return max(_LEAST_ALLOWANCE, _SHARE_OF_COMPILE * sum(self._log.seconds.values()))


def _backwards(reached: list[Variant]) -> Backwards | None:
    """A variant that is reached twice in a call has its backward counted twice, too."""
    compiled = eager = 0.0
    for variant in reached:
        gate = variant.gate
        if gate is None or gate.eager_backward_us is None or gate.compiled_backward_us is None:
            return None
        eager += gate.eager_backward_us
        compiled += gate.eager_backward_us if variant.engine == "eager" else gate.compiled_backward_us
    return Backwards(compiled * 1e-6, eager * 1e-6)
