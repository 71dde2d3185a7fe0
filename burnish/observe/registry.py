"""The compiled objects of this process that are alive, each under a name of its own: what `burnish.metrics()` lists."""

from __future__ import annotations

import itertools
import threading
import weakref

from burnish.observe.log import CompileLog

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


def live_logs() -> list[CompileLog]:
    """In the order of their creation."""
    with _lock:
        found = [log() for owner, log in _live.values() if owner() is not None]
    return [log for log in found if log is not None]
