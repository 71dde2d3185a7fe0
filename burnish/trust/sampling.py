"""Sampling: compares some live calls with eager, because a graph that passed the gate can fail later on other data.

A sampled call copies its inputs before and its results after the program. A low-priority thread runs eager on the
copies and compares, with float64 as the referee. Three cases are compared within the call: a graph that draws random
numbers, because the generator belongs to the caller's thread; a graph with forward mode, which only one thread can use
at a time; and, on a CPU, a result with NaNs or infinities, which is cheap to detect. If such a result is wrong, the
caller gets eager's. Samples that the thread has no time for are dropped and counted.
"""

from __future__ import annotations

import contextlib
import math
import os
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from burnish.runtime.host.thread_state import CannotSnapshot, ProcessSettings, ThreadState
from burnish.runtime.process import at_exit, give_way, has_started
from burnish.trust.counts import Counts, Suspicions
from burnish.trust.gate import Call, Failure, GraphFacts
from burnish.trust.inputs import CannotCopy, RandomState, SideInputs, devices_of
from burnish.trust.referee import InFloat64, Opinion, Results, judge

_MOST_WAITING = 4
_FINGERPRINT = 64
_MOST_DOUBTS = 8


class Watched(Protocol):
    """The part of a Variant that this module needs."""

    facts: GraphFacts
    eager: Call
    counts: Counts
    suspicions: Suspicions
    knows_infinity: bool

    def compiled(self) -> Call | None: ...

    def took(self, seconds: float) -> None: ...

    def roll_back(self, failure: Failure) -> None: ...


def gaps(share: float, seed: int) -> Callable[[], int]:
    """The number of calls until the next sample: random, so that sampling does not align with a period of the
    caller's."""
    longest = max(1, round(2 / share) - 1)
    draw = random.Random(seed)
    return lambda: draw.randint(1, longest)


def sampled(variant: Watched, run: Callable[[Sequence[Any]], Any], args: Sequence[Any]) -> Any:
    """`run(args)`, and a comparison with eager."""
    if torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing():
        return run(args)  # the caller captures a CUDA graph: copies would become part of it
    try:
        sample = Sample(variant, args)
    except (CannotCopy, CannotSnapshot, torch.OutOfMemoryError):
        variant.counts.samples_dropped += 1
        return run(args)
    start = time.perf_counter()
    result = run(args)
    if not any(isinstance(x, torch.Tensor) and x.is_cuda for x in args):  # the call does not wait to read GPU times
        variant.took(time.perf_counter() - start)
    sample.finish(result, args)
    infinite = not variant.knows_infinity and _has_infinities(result)
    if variant.facts.stays_in_thread or infinite:
        if not _is_right(sample):
            return sample.done_over(args)
        variant.knows_infinity |= infinite  # eager's has them, too: the next such call need not be compared at once
    elif not comparer.submit(sample):
        variant.counts.samples_dropped += 1
    return result


def _is_right(sample: Sample) -> bool:
    try:
        return sample.compare()
    except Exception:  # e.g. no memory for eager beside the call: no verdict
        sample.variant.counts.samples_dropped += 1
        return True


def _has_infinities(result: Any) -> bool:
    """Or NaNs. Not checked on a GPU, because the call would have to synchronise."""
    floats = (x.detach() for x in _tensors(result) if x.is_floating_point() and x.device.type == "cpu")
    return any(not math.isfinite(float(x.sum(dtype=torch.float64))) for x in floats)


@dataclass(frozen=True)
class _Cuda:
    """One CUDA device: copies are made on the caller's stream; the comparison runs after them on its own stream."""

    copied: torch.cuda.Event
    stream: torch.cuda.Stream


class Sample:
    """One live call."""

    def __init__(self, variant: Watched, args: Sequence[Any]) -> None:
        self.variant = variant
        facts = variant.facts
        if facts.unjudgeable:
            raise CannotCopy(facts.unjudgeable)
        self._state, self._settings = ThreadState.here(), ProcessSettings.now()
        self._shared = sorted(facts.static - facts.changed)  # parameters: too many to copy, and rarely changed
        copied = [i for i in range(len(args)) if i not in facts.static or i in facts.changed]
        self._inputs = SideInputs(args, copied)
        self._inputs.keep_start()
        self._fixed = [args[i] for i in self._shared if isinstance(args[i], torch.Tensor)]
        self._weights, self._layouts = _fingerprints(self._fixed), _layouts(self._fixed)
        self._random = RandomState(devices_of(args)) if facts.draws else None
        self._ours: Results = []
        self._cuda: list[_Cuda] = []

    def finish(self, result: Any, args: Sequence[Any]) -> None:
        """Right after the call: copy its results and changed inputs before they change again."""
        self._ours = [x.detach().clone() for x in (*_tensors(result), *self._changed(args))]
        for device in {d for d in (*self._inputs.devices, *devices_of(self._ours)) if d.type == "cuda"}:
            with torch.cuda.device(device):
                event = torch.cuda.Event()
                event.record(torch.cuda.current_stream(device))
            self._cuda.append(_Cuda(event, torch.cuda.Stream(device)))

    def _changed(self, args: Sequence[Any]) -> Results:
        positions = sorted(self.variant.facts.changed)
        return [args[i] for i in positions if isinstance(args[i], torch.Tensor)]

    def compare(self) -> bool:
        """Whether the call was right, or not shown to be wrong."""
        after = RandomState(self._inputs.devices) if self._random is not None else None
        try:
            recording = nullcontext() if self.variant.facts.differentiates else torch.no_grad()
            with self._state.entered(), recording, self._on_own_streams():
                wrong = self._is_wrong()
        finally:
            if after is not None:
                after.restore()
        self.variant.counts.samples += 1
        return not wrong

    def _is_wrong(self) -> bool:
        opinion = self._opinion(self._ours)
        if not opinion.is_right and self._is_confirmed():
            self.variant.roll_back(Failure(f"a sampled call: {opinion.wrong}"))
            return True
        if opinion.doubt and not self._weights_changed():
            self._doubt(opinion.doubt)
        else:
            self.variant.suspicions.doubts = max(0, self.variant.suspicions.doubts - 1)
        return False

    def done_over(self, args: Sequence[Any]) -> Any:
        """Repeat the call in eager, from the same inputs, with the same random numbers."""
        if self._random is not None:
            self._random.restore()
        start = self._inputs.take()
        with torch.no_grad():
            for i in sorted(self.variant.facts.changed):
                if isinstance(args[i], torch.Tensor):
                    args[i].copy_(start[i])
        return self.variant.eager(*args)

    def _doubt(self, what: str) -> None:
        """In half types, a single error of one percent may be rounding; the same error in several samples is not."""
        self.variant.suspicions.doubts += 1
        if self.variant.suspicions.doubts >= _MOST_DOUBTS:
            self.variant.roll_back(Failure(f"in {self.variant.suspicions.doubts} sampled calls, {what}"))

    @contextlib.contextmanager
    def _on_own_streams(self) -> Iterator[None]:
        if self._random is not None:  # in the call, on its own stream
            yield
            return
        with contextlib.ExitStack() as streams:
            for each in self._cuda:
                each.stream.wait_event(each.copied)
                streams.enter_context(torch.cuda.stream(each.stream))
            yield
            for each in self._cuda:
                each.stream.synchronize()  # before anything it reads is let go

    def _opinion(self, ours: Results) -> Opinion:
        facts = self.variant.facts
        exact = None if facts.has_no_referee else self._in_float64
        again = lambda: self._run(self.variant.eager)  # noqa: E731
        return judge(ours, again(), exact=exact, eager_again=again, coarsest=facts.coarsest, exactness=facts.exactness)

    def _is_confirmed(self) -> bool:
        """Parameters and the process's settings are shared, and may have changed since the call. Then the comparison
        does not count, and both engines run again. Settings may also have changed while eager ran, and be what they
        were again: hence eager runs twice before a graph is rolled back."""
        if not self._weights_changed():
            return self._settings_hold() and not self._opinion(self._ours).is_right and self._settings_hold()
        call = self.variant.compiled()
        if call is None or self._are_others():
            return False  # rolled back already, or made for other weights: no guard protects the program here
        try:
            self._weights = _fingerprints(self._fixed)
            wrong = not self._opinion(self._run(call)).is_right
        except Exception:
            return True
        return wrong and not self._weights_changed() and self._settings_hold()

    def _are_others(self) -> bool:
        """Whether the layout of the weights has changed since the call; the compiled code depends on it."""
        return self._layouts != _layouts(self._fixed)

    def _weights_changed(self) -> bool:
        return not all(map(torch.equal, self._weights, _fingerprints(self._fixed)))

    def _settings_hold(self) -> bool:
        return self._settings == ProcessSettings.now()

    def _run(self, call: Call, wide: InFloat64 | None = None) -> Results:
        args = self._inputs.take()
        if wide is not None:
            args = wide.arguments(args, self._inputs.written)
        if self._random is not None:
            self._random.restore()
        with wide or nullcontext():
            result = call(*args)
        return [x.detach() for x in (*_tensors(result), *self._changed(args))]

    def _in_float64(self, wide: InFloat64) -> Results:
        return self._run(self.variant.eager, wide)


def _layouts(tensors: Results) -> list[tuple[Any, ...]]:
    return [(x.dtype, x.device, x.shape, x.stride()) for x in tensors]


def _fingerprints(tensors: Results) -> Results:
    """A few elements of each: an optimiser or a load changes all weights. (Version counters do not suffice: a write to
    `.data` does not advance them.)"""
    return [x.detach().reshape(-1)[:: max(1, x.numel() // _FINGERPRINT)].clone() for x in tensors]


def _tensors(value: Any) -> Results:
    return [x for x in (value if isinstance(value, (tuple, list)) else (value,)) if isinstance(x, torch.Tensor)]


class Comparer:
    """One thread for the process, started with the first sample and again after a fork."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._waiting: deque[Sample] = deque()
        self._busy = False
        self._ending = False
        self._process = 0

    def submit(self, sample: Sample) -> bool:
        """False if the queue is full, or there is no thread: the caller does not wait."""
        with self._changed:
            if self._ending or len(self._waiting) >= _MOST_WAITING:
                return False
            if self._process != os.getpid() and not self._has_started():
                return False
            self._waiting.append(sample)
            self._changed.notify_all()
            return True

    def _has_started(self) -> bool:
        self._busy = False
        self._waiting.clear()
        if not has_started(threading.Thread(target=self._work, name="burnish-comparer", daemon=True)):
            return False  # the next sample tries again
        self._process = os.getpid()
        at_exit(self.end)
        return True

    def _work(self) -> None:
        give_way(threading.get_native_id())
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._ending)
                if self._ending:
                    return
                sample, self._busy = self._waiting.popleft(), True
            try:
                sample.compare()
            except Exception:  # e.g. no memory for eager: no verdict
                sample.variant.counts.samples_dropped += 1
            finally:
                del sample
                with self._changed:
                    self._busy = False
                    self._changed.notify_all()

    def forget(self, variants: Collection[Watched]) -> None:
        """Drop the samples of these that wait: each keeps its variant's program and copies of a call's tensors."""
        with self._changed:
            self._waiting = deque(each for each in self._waiting if each.variant not in variants)
            self._changed.notify_all()

    def settle(self, timeout: float | None = None) -> bool:
        """Wait until every sample taken so far is compared."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._waiting and not self._busy, timeout)

    def end(self) -> None:
        with self._changed:
            self._ending = True
            self._waiting.clear()
            self._changed.notify_all()
            self._changed.wait_for(lambda: not self._busy, 10.0)


comparer = Comparer()


def _after_fork() -> None:
    comparer._changed = threading.Condition()  # the parent's thread may have held it


os.register_at_fork(after_in_child=_after_fork)
