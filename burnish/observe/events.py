"""An event of a compiled object, as data: log lines, the event file and tests use the same events."""

from __future__ import annotations

import json
import logging
import math
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

SCHEMA = 1  # of the JSON objects; it grows when a field changes its meaning or goes, not when one is added

EventKind = Literal[
    "compiled",  # a graph is ready: seconds, kernels
    "cache_hit",
    "cache_miss",  # reason: which factor of the key changed
    "fallback",  # eager serves a graph: stage, reason
    "recompile",  # a check on inputs or state failed: reason
    "graph_break",  # a line that could not be captured: reason
    "gate",  # a variant was compared with eager: which engine serves it, and why
    "rollback",  # a variant that served calls went back to eager: reason
    "retry",  # a rolled-back variant was given another chance
    "background_queued",  # eager serves until it is ready
    "background_ready",  # what was compiled in the background serves from now on
    "background_failed",
    "budget_exceeded",  # the compile budget ran out: which cheaper tier serves
    "sealed",  # nothing compiles from now on
    "unsealed_call",  # a sealed object met inputs it was not compiled for: eager served them
    "closed",
]
KINDS: tuple[str, ...] = get_args(EventKind)

_LEVELS: Mapping[str, int] = {
    "cache_hit": logging.DEBUG,
    "cache_miss": logging.DEBUG,
    "background_queued": logging.DEBUG,
    "fallback": logging.WARNING,
    "rollback": logging.WARNING,
    "background_failed": logging.WARNING,
    "budget_exceeded": logging.WARNING,
    "unsealed_call": logging.WARNING,
}


@dataclass(frozen=True)
class Event:
    """`object` is the compiled object's name, `variant` which of its programs (empty: the object as a whole)."""

    kind: EventKind
    object: str = ""
    variant: str = ""
    seconds: float | None = None  # how long it took, where that is a question
    reason: str = ""
    detail: Mapping[str, Any] = field(default_factory=dict)  # numbers that only this kind has
    time: float = field(default_factory=time.time)  # seconds since 1970
    pid: int = field(default_factory=os.getpid)

    @property
    def level(self) -> int:
        """Of the `logging` module."""
        return _LEVELS.get(self.kind, logging.INFO)

    def to_dict(self) -> dict[str, Any]:
        return {
            "schema": SCHEMA,
            "time": self.time,
            "pid": self.pid,
            "object": self.object,
            "variant": self.variant,
            "kind": self.kind,
            "seconds": self.seconds,
            "reason": self.reason,
            "detail": {name: _plain(value) for name, value in self.detail.items()},
        }

    def to_json(self) -> str:
        """One line."""
        return json.dumps(self.to_dict(), ensure_ascii=False, allow_nan=False)

    def __str__(self) -> str:
        what = f"{self.object or 'a graph'}" + (f" [{self.variant}]" if self.variant else "")
        parts = [f"{what}: {self.kind.replace('_', ' ')}"]
        if self.seconds is not None:
            parts.append(f"in {self.seconds:.3f} s")
        if self.detail:
            parts.append("(" + ", ".join(f"{name} {_shown(value)}" for name, value in self.detail.items()) + ")")
        text = " ".join(parts) + (f": {self.reason}" if self.reason else "")
        return " ".join(text.split())  # one line, whatever a reason holds


Sink = Callable[[Event], None]  # must never raise: it runs inside the user's call


def _plain(value: object) -> object:
    """As JSON has it: numbers and text; NaN and infinity, which JSON has not, as text."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value if value is None or isinstance(value, (bool, int, float, str)) else str(value)


def _shown(value: object) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)
