"""A compiled backward: compiled and judged at its first call, and repeated with ATen's ops if it fails.

By then its forward is over and cannot be repeated in eager. So the fallback is the captured backward graph itself.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch

from burnish.runtime.signals import is_handlers_own
from burnish.trust.distance import Nearness
from burnish.trust.eager_interpreter import Handed
from burnish.trust.gate import Call, Failure
from burnish.trust.inputs import RandomState, devices_of
from burnish.trust.record import GateStats
from burnish.trust.referee import ROOM, InFloat64, Opinion, Results, first_look, judge, rounding_beside
from burnish.trust.stored_verdicts import Verdicts

Boxed = Callable[[list[Any]], Sequence[Any]]
# Runs eager's form of the backward, and passes on each result once: whole, or in chunks along a dimension from a start
# index. Each comes with the result of a second run, made within a context.
Chunked = Callable[[Sequence[Any], Handed, AbstractContextManager[Any] | None], None]


class WatchedBackward:
    """A boxed callable in the place of `program`. `on_failure` is told why the variant must not go on."""

    _boxed_call = True

    def __init__(
        self,
        program: Boxed,
        eager: Call,
        on_failure: Callable[[Failure], None],
        *,
        judged: bool,
        draws: bool = False,
        coarsest: torch.dtype,
        chunked: Chunked | None = None,
        verdicts: Verdicts | None = None,
        spent: Callable[[float], None] = lambda seconds: None,
    ) -> None:
        """`draws`: the graph draws random numbers, so compared runs must start from the same generator state.
        `chunked` is `eager` for a comparison without memory for a second set of gradients. `spent` is called with the
        seconds that judging took."""
        self._draws = draws
        self._program = program
        self._eager = eager
        self._chunked = chunked
        self._on_failure = on_failure
        self._coarsest = coarsest
        self._spent = spent
        self._verdicts = None if judged else verdicts
        # Whether it needs no judging (any more).
        self._judged = judged or (verdicts is not None and _passed(verdicts))

    def __call__(self, args: list[Any]) -> Sequence[Any]:
        if self._judged and getattr(self._program, "consumes", False):
            return self._run_without_holding(args)
        held = tuple(args)
        before = RandomState(devices_of(args)) if self._draws and not self._judged else None
        try:
            result = self._program(args)
        except Exception as error:
            if is_handlers_own(error):
                raise
            stand_in: Sequence[Any] = self._eager(*held)  # or what eager raises as well
            self._fail(Failure.of(error))
            return stand_in
        if self._judged:
            return result
        self._judged = True
        start = time.perf_counter()
        after = RandomState(devices_of(held)) if before is not None else None
        try:
            return self._judge(result, held, before)
        finally:
            if after is not None:
                after.restore()
            self._spent(time.perf_counter() - start)

    def _run_without_holding(self, args: list[Any]) -> Sequence[Any]:
        """Saved tensors take most of the memory, so they are not held until the end only to allow a restart in eager.
        Once some of them are freed, a failure is raised to the caller, as in eager."""
        try:
            return self._program(args)
        except Exception as error:
            if is_handlers_own(error):
                raise
            if not args:
                self._fail(Failure.of(error))
                raise
            stand_in: Sequence[Any] = self._eager(*args)
            self._fail(Failure.of(error))
            return stand_in

    def _fail(self, failure: Failure) -> None:
        if self._verdicts is not None:
            self._verdicts.forget()
        self._on_failure(failure)

    def _judge(self, result: Sequence[Any], held: tuple[Any, ...], before: RandomState | None) -> Sequence[Any]:
        def eager() -> Sequence[Any]:
            if before is not None:
                before.restore()
            found: Sequence[Any] = self._eager(*held)
            return found

        opinion, expected = self._look(result, held) if before is None else None, result
        if opinion is None:
            try:
                expected = eager()
            except Exception:  # no memory, or an op that rejects the traced arguments: no verdict
                return result
            opinion = judge(
                _tensors(result),
                _tensors(expected),
                exact=None if before is not None else lambda wide: self._in_float64(held, wide),
                eager_again=lambda: _tensors(eager()),
                coarsest=self._coarsest,
                room=ROOM,
            )
        if opinion.is_right:
            if self._verdicts is not None:
                self._verdicts.keep("backward", _as_stats(opinion))
            return result
        self._fail(Failure(f"in the backward, {opinion.wrong}"))
        return expected

    def _in_float64(self, held: tuple[Any, ...], wide: InFloat64) -> Results:
        with wide:
            return _tensors(self._eager(*wide.arguments(held, written=())))

    def _look(self, result: Sequence[Any], held: tuple[Any, ...]) -> Opinion | None:
        """Compare eager's results one by one; None if they must all exist at the same time."""
        chunked, self._chunked = self._chunked, None  # which is needed once
        if chunked is None:
            return None
        near = Nearness(result)
        try:
            chunked(held, near.see, rounding_beside(self._coarsest))
        except Exception:
            return None
        return first_look(near)


def _passed(verdicts: Verdicts) -> bool:
    return verdicts.passed("backward", compared=True, raced=False) is not None


def _as_stats(opinion: Opinion) -> GateStats:
    return GateStats(None, None, 0.0, 0.0, 0, opinion.error, opinion.eager_error, 0.0, 0.0)


def _tensors(values: Sequence[Any]) -> Results:
    return [x for x in values if isinstance(x, torch.Tensor)]
