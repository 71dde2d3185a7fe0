"""Attributes of classes and modules that a compiled function writes, and reads in the same call."""

from __future__ import annotations

import enum
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

import burnish

FORCED = {"gate": False, "verify": "off"}
TOTAL = 0


class Base:
    count = 0
    names: tuple[str, ...] = ()


class Plain(Base):
    count = 0


class Module(nn.Module, Base):
    count = 0


def _counted(held: Any) -> Any:
    type(held).count += 1
    return held.count


def _by_class(held: Any) -> Any:
    held.__class__.count = 5
    return held.count + type(held).count


def _by_setattr(held: Any) -> Any:
    setattr(type(held), "count", type(held).count + 3)  # noqa: B010
    return held.count


def _of_base(held: Any) -> Any:
    Base.names = ("a", "b")
    return len(held.names) + len(type(held).names)


def _another(held: Any) -> Any:
    type(held).count += 1
    return type(held)().count


def _before_and_after(held: Any) -> Any:
    before = held.count
    type(held).count = before + 1
    return before * 10 + held.count


def _seen_by_vars(held: Any) -> Any:
    type(held).count += 1
    return vars(type(held))["count"]


def _newly_there(held: Any) -> Any:
    type(held).count = 4
    return 2 if hasattr(held, "count") else 1


def _own_module(held: Any) -> Any:
    setattr(sys.modules[__name__], "TOTAL", TOTAL + 7)  # noqa: B010
    return TOTAL


def _global(held: Any) -> Any:
    global TOTAL
    TOTAL += 1
    return globals()["TOTAL"]


WRITERS = (
    *(_counted, _by_class, _by_setattr, _of_base, _another, _before_and_after, _seen_by_vars, _newly_there),
    *(_own_module, _global),
)


@pytest.fixture(autouse=True)
def restored(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    yield
    _restore()


def _restore() -> None:
    global TOTAL
    TOTAL = Base.count = Plain.count = Module.count = 0
    Base.names = ()


@pytest.mark.parametrize("make", [Plain, Module])
@pytest.mark.parametrize("write", WRITERS)
def test_what_is_written_is_read(write: Callable[[Any], Any], make: type[Any]) -> None:
    seen = []
    for way in (lambda f: f, lambda f: burnish.compile(f, **FORCED)):
        _restore()
        call = way(lambda x, held: x * write(held))
        held = make()
        seen.append([(call(torch.ones(1), held).item(), Base.count, make.count, TOTAL) for _ in range(3)])
    assert seen[0] == seen[1]


class Way(enum.Enum):
    ONE = 1
    TWO = 2


VALUES = ((0, 1, 2), ("a", "b", "a"), (Way.ONE, Way.TWO, Way.ONE), (1.5, None, True))
READERS: dict[str, Callable[[Any], Any]] = {
    "type": lambda held: type(held).count,
    "__class__": lambda held: held.__class__.count,
    "of the object": lambda held: held.count,
    "by getattr": lambda held: getattr(type(held), "count", None),
    "of the base": lambda held: type(held).__mro__[0].count,
}


@pytest.mark.parametrize("make", [Plain, Module])
@pytest.mark.parametrize("values", VALUES, ids=str)
@pytest.mark.parametrize("name", READERS)
def test_what_is_written_between_calls_is_read(name: str, values: tuple[Any, ...], make: type[Any]) -> None:
    read = READERS[name]
    compiled = burnish.compile(lambda x, held: (x + 1, read(held)), **FORCED)
    held, found = make(), []
    for value in values:
        make.count = value
        found.append(compiled(torch.ones(1), held)[1])
    assert found == [*values]
