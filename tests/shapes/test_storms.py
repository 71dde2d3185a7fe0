"""Recompile storms are named once, with the line that reads what changes."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import burnish
from burnish.capture.entry.storms import cause_of
from burnish.errors import FallbackWarning, RecompileWarning
from burnish.stats import Recompile


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.count = 0

    def forward(self, x: torch.Tensor, text: str = "", items: tuple[int, ...] | list[int] = ()) -> torch.Tensor:
        return self.linear(x) * len(text) + len(items)


class Counting(Model):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count += 1
        return self.linear(x) * self.count


CALLS: dict[str, Callable[[int], dict[str, Any]]] = {
    "the text `text`": lambda n: {"text": "a" * n},
    "the length of `items`": lambda n: {"items": [1] * n},
}


@pytest.mark.parametrize("what", CALLS)
def test_an_argument_that_changes_each_call_is_named_once(what: str) -> None:
    model = Model()
    compiled = burnish.compile(model)
    x = torch.randn(2, 4)
    with torch.no_grad(), warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for n in range(1, 7):
            torch.testing.assert_close(compiled(x, **CALLS[what](n)), model(x, **CALLS[what](n)))
    storms = [each for each in said if each.category is RecompileWarning]
    assert len(storms) == 1 and what in str(storms[0].message) and "test_storms.py:" in str(storms[0].message)
    assert any(what in notice for notice in burnish.stats(compiled).notices)


def test_a_counter_of_the_module_is_named() -> None:
    compiled = burnish.compile(Counting())

    def calls() -> None:
        for _ in range(6):
            compiled(torch.randn(2, 4))

    with torch.no_grad(), pytest.warns(RecompileWarning, match="`count` of the module.*register_buffer"):
        calls()


def test_a_number_that_becomes_symbolic_is_no_storm() -> None:
    compiled = burnish.compile(lambda x, step: x * step)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("error")
        for step in range(2, 9):
            compiled(torch.ones(3), step)
    assert burnish.stats(compiled).compiles <= 2


def test_the_limit_is_reported_once_and_eager_serves() -> None:
    model = Model()
    compiled = burnish.compile(model)
    x = torch.randn(2, 4)
    with torch.no_grad(), warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for n in range(14):
            torch.testing.assert_close(compiled(x, text="a" * n), model(x, text="a" * n))
    assert sum(each.category is FallbackWarning for each in said) == 1
    stats = burnish.stats(compiled)
    assert [entry.stage for entry in stats.fallbacks] == ["recompile limit"]
    compiles = stats.compiles
    for n in range(20, 24):
        compiled(x, text="a" * n)
    assert burnish.stats(compiled).compiles == compiles


@pytest.mark.parametrize(
    ("reason", "what", "line"),
    [
        ("step == 3   # y = x * step  # model.py:5 in forward", "the number `step`", "model.py:5"),
        ("step == -0.25  # y  # m.py:1 in f", "the number `step`", "m.py:1"),
        ("name == 'it\\'s'  # y  # m.py:2 in f", "the text `name`", "m.py:2"),
        ("len(kwargs) == 3", "the length of `kwargs`", ""),
        ("not names  # if names  # m.py:7 in f", "the length of `names`", "m.py:7"),
        ("list(dict.keys(cfg))[0] == 'a'  # for  # m.py:8 in f", "the order of the keys of `cfg`", "m.py:8"),
        ("target.count == 7  # self.count += 1  # m.py:9 in forward", "the number `count` of the module", "m.py:9"),
    ],
)
def test_reasons(reason: str, what: str, line: str) -> None:
    cause = cause_of(Recompile("f.py", 1, "f", reason))
    assert cause is not None and (cause.what, cause.line) == (what, line) and cause.way_out


@pytest.mark.parametrize(
    "reason",
    [
        "tensor 'x' size mismatch at index 0. expected 2, actual 3",
        "",
        "GLOBAL_STATE changed: grad_mode",
        "___stack0 == 3",
    ],
)
def test_other_reasons_are_no_storm(reason: str) -> None:
    assert cause_of(Recompile("f.py", 1, "f", reason)) is None
