"""`burnish demo`: three models on the CPU, compiled by Inductor and by burnish, measured against eager."""

from __future__ import annotations

import time
from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from burnish.errors import MissingExtra
from burnish.measure import duration
from burnish.trial import ENGINES, TITLES, Comparison, EngineResult, compare, empty_caches
from burnish.workloads import WORKLOADS
from burnish.workloads.registry import import_transformers

DEFAULT_TARGETS: tuple[str, ...] = ("mlp", "llama-decode", "bert-base")
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
    comparisons = _measure(console, runnable, seconds)
    console.print(comparison_table(comparisons))
    console.print()
    for comparison in comparisons:
        console.print(_verdict_line(comparison), soft_wrap=True)
    console.print(
        f"\nCompile: cold, in a fresh process with empty caches. p50: of calls taken in turns in one process, on "
        f"{comparisons[0].threads} threads. ±: rounds differ by over 5 %. Error: against float64, relative.\n"
        f"Total {time.perf_counter() - begin:.0f} s.",
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


def _measure(console: Console, targets: Sequence[str], seconds: float) -> list[Comparison]:
    columns = (TextColumn("{task.description:<50}"), BarColumn(), TextColumn("{task.percentage:3.0f} %"))
    with Progress(*columns, TimeElapsedColumn(), console=console, transient=True) as progress:
        task = progress.add_task("starting", total=len(targets))
        return [_measure_one(console, progress, task, index, name, seconds) for index, name in enumerate(targets)]


def _measure_one(
    console: Console, progress: Progress, task: TaskID, index: int, name: str, seconds: float
) -> Comparison:
    said = ""

    def show(doing: str, fraction: float) -> None:
        nonlocal said
        progress.update(task, description=doing, completed=index + fraction)
        if doing != said and not console.is_terminal:  # a log file gets a line for each thing done instead of a bar
            console.print(f"  {doing} …")
        said = doing

    with empty_caches() as caches:
        return compare(name, seconds=seconds, caches=caches, on_progress=show)


# -- what is printed ----------------------------------------------------------------------------------------------


def comparison_table(comparisons: Sequence[Comparison]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for heading in ("model", "engine", "compile", "p50", "vs eager", "vs Inductor", "error"):
        table.add_column(heading, justify="left" if heading in ("model", "engine") else "right", no_wrap=True)
    for comparison in comparisons:
        for engine in ENGINES:
            table.add_row(*_cells(comparison, engine), style="bold" if engine == "burnish" else "")
        table.add_section()
    return table


def _cells(comparison: Comparison, engine: str) -> list[str]:
    result = comparison.engines[engine]
    head = [comparison.target if engine == ENGINES[0] else "", TITLES[engine]]
    if result.timing is None:
        return [*head, "failed", "–", "–", "–", "–"]
    cold = "–" if result.cold_seconds is None else f"{result.cold_seconds:.1f} s"
    ratios = [_ratio_cell(comparison, engine, other) for other in ("eager", "inductor")]
    error = "–" if result.error is None else f"{result.error:.1e}"
    return [*head, cold, duration(result.timing.p50), *ratios, error]


def _ratio_cell(comparison: Comparison, engine: str, other: str) -> str:
    """How many times faster `engine` is than `other`; burnish's are paired round by round, the rest are of medians."""
    if engine == "burnish" and other in comparison.speedup:
        ratio = comparison.speedup[other]
        return f"{ratio.value:.2f} ×" + (" ±" if ratio.noisy else "")
    one, two = comparison.engines[engine].timing, comparison.engines[other].timing
    if engine == other or one is None or two is None:
        return "–"
    return f"{two.p50 / one.p50:.2f} ×"


def _verdict_line(comparison: Comparison) -> Text:
    line = Text(f"{comparison.target}: ", style="bold")
    line.append(verdict(comparison), style="none")
    return line


def verdict(comparison: Comparison) -> str:
    """What the numbers say, in words; noise and failures are said, not hidden."""
    ours = comparison.engines["burnish"]
    if ours.timing is None:
        return f"burnish failed: {ours.failure}."
    parts = [
        _speed_words(TITLES[other], ratio.value, ratio.spread, ratio.noisy)
        for other, ratio in comparison.speedup.items()
    ]
    parts += [
        f"{TITLES[name]} failed ({result.failure})"
        for name, result in comparison.engines.items()
        if result.timing is None
    ]
    inductor = comparison.engines["inductor"].cold_seconds
    if inductor and ours.cold_seconds:
        parts.append(_compile_words(ours.cold_seconds, inductor))
    parts.append(_error_words(ours, comparison.engines["eager"]))
    return "; ".join([*parts, *ours.notes]) + "."


def _speed_words(other: str, ratio: float, spread: float, noisy: bool) -> str:
    if 0.98 <= ratio <= 1.02:
        words = f"as fast as {other}"
    elif ratio > 1:
        words = f"{ratio:.2f} × faster than {other}"
    else:
        words = f"{(1 / ratio - 1) * 100:.0f} % slower than {other}"
    return words + (f" (noisy: rounds spread {spread * 100:.0f} %)" if noisy else "")


def _compile_words(ours: float, inductor: float) -> str:
    if ours < inductor:
        return f"compiles {inductor / ours:.1f} × faster than Inductor"
    return f"takes {ours / inductor:.1f} × as long to compile as Inductor"


def _error_words(ours: EngineResult, eager: EngineResult) -> str:
    if ours.error is None or eager.error is None:
        return "error not measured"
    if ours.error <= eager.error:
        return "at least as accurate as eager"
    return f"error {ours.error / max(eager.error, 1e-30):.1f} × eager's"
