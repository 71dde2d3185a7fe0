"""The table of everything."""

from __future__ import annotations

from collections.abc import Callable

import burnish.tools.bench.cells as cells
from burnish.tools.bench.measured import CandidateResult, Measured
from burnish.tools.measure import duration
from burnish.tools.report.markup import Markup, join, tag
from burnish.tools.report.parts import card, colours, swatch, table

Column = tuple[str, Callable[[CandidateResult], str]]


def numbers_card(result: Measured) -> Markup:
    return card(
        "The numbers",
        _table(result, "Time per call", _time_columns(result)),
        tag("h3", "What it costs"),
        _table(result, "What each candidate costs", _cost_columns(result)),
        hint="Calls taken in turns in one process; small figures are 95 % bootstrap intervals. Compile and memory: "
        "each candidate in a process of its own.",
        wide=True,
    )


def _table(result: Measured, caption: str, columns: list[Column]) -> Markup:
    """Without columns that say nothing of any candidate."""
    colour = colours(result)
    columns = [column for column in columns if any(column[1](row) != cells.NONE for row in result.candidates)]
    rows = [
        tag(
            "tr",
            tag("th", swatch(colour[row.name]), row.title, scope="row"),
            [tag("td", cell(row)) for _, cell in columns],
            class_="winner" if row.name == result.verdict.winner else None,
        )
        for row in result.candidates
    ]
    return table(caption, ["candidate", *(heading for heading, _ in columns)], rows)


def _time_columns(result: Measured) -> list[Column]:
    columns: list[Column] = [
        ("vs eager", lambda row: "failed" if row.failure else cells.speedup(row)),
        ("p50", lambda row: _with_interval(row, "p50")),
        ("p95", lambda row: _with_interval(row, "p95")),
        ("p99", lambda row: _with_interval(row, "p99")),
        ("mean ± std", cells.mean_and_std),
        ("calls/s", cells.calls_per_second),
    ]
    if cells.shows_samples(result):
        columns.append(("samples/s", lambda row: cells.samples_per_second(row, result)))
    if result.device == "cuda":  # on a CPU a call returns when it is done: p50
        columns += [("host per call", cells.host), ("GPU per call", cells.on_device)]
    return columns


def _cost_columns(result: Measured) -> list[Column]:
    columns: list[Column] = [
        ("cold compile", cells.cold),
        ("warm compile", cells.warm),
        ("pays after", cells.pays_after),
        ("compile peak", lambda row: cells.compile_peak(row, result)),
        ("memory per call", lambda row: cells.call_memory(row, result)),
        ("warm-up calls", cells.warm_up),
        ("kernels", cells.operations),
        ("error", lambda row: cells.error(row, result)),
    ]
    if cells.shows_energy(result):
        columns.append(("energy per call", cells.energy))
    return columns


def _with_interval(row: CandidateResult, name: str) -> str:
    if row.latency is None:
        return cells.NONE
    estimate = getattr(row.latency, name)
    return join(duration(estimate.value), " ", tag("small", cells.interval(estimate), class_="below"))
