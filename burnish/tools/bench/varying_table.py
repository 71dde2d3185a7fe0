"""Shape strategies in the terminal: one row each."""

from __future__ import annotations

from collections.abc import Iterable

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from burnish.tools.bench.varying import ShapesResult, StrategyResult
from burnish.tools.measure import duration


def render(result: ShapesResult) -> Group:
    heading = Text(f"{result.target} on {result.requests} requests, {result.traffic}", style="bold")
    parts: list[RenderableType] = [heading, _times(result), _costs(result)]
    parts += [Text(f"{row.name} failed: {row.failure}") for row in result.rows if row.failure]
    parts += [Text(f"{row.name}: {note}", style="dim") for row in result.rows for note in _shortest(row.notes)]
    return Group(*parts)


def _times(result: ShapesResult) -> Table:
    table = _table("strategy", "requests/s", "p50", "p95", "p99", "first pass p99", "worst")
    for row in result.measured:
        quantiles = (row.p50_s, row.p95_s, row.p99_s, row.first_p99_s, row.first_worst_s)
        table.add_row(row.name, f"{row.requests_per_s:,.1f}{_beside_eager(result, row)}", *map(duration, quantiles))
    return table


def _costs(result: ShapesResult) -> Table:
    table = _table("strategy", "prepared in", "compiles", "in pass 2", "padding", "peak memory")
    for row in result.measured:
        counts = (str(row.compiles), str(row.compiles_later), f"{row.waste:.0%}", f"{row.peak_bytes / 2**20:,.0f} MiB")
        table.add_row(row.name, duration(row.prepare_s), *counts)
    return table


def _table(first: str, *others: str) -> Table:
    table = Table(box=box.SIMPLE, pad_edge=False)
    table.add_column(first)
    for name in others:
        table.add_column(name, justify="right")
    return table


def _beside_eager(result: ShapesResult, row: StrategyResult) -> str:
    ratio = result.against_eager(row)
    return "" if ratio is None else f" ({ratio:.2f}x)"


def _shortest(notes: Iterable[str], most: int = 3) -> list[str]:
    return list(notes)[:most]
