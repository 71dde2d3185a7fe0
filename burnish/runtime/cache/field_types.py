"""Whether values are of the types that a dataclass's annotations state: data from a file may hold anything anywhere.

As for a type checker, a `bool` is an `int` and an `int` a `float`, and what a container holds counts.
"""

from __future__ import annotations

import collections.abc
import dataclasses
import functools
import types
import typing
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Literal, TypeAlias, Union

Check = Callable[[Any], bool]
StandIns: TypeAlias = tuple[tuple[type, type], ...]  # a class, and the one in whose place it may be
_SERIES = (list, set, frozenset, collections.abc.Sequence, collections.abc.Set)
_MAPPINGS = (dict, collections.abc.Mapping)
_OPAQUE = (type, collections.abc.Callable)  # what is in their brackets is not looked at


@functools.cache
def checks_of(cls: type, stand_ins: StandIns = ()) -> tuple[tuple[str, Check], ...]:
    """The fields of a dataclass that its constructor takes, each with the check of its values."""
    annotations = typing.get_type_hints(cls)
    names = [field.name for field in dataclasses.fields(cls) if field.init]
    return tuple((name, check_of(annotations[name], stand_ins)) for name in names)


def unfit(checks: Sequence[tuple[str, Check]], values: Sequence[Any]) -> str | None:
    """The first field whose value is not what its annotation states."""
    return next((name for (name, fits), value in zip(checks, values, strict=True) if not fits(value)), None)


def check_of(annotation: Any, stand_ins: StandIns = ()) -> Check:
    if annotation is Any or annotation is object:
        return _anything
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is Union or origin is types.UnionType:
        return _any_of([check_of(each, stand_ins) for each in arguments])
    if origin is Literal:
        return lambda value: any(value == each and type(value) is type(each) for each in arguments)
    if origin is tuple:
        return _tuple(arguments, stand_ins)
    if origin in _SERIES:
        return _series(origin, check_of(arguments[0], stand_ins))
    if origin in _MAPPINGS:
        return _mapping(origin, *(check_of(each, stand_ins) for each in arguments))
    if origin in _OPAQUE:
        annotation = origin
    if annotation is None:
        annotation = type(None)
    if typing.Protocol in getattr(annotation, "__bases__", ()):
        return functools.partial(_has_all, tuple(typing.get_type_hints(annotation)))
    if not isinstance(annotation, type):
        raise TypeError(f"no check for the annotation {annotation}")
    return _instance(annotation, stand_ins)


def _anything(value: Any) -> bool:
    return True


def _instance(cls: type, stand_ins: StandIns) -> Check:
    if cls is float:
        allowed: tuple[type, ...] = (float, int)
    else:
        allowed = (cls, *(other for other, stands_for in stand_ins if stands_for is cls))
    return lambda value: isinstance(value, allowed)


def _has_all(names: tuple[str, ...], value: Any) -> bool:
    return all(hasattr(value, name) for name in names)


def _any_of(checks: list[Check]) -> Check:
    return lambda value: any(fits(value) for fits in checks)


def _tuple(arguments: tuple[Any, ...], stand_ins: StandIns) -> Check:
    if len(arguments) == 2 and arguments[1] is ...:
        return _series(tuple, check_of(arguments[0], stand_ins))
    checks = [check_of(each, stand_ins) for each in arguments]
    return lambda value: (
        isinstance(value, tuple)
        and len(value) == len(checks)
        and all(fits(each) for fits, each in zip(checks, value, strict=True))
    )


def _series(kind: type[Collection[Any]], fits: Check) -> Check:
    if fits is _anything:
        return lambda value: isinstance(value, kind)
    return lambda value: isinstance(value, kind) and all(map(fits, value))


def _mapping(kind: type[Mapping[Any, Any]], fits_key: Check, fits_value: Check) -> Check:
    return lambda value: isinstance(value, kind) and all(fits_key(k) and fits_value(v) for k, v in value.items())
