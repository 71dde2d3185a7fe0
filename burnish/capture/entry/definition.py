"""Changes of an original after compiling that Dynamo's guards do not notice: a module's hooks, and a function's own
code and defaults, which the entrance's frame has copied."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any, Protocol

import torch

from burnish.capture.entry.hooks import Hooks

Attribute = tuple[object, str, object]  # owner, attribute name, the object at compile time


class Definition(Protocol):
    """The definition of one original at the time of construction."""

    def changed(self) -> bool:
        """Asked on every call."""

    @property
    def is_asked_each_call(self) -> bool:
        """Whether each call must check more than `attributes`."""

    def attributes(self) -> tuple[Attribute, ...]:
        """While each is the same object, nothing has changed."""


class FunctionDefinition:
    """A function's code and defaults. (Dynamo guards the contents of default arguments.)"""

    is_asked_each_call = False

    def __init__(self, function: types.FunctionType) -> None:
        self._function = function
        self._code, self._defaults = function.__code__, function.__defaults__
        self._keyword_defaults = function.__kwdefaults__

    def changed(self) -> bool:
        function = self._function
        return (
            function.__code__ is not self._code
            or function.__defaults__ is not self._defaults
            or function.__kwdefaults__ is not self._keyword_defaults
        )

    def attributes(self) -> tuple[Attribute, ...]:
        return (
            (self._function, "__code__", self._code),
            (self._function, "__defaults__", self._defaults),
            (self._function, "__kwdefaults__", self._keyword_defaults),
        )


def definition_of(target: Callable[..., Any]) -> Definition | None:
    if isinstance(target, torch.nn.Module):
        return Hooks(target)
    return FunctionDefinition(target) if isinstance(target, types.FunctionType) else None
