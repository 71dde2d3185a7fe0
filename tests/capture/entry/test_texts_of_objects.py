"""Texts of objects that were there before the call: they are of the objects as they are in each call."""

from __future__ import annotations

import dataclasses
import types
from collections import namedtuple
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import burnish


@dataclasses.dataclass
class Settings:
    rate: Any = 1


Pair = namedtuple("Pair", "rate")


class Described:
    rate: Any = 1

    def __repr__(self) -> str:
        return f"described by {self.rate}"


OBJECTS: dict[str, Callable[[], Any]] = {
    "dataclass": Settings,
    "named tuple": lambda: Pair([1]),
    "namespace": lambda: types.SimpleNamespace(rate=1),
    "its own": Described,
    "module": lambda: nn.Dropout(0.5),
}
TEXTS: dict[str, Callable[[Any], str]] = {
    "str": str,
    "repr": repr,
    "formatted": lambda held: f"{held}",
    "formatted as repr": lambda held: f"{held!r}",
}


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("kind", OBJECTS)
def test_the_text_is_of_the_object_as_it_is(kind: str, text: str) -> None:
    held = OBJECTS[kind]()

    def function(x: torch.Tensor) -> Any:
        return x + 1, TEXTS[text](held)

    compiled = burnish.compile(function, gate=False)
    x = torch.ones(3)
    assert compiled(x)[1] == function(x)[1]
    if kind == "named tuple":
        held.rate.append(2)
    else:
        setattr(held, "p" if kind == "module" else "rate", 0.25)
    assert compiled(x)[1] == function(x)[1]
