"""An attribute of a module or a class, replaced for a while."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

_INHERITED = object()  # in place of a function that a class has from another


@contextlib.contextmanager
def replaced(owner: Any, name: str, replacement: Any) -> Iterator[None]:
    ordinary = vars(owner).get(name, _INHERITED)
    setattr(owner, name, replacement)
    try:
        yield
    finally:
        if ordinary is _INHERITED:
            delattr(owner, name)
        else:
            setattr(owner, name, ordinary)


def name_in(owner: Any, *names: str) -> str:
    """Which of the names that versions of torch have for one thing the owner has; the first, if it has none."""
    return next((name for name in names if hasattr(owner, name)), names[0])
