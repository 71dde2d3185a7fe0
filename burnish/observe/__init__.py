"""Observability: stats, metrics, log lines and an event file, all from one source.

`CompileLog` (log.py) counts what happens to one compiled object and emits an `Event` for it; sinks (sinks.py) make log
lines and JSON of events; exposition.py makes Prometheus text of the counts, endpoint.py serves it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from burnish.observe.events import KINDS, Event, EventKind
from burnish.observe.exposition import metrics
from burnish.observe.registry import all_stats

if TYPE_CHECKING:
    from burnish.observe.endpoint import Endpoint

__all__ = ["KINDS", "Event", "EventKind", "all_stats", "metrics", "serve"]


def serve(port: int = 9464, host: str = "127.0.0.1") -> Endpoint:
    """Serve this process's metrics over HTTP, from a thread: `/metrics` for Prometheus, `/stats` as JSON.

    It listens on localhost unless `host` says otherwise ("0.0.0.0"): there is no password, and the output contains
    names of models and lines of their source. Port 0 selects a free port; `.port` is its number."""
    from burnish.observe.endpoint import Endpoint  # http.server: not for those who do not serve

    return Endpoint(port, host)
