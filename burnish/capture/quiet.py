"""What Dynamo does for its log alone, left out where nobody reads that log."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from typing import Any

from torch._dynamo import output_graph, symbolic_convert


@contextlib.contextmanager
def without_headlines() -> Iterator[None]:
    """Dynamo reads every file it traces through a tokenizer written in Python, to name functions in a line of its
    log for each operation: a twentieth of a cold compile. Entered with its compile lock held."""
    modules: tuple[Any, ...] = (output_graph, symbolic_convert)
    logs = [getattr(module, "trace_call_log", None) for module in modules]
    named = getattr(symbolic_convert, "get_funcname", None)
    if named is None or any(log is None or log.isEnabledFor(logging.DEBUG) for log in logs):
        yield
        return
    symbolic_convert.get_funcname = lambda filename, lineno: None
    try:
        yield
    finally:
        symbolic_convert.get_funcname = named
