"""What Dynamo and AOTAutograd do for their logs alone, left out where nobody reads those."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from typing import Any

from burnish.torch_private.aot import graph_compile, trace_log
from burnish.torch_private.dynamo import output_graph, symbolic_convert


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


@contextlib.contextmanager
def without_printed_graphs() -> Iterator[None]:
    """AOTAutograd prints the graphs of a training step for its log, whoever reads that: a fiftieth of a cold compile.
    Entered with Dynamo's compile lock held."""
    logs = [getattr(graph_compile, name, None) for name in ("aot_joint_log", "aot_graphs_log")]
    printers = {name: getattr(graph_compile, name, None) for name in ("_log_joint_graph", "_log_fw_bw_graphs")}
    traced = bool(getattr(trace_log, "handlers", True))
    is_read = traced or any(log is None or log.isEnabledFor(logging.INFO) for log in logs)
    if is_read or None in printers.values():
        yield
        return
    unread: dict[str, Any] = {
        "_log_joint_graph": lambda *arguments: None,
        "_log_fw_bw_graphs": lambda *arguments: (None, None),
    }
    vars(graph_compile).update(unread)
    try:
        yield
    finally:
        vars(graph_compile).update(printers)


@contextlib.contextmanager
def without_meta_failures() -> Iterator[None]:
    """An operation that does not fit its inputs is an error in torch's log, with a traceback of torch's own code,
    before anybody knows whose mistake it is. What is the caller's, eager raises; what is not, a warning says."""
    log = logging.getLogger("torch._subclasses.fake_tensor")
    other = lambda record: "failed while attempting to run meta" not in str(record.msg)  # noqa: E731
    log.addFilter(other)
    try:
        yield
    finally:
        log.removeFilter(other)
