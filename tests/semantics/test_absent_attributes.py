"""Attributes and keys that were not there when a function was compiled, and that are set or taken away later."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import burnish

FORCED = {"gate": False, "verify": "off"}
SETTINGS = types.ModuleType("settings")


def marked() -> None:
    """A function that has attributes."""


class Answers:
    def __getattr__(self, name: str) -> float:
        return 1.0


class Part:
    pass


class Plain:
    def __init__(self) -> None:
        self.part, self.answers, self.given = Part(), Answers(), {"a": 1.0}


class Module(nn.Module, Plain):
    def __init__(self) -> None:
        nn.Module.__init__(self)
        Plain.__init__(self)


def _tried(held: Any) -> float:
    try:
        return float(held.k)
    except AttributeError:
        return 1.0


def _tried_key(held: Any) -> float:
    try:
        return float(held.__dict__["k"])
    except KeyError:
        return 1.0


def _of_held(held: Any) -> Any:
    return held


def _of_part(held: Any) -> Any:
    return held.part


def _of_answers(held: Any) -> Any:
    return held.answers


def _of_settings(held: Any) -> Any:
    return SETTINGS


def _of_marked(held: Any) -> Any:
    return marked


Reader = tuple[Callable[[Any], float], Callable[[Any], Any]]
READERS: dict[str, Reader] = {
    "get of __dict__": (lambda h: h.__dict__.get("k", 1.0), _of_held),
    "get of vars": (lambda h: vars(h).get("k", 1.0), _of_held),
    "in __dict__": (lambda h: 5.0 if "k" in h.__dict__ else 1.0, _of_held),
    "not in vars": (lambda h: 5.0 if "k" not in vars(h) else 1.0, _of_held),
    "hasattr": (lambda h: 5.0 if hasattr(h, "k") else 1.0, _of_held),
    "getattr": (lambda h: getattr(h, "k", 1.0), _of_held),
    "AttributeError": (_tried, _of_held),
    "KeyError": (_tried_key, _of_held),
    "how many": (lambda h: float(len(vars(h))), _of_held),
    "items": (lambda h: 1.0 + sum(v for k, v in h.__dict__.items() if k == "k"), _of_held),
    "a copy": (lambda h: h.__dict__.copy().get("k", 1.0), _of_held),
    "another dictionary": (lambda h: {**h.__dict__}.get("k", 1.0), _of_held),
    "__contains__": (lambda h: h.__dict__.__contains__("k") + 1.0, _of_held),
    "of another object": (lambda h: vars(h.part).get("k", 1.0), _of_part),
    "behind __getattr__": (lambda h: h.answers.k, _of_answers),
    "getattr of a module": (lambda h: getattr(SETTINGS, "k", 1.0), _of_settings),
    "hasattr of a module": (lambda h: 5.0 if hasattr(SETTINGS, "k") else 1.0, _of_settings),
    "getattr of a function": (lambda h: getattr(marked, "k", 1.0), _of_marked),
    "hasattr of a function": (lambda h: 5.0 if hasattr(marked, "k") else 1.0, _of_marked),
}


def _outcomes(name: str, make: type[Any], way: Callable[[Any], Any]) -> list[Any]:
    read, owner = READERS[name]
    held = make()
    call = way(lambda x: x * read(held))
    found = []
    for present in (False, True, False, True):
        if present:
            owner(held).k = 7.0
        elif found:
            del owner(held).k
        found.append(call(torch.ones(2)).tolist())
    del owner(held).k
    return found


@pytest.mark.parametrize("make", [Plain, Module])
@pytest.mark.parametrize("name", READERS)
def test_what_is_set_later_is_noticed(name: str, make: type[Any]) -> None:
    assert _outcomes(name, make, lambda f: burnish.compile(f, **FORCED)) == _outcomes(name, make, lambda f: f)


@pytest.mark.parametrize("what", ["buffer", "parameter", "module"])
def test_what_a_module_gets_later_is_noticed(what: str) -> None:
    class Model(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * (2 if getattr(self, "k", None) is not None else 1)

    model = Model()
    compiled = burnish.compile(model, **FORCED)
    assert compiled(torch.ones(1)) == 1
    if what == "buffer":
        model.register_buffer("k", torch.ones(1))
    else:
        model.k = nn.Parameter(torch.ones(1)) if what == "parameter" else nn.ReLU()
    assert compiled(torch.ones(1)) == 2
    del model.k
    assert compiled(torch.ones(1)) == 1


def test_what_is_set_elsewhere_is_not_looked_at() -> None:
    held = Plain()
    compiled = burnish.compile(lambda x: x * vars(held).get("k", 1.0) * getattr(SETTINGS, "k", 1.0), **FORCED)
    for number in range(3):
        held.other, SETTINGS.other = number, sys.maxsize - number  # type: ignore[attr-defined]
        assert compiled(torch.ones(1)) == 1
    assert burnish.stats(compiled).compiles == 1
