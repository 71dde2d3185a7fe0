"""The compiled objects of this process that are alive, each under a name of its own: what `burnish.metrics()` lists."""

from __future__ import annotations

import itertools
import threading
import weakref

from burnish.observe.log import CompileLog

_lock = threading.Lock()
_live: dict[str, weakref.ref[CompileLog]] = {}


def register(log: CompileLog) -> None:
    """Give a log its label: its name or, while another live object has that, the name with a number after it."""
    with _lock:
        for label in [label for label, reference in _live.items() if reference() is None]:
            del _live[label]
        name = log.name or "unnamed"
        numbered = (f"{name}#{number}" for number in itertools.count(2))
        log.label = next(label for label in itertools.chain((name,), numbered) if label not in _live)
        _live[log.label] = weakref.ref(log)


def live_logs() -> list[CompileLog]:
    """In the order of their creation."""
    with _lock:
        return [log for reference in _live.values() if (log := reference()) is not None]
