"""The share of a step inside and outside the model, which bounds the gain of compiling (Amdahl's law)."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from burnish.tools.measure import quantile
from burnish.tools.targets import Target

LEAST_STEPS = 5


@dataclass(frozen=True)
class StepShare:
    """One step of the user's program in eager, in seconds: medians over `steps` steps."""

    steps: int
    total: float
    data: float  # fetching the batch
    model: float  # inside the model (and, in training, backward)
    has_data: bool
    note: str | None = None

    @property
    def other(self) -> float:
        """Python and everything else in the step, around the model."""
        return max(0.0, self.total - self.data - self.model)

    @property
    def model_fraction(self) -> float:
        return min(1.0, self.model / self.total) if self.total > 0 else 1.0

    @property
    def best_gain(self) -> float:
        """How many times faster a step would be if the model took no time at all."""
        outside = 1 - self.model_fraction
        return float("inf") if outside <= 0 else 1 / outside

    def gain(self, speedup: float) -> float:
        """How many times faster a step is with a model that is `speedup` times faster."""
        return 1 / ((1 - self.model_fraction) + self.model_fraction / speedup)


def measure_share(
    target: Target,
    *,
    seconds: float,
    synchronize: Callable[[], None] = lambda: None,
    clock: Callable[[], float] = time.perf_counter,
) -> StepShare | None:
    """Run the target's own loop in eager for `seconds`; None where it has none."""
    pipeline = target.pipeline
    if pipeline is None:
        return None
    stopwatch = _Stopwatch(synchronize, clock)
    totals: list[float] = []
    fetches: list[float] = []
    inside: list[float] = []
    with target.grad_mode(), stopwatch.on(target) as model:
        batches = pipeline.batches()
        begin = clock()
        while len(totals) < LEAST_STEPS + 1 or clock() - begin < seconds:
            stopwatch.seconds = 0.0
            start = clock()
            batch = next(batches, _END)
            if batch is _END:
                break
            fetched = clock()
            result = pipeline.run(model, batch)
            if pipeline.step is None and target.kind == "train":
                result.backward()
            synchronize()
            totals.append(clock() - start)
            fetches.append(fetched - start)
            inside.append(stopwatch.seconds)
    if len(totals) > 1:  # the first step fills caches and starts loader processes
        totals, fetches, inside = totals[1:], fetches[1:], inside[1:]
    if not totals:
        return None
    return StepShare(
        steps=len(totals),
        total=quantile(totals, 0.5),
        data=quantile(fetches, 0.5) if pipeline.data is not None else 0.0,
        model=quantile(inside, 0.5),
        has_data=pipeline.data is not None,
    )


_END = object()


class _Stopwatch:
    """Adds up the time inside the model; a model that calls itself is counted once."""

    def __init__(self, synchronize: Callable[[], None], clock: Callable[[], float]) -> None:
        self.seconds = 0.0
        self._synchronize = synchronize
        self._clock = clock
        self._depth = 0
        self._begin = 0.0

    def enter(self, *unused: Any) -> None:
        if self._depth == 0:
            self._synchronize()  # what was queued before the model is not the model's
            self._begin = self._clock()
        self._depth += 1

    def leave(self, *unused: Any) -> None:
        self._depth -= 1
        if self._depth == 0:
            self._synchronize()
            self.seconds += self._clock() - self._begin

    def around(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **kwargs: Any) -> Any:
            self.enter()
            try:
                return function(*args, **kwargs)
            finally:
                self.leave()

        return timed

    @contextlib.contextmanager
    def on(self, target: Target) -> Iterator[Callable[..., Any]]:
        """The target's model, timed while inside. A module keeps its identity: hooks do it."""
        backward = torch.autograd.backward
        hooks: list[Any] = []
        model = target.model
        if isinstance(model, torch.nn.Module):
            hooks = [
                model.register_forward_pre_hook(self.enter, prepend=True),
                model.register_forward_hook(self.leave, always_call=True),
            ]
        else:
            model = self.around(model)
        if target.kind == "train":  # Tensor.backward calls this function; there is no hook for the whole of it
            torch.autograd.backward = self.around(backward)
        try:
            yield model
        finally:
            torch.autograd.backward = backward
            for hook in hooks:
                hook.remove()
