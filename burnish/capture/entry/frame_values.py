"""The values that a frame's code finds: its arguments, and the contents of its cells."""

from __future__ import annotations

import contextlib
import inspect
import types
from typing import Any


def locals_of(frame: types.FunctionType, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any] | None:
    """The local variables of a frame as it is entered; None if it does not take these arguments."""
    code = frame.__code__
    if code.co_argcount == 0 and code.co_flags & 0x0C == 0x0C and not code.co_kwonlyargcount:  # (*args, **kwargs)
        first, second = code.co_varnames[:2]
        values: dict[str, Any] = {first: args, second: kwargs}
    else:
        try:
            bound = inspect.signature(frame).bind(*args, **kwargs)
        except TypeError:
            return None
        bound.apply_defaults()
        values = dict(bound.arguments)
    return values | free_variables(frame)


def free_variables(frame: types.FunctionType) -> dict[str, Any]:
    """By name; those that have no value (any more) are left out, as in `locals()`."""
    found: dict[str, Any] = {}
    for name, cell in zip(frame.__code__.co_freevars, frame.__closure__ or (), strict=True):
        with contextlib.suppress(ValueError):
            found[name] = cell.cell_contents
    return found


def cell_content(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # empty
        return None
