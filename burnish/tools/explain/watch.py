"""The events while a model compiled and ran, in order: graphs, breaks, recompiles, and when each graph ran."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from burnish.record import GraphRecord, Run
from burnish.stats import GraphBreak, Recompile


@dataclass(frozen=True)
class Span:
    """One run of a graph's program."""

    graph: int
    begin: float
    end: float


@dataclass
class Call:
    """One call of the model."""

    label: str
    begin: float
    end: float = 0.0
    spans: list[Span] = field(default_factory=list)
    recompiles: list[Recompile] = field(default_factory=list)

    @property
    def seconds(self) -> float:
        return self.end - self.begin


class Watcher:
    """A recorder with a clock. `breaks` are keyed by the graph that each comes after (None: before the first)."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.clock = clock
        self.records: list[GraphRecord] = []
        self.arguments: dict[int, list[Any]] = {}  # of a graph's latest run
        self.breaks: list[tuple[int | None, GraphBreak]] = []
        self.calls: list[Call] = []

    def graph(self, record: GraphRecord) -> Run:
        number = len(self.records)
        self.records.append(record)

        def run(args: list[Any]) -> Any:
            self.arguments[number] = list(args)
            begin = self.clock()
            result = record.run(args)
            if self.calls:
                self.calls[-1].spans.append(Span(number, begin, self.clock()))
            return result

        return run

    def graph_break(self, entry: GraphBreak) -> None:
        self.breaks.append((len(self.records) - 1 if self.records else None, entry))

    def recompile(self, entry: Recompile) -> None:
        if self.calls:
            self.calls[-1].recompiles.append(entry)

    def call(self, label: str, step: Callable[[], Any]) -> Any:
        self.calls.append(Call(label, self.clock()))
        try:
            return step()
        finally:
            self.calls[-1].end = self.clock()
