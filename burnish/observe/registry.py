"""The live compiled objects of this process, each under a unique name, as listed by `burnish.metrics()`."""

from __future__ import annotations

import itertools
import threading
import weakref
from typing import Protocol, runtime_checkable

from burnish.observe.log import CompileLog
from burnish.stats import Stats


@runtime_checkable
class HasStats(Protocol):
    def stats(self) -> Stats: ...


_lock = threading.Lock()
_live: dict[str, tuple[weakref.ref[object], weakref.ref[CompileLog]]] = {}  # label -> owner, its log


def register(log: CompileLog, owner: object | None = None) -> None:
    """Give a log its label: its name or, while another live object has that, the name with a number after it. The
    label is free again when `owner` is gone; the log may live longer, since torch keeps what it compiled."""
    with _lock:
        for label in [label for label, (known, _) in _live.items() if known() is None]:
            del _live[label]
        name = log.name or "unnamed"
        numbered = (f"{name}#{number}" for number in itertools.count(2))
        log.label = next(label for label in itertools.chain((name,), numbered) if label not in _live)
        _live[log.label] = weakref.ref(log if owner is None else owner), weakref.ref(log)


def all_stats() -> dict[str, Stats]:
    """Every live compiled object of this process, by its label, in the order of their creation."""
    with _lock:
        found = [(label, owner(), log()) for label, (owner, log) in _live.items()]
    stats: dict[str, Stats] = {}
    for label, owner, log in found:
        if isinstance(owner, HasStats):
            stats[label] = owner.stats()  # which knows of compiles in the background, too
        elif owner is not None and log is not None:
            stats[label] = log.snapshot()
    return stats
