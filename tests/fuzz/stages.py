"""Which stage of the compiler a wrong result comes from: every form of a graph that can be evaluated without compiling
anything, beside ATen's own graph."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from burnish.ir.reference import evaluate_graph
from burnish.schedule.evaluate import evaluate_schedule
from tests.fuzz.case import Case
from tests.fuzz.inputs import built
from tests.fuzz.interpreted import Around
from tests.programs import Capture, capture, copies, schedules, sizes_of


def blamed(case: Case, call: int) -> str:
    """The first form that means something else, in the graphs of one call: "graph", "schedule", "fused schedule"; or
    "code", where all mean the same and what is made of them is wrong, or "unknown"."""
    if case.program.is_module or case.program.is_random:
        return "unknown"
    scope: dict[str, Any] = {"torch": torch, "F": F, "math": math, "inf": math.inf, "nan": math.nan}
    exec(case.program.text(), scope)
    try:
        entries = capture(scope["f"], *built(case.calls[call]), dynamic=bool(case.compile.get("dynamic")))
        with torch.no_grad():
            return next((found for entry in entries if (found := _first_wrong(entry))), "code")
    except Exception:  # more than one graph, an argument that is no tensor, an evaluator that gives up
        return "unknown"


def _first_wrong(entry: Capture) -> str:
    captured, sizes = entry.captured, sizes_of(entry.captured, entry.inputs)
    eager = Around(lambda given: _left(entry.module, given), entry.inputs)

    def is_wrong(run: Callable[[list[Any]], list[Any]]) -> bool:
        given = copies(entry.inputs)
        got = [*run(given)[: captured.results], *given]
        return any(
            isinstance(w, torch.Tensor) and eager.problem_of(k, g)
            for k, (g, w) in enumerate(zip(got, eager.results, strict=True))
        )

    if is_wrong(lambda given: evaluate_graph(captured.graph, given, sizes)):
        return "graph"
    apart, joined = schedules(captured)
    if is_wrong(lambda given: evaluate_schedule(apart, given, sizes)):
        return "schedule"
    return "fused schedule" if is_wrong(lambda given: evaluate_schedule(joined, given, sizes)) else ""


def _left(module: Any, given: list[Any]) -> list[Any]:
    return [*module(*given), *given]
