"""A result in the terminal: the verdict, three tables that fit 80 columns, and notes on them."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence

from rich import box
from rich.console import Console, Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

import burnish.tools.bench.cells as cells
from burnish.tools.bench.measured import CandidateResult, Measured
from burnish.tools.measure import duration

_COLOURS = {"compile": "green", "eager": "yellow", "no difference": "yellow", "look elsewhere": "yellow"}
_MARKS = {"ok": ("✓", "green"), "warn": ("!", "yellow"), "fail": ("✗", "red")}

Column = tuple[str, Callable[[CandidateResult], str]]


def render(result: Measured) -> Group:
    """Everything `burnish bench` prints at its end."""
    parts: list[RenderableType] = [_verdict(result)]
    for columns in (_latency_columns(), _work_columns(result), _cost_columns(result)):
        parts += [Text(), _table(result, columns)]
    if result.checklist:
        parts += [Text(), _checklist(result)]
    parts += [Text(), *(Text(note, style="dim") for note in _notes(result))]
    return Group(*parts)


def as_text(result: Measured, width: int = 80) -> str:
    console = Console(file=io.StringIO(), width=width, highlight=False, color_system=None)
    console.print(render(result))
    assert isinstance(console.file, io.StringIO)
    return "\n".join(line.rstrip() for line in console.file.getvalue().splitlines())


def _verdict(result: Measured) -> Panel:
    colour = _COLOURS.get(result.verdict.kind, "red")
    lines: list[RenderableType] = [Text(result.verdict.headline, style="bold")]
    if result.verdict.reasons:
        lines.append(Text())
    for reason in result.verdict.reasons:
        bullet = Table.grid(padding=(0, 1))
        bullet.add_row("•", Text(reason))
        lines.append(bullet)
    name = result.target.rsplit("/", 1)[-1]  # a path would not fit
    title = f"{name} (incomplete)" if result.incomplete else name
    return Panel(
        Group(*lines), title=Text(title, style="bold"), title_align="left", border_style=colour, padding=(0, 1)
    )


def _latency_columns() -> list[Column]:
    return [
        ("vs eager", lambda row: "failed" if row.failure else cells.speedup(row)),
        ("p50", lambda row: duration(row.latency.p50.value) if row.latency else ""),
        ("95 % interval", lambda row: cells.interval(row.latency.p50) if row.latency else ""),
        ("p95", lambda row: duration(row.latency.p95.value) if row.latency else ""),
        ("p99", lambda row: duration(row.latency.p99.value) if row.latency else ""),
        ("", lambda row: "noisy" if row.latency and row.latency.noisy else ""),
    ]


def _work_columns(result: Measured) -> list[Column]:
    columns: list[Column] = [("mean ± std", cells.mean_and_std), ("calls/s", cells.calls_per_second)]
    if cells.shows_samples(result):
        columns.append(("samples/s", lambda row: cells.samples_per_second(row, result)))
    if result.device == "cuda":
        columns += [("host", cells.host), ("GPU", cells.on_device)]
    columns.append(("kernels", cells.operations))
    if cells.shows_energy(result):
        columns.append(("energy", cells.energy))
    return [*columns, ("error", lambda row: cells.error(row, result))]


def _cost_columns(result: Measured) -> list[Column]:
    return [
        ("compile", cells.cold),
        ("warm", cells.warm),
        ("pays after", cells.pays_after),
        ("peak", lambda row: cells.compile_peak(row, result)),
        ("per call", lambda row: cells.call_memory(row, result)),
        ("warm-up", cells.warm_up),
    ]


def _table(result: Measured, columns: Sequence[Column]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    longest_word = max(len(word) for row in result.candidates for word in row.title.split())
    table.add_column("", overflow="fold", min_width=min(longest_word, 16))
    for heading, _ in columns:
        table.add_column(heading, justify="right", no_wrap=True)
    for row in result.candidates:
        texts = [Text(cell(row)) for _, cell in columns]
        table.add_row(Text(row.title), *texts, style="bold" if row.name == result.verdict.winner else "")
    return table


def _checklist(result: Measured) -> Table:
    table = Table(box=None, pad_edge=False, show_header=False)
    for line in result.checklist:
        mark, colour = _MARKS.get(line.verdict, ("·", "dim"))
        says = Text(line.figure)
        if line.advice:
            says.append(f"\n→ {line.advice}", style="dim")
        table.add_row(Text(mark, style=colour), Text(line.name), says)
    return table


def _notes(result: Measured) -> list[str]:
    machine = result.machine
    where = machine.gpu if result.device == "cuda" else f"{machine.cpu}, {machine.threads} threads"
    found = [
        f"{where}, torch {machine.torch}, {result.seconds:.0f} s in all. Calls were taken in turns in one process. "
        "Compile: a fresh process with empty caches; warm: a second one. Peak: memory while compiling, with its "
        "workers. Per call: memory a call adds. Warm-up: calls until it was steady. Error: against float64, relative."
    ]
    if any(row.latency and row.latency.noisy for row in result.candidates):
        cause = f" Likely cause: {result.causes[0]}." if result.causes else ""
        found.append(f"Noisy: the rounds' medians spread over more than 5 %.{cause}")
    missing = {row.energy.missing for row in result.candidates if row.energy and row.energy.missing}
    found += [f"Energy per call: not available: {why}." for why in sorted(missing)]
    if result.device != "cuda":
        found.append("Host time per call is the latency: on a CPU a call returns when it is done.")
    return [*found, *result.notes]
