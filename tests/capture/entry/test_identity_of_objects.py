"""Decisions by which objects are one: noticed when objects become one, or two, after compiling."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import burnish
from burnish.torch_private.versions import is_at_least
from tests.against_eager import served_by_us


class Settings:
    pass


OBJECTS: dict[str, Callable[[], Any]] = {
    "object": Settings,
    "list": lambda: [1, 2],
    "module": nn.Identity,
    "function": lambda: lambda x: x,
    "parameter": lambda: nn.Parameter(torch.ones(2)),
}
QUESTIONS: dict[str, Callable[[Any, Any], bool]] = {
    "is": lambda a, b: a is b,
    "is not": lambda a, b: a is not b,
    "==": lambda a, b: a == b,
    "in a list": lambda a, b: a in [b],
    "in a dict": lambda a, b: a in {b: 1},
    "in a set": lambda a, b: a in {b},
}
ASKED = [
    (question, kind)
    for question in QUESTIONS
    for kind in OBJECTS
    if not (question in ("==", "in a list") and kind in ("list", "parameter"))  # which compare by value
    and not (question in ("in a dict", "in a set") and kind == "list")
    and not (question in ("in a dict", "in a set") and kind == "parameter" and not is_at_least(2, 12))  # limits.md
]


class Deciding(nn.Module):
    def __init__(self, question: Callable[[Any, Any], bool], one: Any, other: Any) -> None:
        super().__init__()
        self.question, self.held = question, {"one": one, "other": other}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2 if self.question(self.held["one"], self.held["other"]) else x * 3


@pytest.mark.parametrize(("question", "kind"), ASKED, ids=str)
@pytest.mark.parametrize("first", ["one", "two"])
def test_objects_that_become_one_or_two(question: str, kind: str, first: str) -> None:
    one, other = OBJECTS[kind](), OBJECTS[kind]()
    eager = Deciding(QUESTIONS[question], one, one if first == "one" else other)
    compiled = burnish.compile(eager)
    x = torch.ones(3)
    assert torch.equal(compiled(x), eager(x))
    eager.held["other"] = other if first == "one" else one
    assert torch.equal(compiled(x), eager(x))


def test_weights_tied_after_compiling() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.last(self.first(x))
            return y * 2 if self.first.weight is self.last.weight else y

    eager = Tied()
    compiled = burnish.compile(eager)
    x = torch.randn(2, 4)
    torch.testing.assert_close(compiled(x), eager(x))
    eager.last.weight = eager.first.weight
    torch.testing.assert_close(compiled(x), eager(x))


def test_a_new_object_in_each_call_compiles_once() -> None:
    kept = Settings()

    def fn(x: torch.Tensor, given: Settings) -> torch.Tensor:
        return x * 2 if given is kept else x * 3

    compiled = burnish.compile(fn)
    x = torch.ones(3)
    for _ in range(4):
        assert torch.equal(compiled(x, Settings()), x * 3)
    served_by_us(compiled, 1)
    assert torch.equal(compiled(x, kept), x * 2)
    served_by_us(compiled, 2)
