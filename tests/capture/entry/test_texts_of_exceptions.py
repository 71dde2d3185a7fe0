"""What a caught exception says: its text and arguments are Python's, not Dynamo's."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable
from typing import Any

import pytest
import torch

import burnish

EMPTY: list[int] = []


class Worded(Exception):
    def __str__(self) -> str:
        return "its own words"


class Missing(KeyError):
    pass


def _raise(error: BaseException) -> None:
    raise error


OPERATIONS: dict[str, Callable[[], Any]] = {
    "a key": lambda: {"a": 1}["q"],
    "a key that is popped": lambda: {"a": 1}.pop("q"),
    "an index": lambda: EMPTY[2],
    "a list's item": lambda: [1].remove(5),
    "a tuple's item": lambda: (1,).index(5),
    "a deque's item": lambda: deque(EMPTY).pop(),
    "a number's attribute": lambda: getattr(3, "size"),  # noqa: B009
    "a module's attribute": lambda: getattr(contextlib, "size"),  # noqa: B009
    "a length": lambda: len(3),  # type: ignore[arg-type]
    "the program's KeyError": lambda: _raise(KeyError("q")),
    "the program's OSError": lambda: _raise(OSError(5, "no answer")),
    "the program's ValueError": lambda: _raise(ValueError("q", 2)),
    "a derived KeyError": lambda: _raise(Missing("q")),
    "one with words of its own": lambda: _raise(Worded("q")),
}
SAYS: dict[str, Callable[[BaseException], Any]] = {
    "str": str,
    "repr": repr,
    "formatted": lambda error: f"<{error}>",
    "arguments": lambda error: error.args,
    "returned": lambda error: error,
}


@pytest.mark.parametrize("says", SAYS)
@pytest.mark.parametrize("operation", OPERATIONS)
def test_what_a_caught_exception_says(operation: str, says: str) -> None:
    def function(x: torch.Tensor) -> Any:
        try:
            OPERATIONS[operation]()
        except Exception as error:
            return x + 1, SAYS[says](error)
        return x

    compiled = burnish.compile(function, gate=False)
    x = torch.ones(3)
    assert repr(compiled(x)) == repr(function(x))


def test_what_is_only_caught_is_compiled() -> None:
    table: dict[str, int] = {"a": 2}

    def function(x: torch.Tensor, key: str) -> torch.Tensor:
        with contextlib.suppress(IndexError):
            EMPTY[2]
        try:
            return x * table[key]
        except KeyError:
            return x + 1

    compiled = burnish.compile(function, gate=False)
    x = torch.ones(3)
    assert torch.equal(compiled(x, "a"), function(x, "a")) and torch.equal(compiled(x, "q"), function(x, "q"))
    stats = burnish.stats(compiled)
    assert not stats.graph_breaks and not stats.fallbacks and len(stats.variants) == 2
