"""Attributes of classes: torch 2.11 guards on none that is a number, a text or a member of an enumeration."""

from __future__ import annotations

import contextlib
import enum
import inspect
from collections.abc import Callable, Iterator
from typing import Any

from burnish.torch_private.guards import AttrSource, GuardBuilder, install_guard
from burnish.torch_private.patches.replacing import replaced
from burnish.torch_private.variables import ConstantVariable, UserDefinedClassVariable
from burnish.torch_private.versions import is_at_least

_GETS = "var_getattr"


@contextlib.contextmanager
def guarding_attributes_of_classes() -> Iterator[None]:
    """While open, Dynamo guards on what it takes from a class as a constant. Since torch 2.12 it makes it from its
    source, and does so by itself."""
    ordinary = None if is_at_least(2, 12) else getattr(UserDefinedClassVariable, _GETS, None)
    if ordinary is None:
        yield
        return
    with replaced(UserDefinedClassVariable, _GETS, _guarded(ordinary)):
        yield


def _guarded(ordinary: Callable[..., Any]) -> Callable[..., Any]:
    def got(variable: Any, tx: Any, name: str) -> Any:
        found = ordinary(variable, tx, name)
        if variable.source is not None and found.source is None:
            kind = _kind_of_guard(variable.value, name)
            if kind is not None:
                install_guard(AttrSource(variable.source, name).make_guard(kind))
        return found

    return got


def _kind_of_guard(owner: type, name: str) -> Callable[..., None] | None:
    value = inspect.getattr_static(owner, name, None)
    if name.startswith("__") or issubclass(owner, enum.Enum):
        return None
    if isinstance(value, enum.Enum):
        return GuardBuilder.ID_MATCH
    return GuardBuilder.CONSTANT_MATCH if ConstantVariable.is_literal(value) else None
