"""Attributes and keys that were not there when a function was compiled, and that are set or taken away later."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from typing import Any, NamedTuple

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


class Named(NamedTuple):
    x: torch.Tensor


class Slots:
    __slots__ = ("x",)

    def __init__(self, x: torch.Tensor) -> None:
        self.x = x

    def __getattr__(self, name: str) -> float:
        if name != "k":
            raise AttributeError(name)
        return 3.0


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


@pytest.mark.parametrize("kind", [Named, Slots])
def test_objects_without_a_dictionary_are_compiled(kind: Callable[[torch.Tensor], Any]) -> None:
    def read(held: Any) -> torch.Tensor:
        scale: float = getattr(held, "k", 1.0)
        return held.x * scale * (2 if hasattr(held, "other") else 1)

    compiled = burnish.compile(read, **FORCED)
    for x in (torch.ones(2), torch.arange(2.0)):
        assert compiled(kind(x)).tolist() == read(kind(x)).tolist()
    assert (burnish.stats(compiled).compiles, burnish.stats(compiled).fallbacks) == (1, ())


def test_an_attribute_that_the_class_of_a_named_tuple_gets_later_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = burnish.compile(lambda held: held.x * getattr(held, "k", 1.0), **FORCED)
    assert compiled(Named(torch.ones(1))) == 1
    monkeypatch.setattr(Named, "k", 7.0, raising=False)
    assert compiled(Named(torch.ones(1))) == 7
