"""`burnish demo`: three models on the CPU, compiled by Inductor and by burnish, measured against eager."""

from __future__ import annotations

import time
from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

import burnish.tools.bench.cells as cells
from burnish.errors import MissingExtra
from burnish.tools.bench.measured import CandidateResult
from burnish.tools.bench.progress import Progress as Doing
from burnish.tools.bench.result import BenchResult
from burnish.tools.bench.run import bench
from burnish.tools.bench.statistics import Speedup
from burnish.tools.measure import duration
from burnish.tools.workloads import WORKLOADS
from burnish.tools.workloads.registry import import_transformers

DEFAULT_TARGETS: tuple[str, ...] = ("mlp", "llama-decode", "bert-base")
CANDIDATES = "eager,inductor,burnish"
TIMING_SECONDS = 6.0  # per target, shared by its engines; with two cold compiles each the demo stays under 4 minutes


def run_demo(targets: Sequence[str] = DEFAULT_TARGETS, seconds: float = TIMING_SECONDS) -> int:
    """Measure every target and print the table; returns the process's exit status."""
    console = Console(highlight=False, markup=False)  # messages may hold [brackets] of their own
    begin = time.perf_counter()
    runnable, skipped = _split_runnable(targets)
    for name, reason in skipped:
        console.print(f"skipping {name}: {reason}", style="yellow", soft_wrap=True)
    if not runnable:
        return 1
    results = _measure(console, runnable, seconds)
    console.print(results_table(results))
    console.print()
    for result in results:
        console.print(_verdict_line(result), soft_wrap=True)
    console.print(
        f"\nCompile: cold, in a fresh process with empty caches. p50: of calls taken in turns in one process, on "
        f"{results[0].machine.threads} threads. ±: rounds differ by over 5 %. Error: against float64, relative.\n"
        f"For one model in depth: burnish bench TARGET --html report.html. Total {time.perf_counter() - begin:.0f} s.",
        soft_wrap=True,
    )
    return 0


def _split_runnable(targets: Sequence[str]) -> tuple[list[str], list[tuple[str, str]]]:
    """Say before the first minute of work, not after it, that a package is missing."""
    runnable, skipped = [], []
    for target in targets:
        workload = WORKLOADS.get(target.partition("@")[0])
        try:
            if workload is not None and workload.extra == "hf":
                import_transformers(target)
            runnable.append(target)
        except MissingExtra as error:
            skipped.append((target, str(error)))
    return runnable, skipped


def _measure(console: Console, targets: Sequence[str], seconds: float) -> list[BenchResult]:
    columns = (TextColumn("{task.description:<50}"), BarColumn(), TextColumn("{task.percentage:3.0f} %"))
    with Progress(*columns, TimeElapsedColumn(), console=console, transient=True) as progress:
        task = progress.add_task("starting", total=len(targets))
        return [_measure_one(console, progress, task, index, name, seconds) for index, name in enumerate(targets)]


def _measure_one(
    console: Console, progress: Progress, task: TaskID, index: int, name: str, seconds: float
) -> BenchResult:
    said = ""

    def show(now: Doing) -> None:
        nonlocal said
        progress.update(task, description=f"{name}: {now.doing}", completed=index + now.fraction)
        if now.doing != said and not console.is_terminal:  # a log file gets a line for each thing done instead of a bar
            console.print(f"  {name}: {now.doing} …")
        said = now.doing

    # Eager's memory is not in the table: its own process would only cost time.
    result = bench(name, candidates=CANDIDATES, seconds=seconds, eager_alone=False, on_progress=show)
    if result.incomplete:
        raise KeyboardInterrupt
    return result


# -- what is printed ----------------------------------------------------------------------------------------------


def results_table(results: Sequence[BenchResult]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for heading in ("model", "engine", "compile", "p50", "vs eager", "vs Inductor", "error"):
        words = heading in ("model", "engine")
        table.add_column(heading, justify="left" if words else "right", no_wrap=heading != "model", overflow="fold")
    for result in results:
        for row in result.candidates:
            head = result.target if row is result.candidates[0] else ""
            table.add_row(head, *_cells(result, row), style="bold" if row.name == "burnish" else "")
        table.add_section()
    return table


def _cells(result: BenchResult, row: CandidateResult) -> list[str]:
    if row.latency is None:
        return [row.title, "failed", "–", "–", "–", "–"]
    return [
        row.title,
        cells.cold(row),
        duration(row.latency.p50.value),
        *(_ratio(row.speedup_over.get(other)) for other in ("eager", "inductor")),
        cells.error(row, result),
    ]


def _ratio(speedup: Speedup | None) -> str:
    return "–" if speedup is None else f"{speedup.value:.2f} ×" + (" ±" if speedup.noisy else "")


def _verdict_line(result: BenchResult) -> Text:
    line = Text(f"{result.target}: ", style="bold")
    line.append(result.verdict.headline, style="none")
    return line
