"""What TorchDynamo did with a frame, in the user's terms: graph breaks, recompiles and failures, with file and line.

Dynamo keeps these records for the whole process. A `Watch` brackets one frame's compilation, under Dynamo's compile
lock, and writes the new records to the log of the object that was compiling.
"""

from __future__ import annotations

import os
import re
import types
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from traceback import FrameSummary
from typing import Any

import torch

from burnish.capture.entry.failure_cause import Doubt, Doubts, Ending, Line
from burnish.capture.entry.storms import note_storm
from burnish.capture.restore.guards import without_marks
from burnish.errors import CompileError, FallbackWarning, GraphBreakError, warn
from burnish.observe.log import CompileLog, failure_reason
from burnish.stats import GraphBreak, Recompile
from burnish.torch_private.dynamo import (
    RestartAnalysis,
    SkipFrame,
    UncapturedHigherOrderOpError,
    Unsupported,
    UserError,
    get_compilation_metrics,
    graph_break_reasons,
)
from burnish.version import PACKAGE

_NOT_THE_USERS = (
    str(Path(torch.__file__).parent) + os.sep,
    *(str(PACKAGE / part) + os.sep for part in ("capture", "torch_private")),
    str(PACKAGE / "api.py"),
)

_WAYS_OUT = {
    "dynamo": "keep that part out with burnish.disable, or report the model",
    "recompile limit": "pass dynamic=True, or pad inputs to a few sizes",
}
# By the name of an exception of torch's, whatever stage it ends.
_DEPENDS_ON_VALUES = (
    "the size or value of a result depends on data: write it with torch.where instead of a boolean mask or .item(), "
    "or keep that part out with burnish.disable"
)
_WAYS_OUT_OF = dict.fromkeys(("DynamicOutputShapeException", "DataDependentOutputException"), _DEPENDS_ON_VALUES)
_RAISES = (
    "Observed exception",
    "failed to bind arguments when attempting to inline",
    "TypeError when making fake tensor call",
)
_WAY_OUT = "set BURNISH_DUMP=DIR to see how far each stage got, and report it"


@dataclass(frozen=True)
class Place:
    """The source location of a target. Its name replaces that of burnish's own frame around it."""

    file: str
    line: int
    name: str
    parameters: tuple[str, ...] = ()  # the parameter names behind that frame's args[0], args[1], ...

    def in_its_names(self, text: str) -> str:
        text = re.sub(r"\bargs\[(\d+)\]", lambda found: self._parameter(int(found[1])) or found[0], text)
        return re.sub(r"\bkwargs\['(\w+)'\]", r"\1", text)

    def _parameter(self, position: int) -> str | None:
        return self.parameters[position] if position < len(self.parameters) else None


def serve_eager(log: CompileLog, stage: str, error: BaseException) -> None:
    """Count one failure and, if it is this object's first in that stage, warn with stage, reason and fix."""
    way_out = _WAYS_OUT_OF.get(type(error).__name__) or _WAYS_OUT.get(stage, _WAY_OUT)
    if isinstance(error, CompileError):
        stage, way_out = error.stage, error.way_out or way_out
    if log.fallback(stage, error):
        what = log.name or "this graph"
        warn(
            f"burnish: {what} runs in eager because stage '{stage}' failed: {failure_reason(error)}. "
            f"Results are right, the speed is eager's; burnish.stats counts further ones. Way out: {way_out}.",
            FallbackWarning,
        )


class Watch:
    """Open when a frame starts compiling, `report` when it is done."""

    def __init__(self) -> None:
        self._breaks = len(graph_break_reasons)
        metrics = get_compilation_metrics()
        self._last_metric = metrics[-1] if metrics else None

    def says_it_raises(self) -> bool:
        """Whether the graph breaks where Dynamo saw the call raise: the following code will not run."""
        return any(broken.reason.startswith(_RAISES) for broken in graph_break_reasons[self._breaks :])

    def report(self, code: types.CodeType, log: CompileLog, place: Place, doubts: Doubts) -> bool:
        """Returns whether Dynamo failed. A graph break at which the call also raises in eager does not count."""
        failed = False
        for broken in graph_break_reasons[self._breaks :]:
            file, line = user_line(broken.user_stack) or (place.file, place.line)
            _note_break(GraphBreak(file, line, _short(broken.reason)), code, None, log, place, doubts)
        for metric in self._new_metrics():
            if metric.recompile_reason:
                entry = _recompile(metric, place)
                log.recompile(entry)
                note_storm(log, entry)
            if metric.fail_type and "Unsupported" in metric.fail_type:
                _note_break(_skipped_frame(metric, place), code, code, log, place, doubts)
            failed = failed or bool(metric.fail_type)
        return failed

    def _new_metrics(self) -> list[Any]:
        new: list[Any] = []
        for metric in reversed(get_compilation_metrics()):
            if metric is self._last_metric:
                break
            new.append(metric)
        return new[::-1]


def _note_break(
    broken: GraphBreak,
    code: types.CodeType,
    skipped: types.CodeType | None,
    log: CompileLog,
    place: Place,
    doubts: Doubts,
) -> None:
    log.graph_break_met(broken)
    doubts.note(Doubt(code, partial(_told, log, broken, skipped, place)))


def _told(log: CompileLog, broken: GraphBreak, skipped: types.CodeType | None, place: Place, ending: Ending) -> None:
    """Report, unless the call raised in the skipped frame, or in the line of the graph break."""
    raised_there = ending.codes and (broken.file, broken.line) == (ending.line or (place.file, place.line))
    if not (raised_there or skipped in ending.codes):
        log.graph_break(broken)


def _recompile(metric: Any, place: Place) -> Recompile:
    reason = without_marks(str(metric.recompile_reason)).strip()
    reason = reason.split(": ", 1)[-1] if reason[:1].isdigit() else reason  # "0/0: " is Dynamo's own numbering
    if _is_the_users(metric.co_filename):
        return Recompile(metric.co_filename, metric.co_firstlineno, _plain_name(metric.co_name, place), reason)
    return Recompile(place.file, place.line, place.name, place.in_its_names(reason))


def _skipped_frame(metric: Any, place: Place) -> GraphBreak:
    file, line = metric.fail_user_frame_filename, metric.fail_user_frame_lineno
    if not _is_the_users(file):
        file, line = place.file, place.line
    return GraphBreak(file, line or 0, _short(str(metric.fail_reason)) + " (its whole function runs in eager)")


def _plain_name(name: str, place: Place) -> str:
    return place.name if name.startswith(place.name + "__") else name


def user_line(stack: Iterable[FrameSummary] | None) -> tuple[str, int] | None:
    """The innermost line outside torch and burnish."""
    return users_line((frame.filename, frame.lineno or 0) for frame in stack or ())


def users_line(lines: Iterable[Line]) -> Line | None:
    """The same of files and line numbers."""
    return next((line for line in reversed(list(lines)) if _is_the_users(line[0])), None)


def _is_the_users(file: str | None) -> bool:
    return bool(file) and not str(file).startswith((*_NOT_THE_USERS, "<"))


def _short(text: str) -> str:
    """Dynamo's paragraphs (what, explanation, hints, links) as one line."""
    lines = [line.strip() for line in text.strip().splitlines()]
    what = lines[0] if lines else text
    explanation = next((line.removeprefix("Explanation: ") for line in lines if line.startswith("Explanation: ")), "")
    return f"{what}: {explanation}".rstrip(":. ") if explanation else what.rstrip(". ")


def graph_break_error(error: BaseException, place: Place) -> GraphBreakError:
    """A typed error with the user's line, made from Dynamo's exception for a graph break under fullgraph=True."""
    text = str(getattr(error, "msg", None) or error)
    file, line = user_line(getattr(error, "real_stack", None)) or (place.file, place.line)
    hints = [part.strip() for part in text.splitlines() if part.strip().startswith("Hint: ")]
    hint = hints[0].removeprefix("Hint: ").rstrip(". ") if hints else ""
    return GraphBreakError(file, line, _short(text), hint)


def is_callers_mistake(error: BaseException) -> bool:
    """Whether Dynamo reports that the call raises: then eager also raises, unless Dynamo is wrong."""
    return str(getattr(error, "msg", None) or error).startswith(_RAISES)


GRAPH_BREAKS = (
    Unsupported,
    UserError,
    UncapturedHigherOrderOpError,
)

# Exceptions that Dynamo uses for control flow: not failures, and never to be caught.
CONTROL_FLOW = (RestartAnalysis, SkipFrame)
