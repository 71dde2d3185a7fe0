"""A backward that frees what its forward saved: held until it has been judged, and no longer."""

from __future__ import annotations

import weakref
from typing import Any

import pytest
import torch

from burnish.trust.backward import WatchedBackward
from burnish.trust.gate import Failure


class Consuming:
    """Doubles its argument; fails before or after it has let go of it, if told to."""

    consumes = True

    def __init__(self) -> None:
        self.fails = ""
        self.freed: list[bool] = []

    def __call__(self, args: list[Any]) -> list[Any]:
        if self.fails == "before":
            raise RuntimeError("before")
        (x,) = args
        seen = weakref.ref(x)
        result = x * 2
        args.clear()
        del x
        self.freed.append(seen() is None)
        if self.fails == "after":
            raise RuntimeError("after")
        return [result]


def watched(program: Consuming, failures: list[Failure]) -> WatchedBackward:
    return WatchedBackward(program, lambda x: [x * 2], failures.append, judged=False, coarsest=torch.float32)


def test_arguments_are_held_for_the_first_call_only() -> None:
    program, failures = Consuming(), []
    backward = watched(program, failures)
    for _ in range(3):
        torch.testing.assert_close(backward([torch.ones(3)])[0], torch.full((3,), 2.0))
    assert program.freed == [False, True, True] and not failures


def test_what_fails_before_anything_is_gone_is_done_over() -> None:
    program, failures = Consuming(), []
    backward = watched(program, failures)
    backward([torch.ones(3)])
    program.fails = "before"
    torch.testing.assert_close(backward([torch.ones(3)])[0], torch.full((3,), 2.0))
    assert len(failures) == 1
    program.fails = "after"
    with pytest.raises(RuntimeError, match="after"):
        backward([torch.ones(3)])
    assert len(failures) == 2
