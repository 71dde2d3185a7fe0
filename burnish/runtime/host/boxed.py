"""Boxed calls of a compiled graph: one list of arguments, without unpacking two hundred of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

# An attribute of a graph's function: the same function of one list, which it clears, and without the safety net; and
# that net, which gives the call's result for an exception and the arguments.
BOXED = "_burnish_boxed"
Boxed = tuple[Callable[[list[Any]], Any], Callable[[Exception, Sequence[Any]], Any]]


def boxed_form(graph: Callable[..., Any]) -> Boxed | None:
    found: Boxed | None = getattr(graph, BOXED, None)
    return found
