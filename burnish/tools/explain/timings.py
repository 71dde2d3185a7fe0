"""Compile time by stage: a table with bars that show when each stage ran."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rich import box
from rich.table import Table

from burnish.stats import Span

_BAR = 48


@dataclass(frozen=True)
class _Row:
    name: str
    spans: tuple[Span, ...]
    depth: int

    @property
    def seconds(self) -> float:
        return sum(span.end - span.begin for span in self.spans)


def stage_table(seconds: Mapping[str, float], timeline: Sequence[Span] = ()) -> Table:
    """`seconds` are the stages' own. A bar covers what runs inside a stage, too; stages in others stand indented, and
    what ran beside them comes last."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for title, is_number in (("stage", False), ("seconds", True), ("share", True), ("", False)):
        table.add_column(title, justify="right" if is_number else "left", no_wrap=True)
    total = sum(seconds.values()) or 1.0
    spans = tuple(timeline) or _in_a_row(seconds)
    whole = max((span.end for span in spans), default=1.0)
    main = _rows([span for span in spans if span.lane == 0])
    for row in main:
        own = seconds.get(row.name, 0.0)
        table.add_row("  " * row.depth + row.name, f"{own:.3f}", f"{own / total:.0%}", _bar(row.spans, whole))
    for name in seconds.keys() - {row.name for row in main}:
        table.add_row(name, f"{seconds[name]:.3f}", f"{seconds[name] / total:.0%}", "")
    table.add_row("all", f"{sum(seconds.values()):.3f}", "", "")
    beside = [span for span in spans if span.lane > 0 and span.depth == 0]
    if beside:
        table.add_section()
        for row in _rows(beside, by_first_word=True):
            count = f", {len(row.spans)} on {len({s.lane for s in row.spans})}" if len(row.spans) > 1 else ""
            table.add_row(f"beside: {row.name}{count}", f"{row.seconds:.3f}", "", _bar(row.spans, whole))
    return table


def _in_a_row(seconds: Mapping[str, float]) -> tuple[Span, ...]:
    """Stages of which only the length is known."""
    spans, before = [], 0.0
    for name, spent in seconds.items():
        spans.append(Span(name, before, before + spent))
        before += spent
    return tuple(spans)


def _rows(spans: Sequence[Span], by_first_word: bool = False) -> list[_Row]:
    """Spans of one name together, in the order in which the names first come."""
    found: dict[str, list[Span]] = {}
    for span in spans:
        found.setdefault(span.name.split()[0] if by_first_word else span.name, []).append(span)
    return [_Row(name, tuple(same), min(span.depth for span in same)) for name, same in found.items()]


def _bar(spans: Sequence[Span], whole: float) -> str:
    cells = [" "] * _BAR
    for span in spans:
        left, right = (round(moment / whole * _BAR) for moment in (span.begin, span.end))
        if left == right:
            left = min(left, _BAR - 1)
            cells[left] = "▏" if cells[left] == " " else cells[left]
        cells[left:right] = "█" * (right - left)
    return "".join(cells).rstrip()
