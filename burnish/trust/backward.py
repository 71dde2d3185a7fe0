"""A compiled backward: compiled when it is first wanted, judged then, and done over with ATen's ops if it fails.

By that time its forward is over and cannot be taken back; so the stand-in is the captured backward graph itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from burnish.trust.gate import Call, Failure
from burnish.trust.referee import Results, judge

Boxed = Callable[[list[Any]], Sequence[Any]]


class WatchedBackward:
    """A boxed callable in the place of `program`. `on_failure` is told why the variant must not go on."""

    _boxed_call = True

    def __init__(
        self, program: Boxed, eager: Call, on_failure: Callable[[Failure], None], *, judged: bool, coarsest: torch.dtype
    ) -> None:
        self._program = program
        self._eager = eager
        self._on_failure = on_failure
        self._coarsest = coarsest
        self._judged = judged  # whether it needs no judging (any more)

    def __call__(self, args: list[Any]) -> Sequence[Any]:
        held = tuple(args)
        try:
            result = self._program(args)
        except Exception as error:
            stand_in: Sequence[Any] = self._eager(*held)  # or what eager raises as well
            self._on_failure(Failure.of(error))
            return stand_in
        if self._judged:
            return result
        self._judged = True
        return self._judge(result, held)

    def _judge(self, result: Sequence[Any], held: tuple[Any, ...]) -> Sequence[Any]:
        try:
            expected: Sequence[Any] = self._eager(*held)
        except Exception:  # no memory, or an op that does not take what tracing said it would: nothing was learnt
            return result
        again = lambda: _tensors(self._eager(*held))  # noqa: E731
        opinion = judge(_tensors(result), _tensors(expected), exact=None, eager_again=again, coarsest=self._coarsest)
        if opinion.is_right:
            return result
        self._on_failure(Failure(f"in the backward, {opinion.wrong}"))
        return expected


def _tensors(values: Sequence[Any]) -> Results:
    return [x for x in values if isinstance(x, torch.Tensor)]
