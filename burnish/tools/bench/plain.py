"""Dataclasses to plain JSON values and back, by their annotations: results travel between processes and into files."""

from __future__ import annotations

import dataclasses
import functools
import math
import types
import typing
from collections.abc import Mapping
from typing import Any, TypeVar

Made = TypeVar("Made")
_NOT_FINITE = {"inf": math.inf, "-inf": -math.inf, "nan": math.nan}  # JSON has no numbers for these


def to_plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: to_plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): to_plain(item) for key, item in value.items()}
    if isinstance(value, (tuple, list)):
        return [to_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value


def from_plain(kind: type[Made], value: Any) -> Made:
    """The inverse of `to_plain` for a dataclass. Unknown keys raise; missing ones take their defaults."""
    made: Made = _read(kind, value)
    return made


@functools.cache
def _hints(kind: type) -> dict[str, Any]:
    return typing.get_type_hints(kind)


def _read(kind: Any, value: Any) -> Any:
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if value is None or kind is Any:
        return value
    if origin in (typing.Union, types.UnionType):
        return _read(next(one for one in arguments if one is not type(None)), value)
    if origin is tuple:
        if len(arguments) == 2 and arguments[1] is Ellipsis:
            return tuple(_read(arguments[0], item) for item in value)
        return tuple(_read(one, item) for one, item in zip(arguments, value, strict=True))
    if origin is not None and isinstance(origin, type) and issubclass(origin, Mapping):
        return {key: _read(arguments[1], item) for key, item in value.items()}
    if dataclasses.is_dataclass(kind):
        hints = _hints(kind)  # type: ignore[arg-type]
        unknown = set(value) - set(hints)
        if unknown:
            raise ValueError(f"{kind} has no {', '.join(sorted(unknown))}")
        return kind(**{name: _read(hints[name], item) for name, item in value.items()})  # type: ignore[operator]
    if kind is float:
        return _NOT_FINITE.get(value, value) if isinstance(value, str) else float(value)
    return value
