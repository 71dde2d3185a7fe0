"""torch's own timings of its stages while it traces."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from burnish.observe.log import CompileLog
from burnish.torch_private.dynamo import compilation_time_metrics


@contextlib.contextmanager
def guards_apart(log: CompileLog) -> Iterator[None]:
    """Charge the building of guards, which is the last thing Dynamo does with a frame, to a stage of its own."""
    before = len(compilation_time_metrics.get("build_guards", ()))
    yield
    if spent := sum(compilation_time_metrics.get("build_guards", ())[before:]):
        log.charge("guards", spent)
