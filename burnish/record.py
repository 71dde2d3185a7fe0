"""A record of one graph's compile for tools: every representation of the graph, and its program.

A `CompileLog` may have a `Recorder`; the pipeline passes it each finished graph. Nothing is recorded otherwise.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from torch.fx import GraphModule

if TYPE_CHECKING:
    from burnish.ir.graph import Graph
    from burnish.lower.captured import Captured
    from burnish.options import Options
    from burnish.schedule.fusion_report import FusionReport
    from burnish.schedule.kernels import Schedule
    from burnish.stats import GraphBreak, Recompile

Run = Callable[[list[Any]], Any]  # boxed: takes its arguments in one list, which it may empty


@dataclass(frozen=True)
class GraphRecord:
    """One graph from ATen calls to a program."""

    kind: str  # forward, backward or inference
    calls: GraphModule  # the ATen calls it was captured as
    captured: Captured  # with the graph as the passes left it
    imported: Graph  # before the passes
    unfused: Schedule
    schedule: Schedule
    fusion: FusionReport
    spent: tuple[str, ...]  # each optimisation, in the order in which fuel was spent on it
    options: Options
    run: Run


class Recorder(Protocol):
    def graph(self, record: GraphRecord) -> Run:
        """Called with a finished graph. The returned function replaces `record.run`."""
        ...

    def graph_break(self, entry: GraphBreak) -> None: ...

    def recompile(self, entry: Recompile) -> None: ...
