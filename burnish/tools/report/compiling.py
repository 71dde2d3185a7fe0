"""Cards about what compiling costs: seconds, stages, memory."""

from __future__ import annotations

import burnish.tools.bench.cells as cells
from burnish.tools.bench.measured import CandidateResult, Measured
from burnish.tools.report.markup import Markup, join, tag
from burnish.tools.report.parts import Fill, bar, bars, card, colours, legend
from burnish.tools.report.plot import Series, line_plot


def compile_card(result: Measured) -> Markup | None:
    shown = [row for row in result.candidates if row.compile and row.compile.cold_seconds is not None]
    if not shown:
        return None
    colour = colours(result)
    longest = max(_seconds(row) for row in shown) or 1.0
    items = []
    for row in shown:
        assert row.compile
        number = colour[row.name]
        items.append(bar(f"{row.title}, cold", cells.cold(row), [Fill(_seconds(row) / longest, number)]))
        if row.compile.warm_seconds is not None:
            warm = row.compile.warm_seconds
            items.append(bar(f"{row.title}, warm", cells.warm(row), [Fill(warm / longest, number, light=True)]))
    parts: list[Markup] = [bars(items)]
    for row in shown:
        parts += _stages(row, colour[row.name])
    where = "Cold: a fresh process with empty caches. Warm: a second process, with the cache that the first one filled."
    if not shown[0].compile or not shown[0].compile.isolated:
        where = "Measured in the calling process, where torch and its compilers may have been loaded before."
    return card("Compile time", parts, hint=where)


def _seconds(row: CandidateResult) -> float:
    return (row.compile.cold_seconds if row.compile else None) or 0.0


def _stages(row: CandidateResult, colour: int) -> list[Markup]:
    """A bar for each stage; as they are written, they add up to what the heading says."""
    stages = sorted((row.compile.stages if row.compile else {}).items(), key=lambda item: -item[1])
    if not stages:
        return []
    cold, known = _seconds(row), sum(seconds for _, seconds in stages)
    total = max(cold, known)
    shown = [(name, round(seconds, 2)) for name, seconds in stages if seconds > 0.01 * total and seconds >= 0.005]
    left = round(total, 2) - sum(seconds for _, seconds in shown)
    rest = round(total - known, 2) if total - known > 0.01 * total else 0.0  # what no stage is charged with
    items = [bar(name, f"{seconds:.2f} s", [Fill(seconds / total, colour)]) for name, seconds in shown]
    if (small := left - rest) >= 0.005:
        items.append(bar("smaller stages", f"{small:.2f} s", [Fill(small / total, colour)]))
    else:
        rest = left
    if rest >= 0.005:
        items.append(bar("imports and the rest", f"{rest:.2f} s", [Fill(rest / total, colour, light=True)]))
    side_by_side = f" in {cold:.2f} s, some side by side" if known > 1.01 * cold else ""
    return [tag("h3", f"Where {row.title}'s cold compile goes: {total:.2f} s{side_by_side}"), bars(items)]


def memory_card(result: Measured) -> Markup | None:
    shown = [row for row in result.candidates if row.memory is not None and row.memory.compile_peak]
    if not shown:
        return None
    colour = colours(result)
    top = max(_peak(row) for row in shown)
    items = []
    for row in shown:
        assert row.memory
        before = (row.memory.before or 0) / top
        fills = [
            Fill(before, colour[row.name], light=True, title=f"with the model loaded: {cells.size(row.memory.before)}"),
            Fill(_peak(row) / top - before, colour[row.name], title="added while compiling"),
        ]
        added = cells.size(_peak(row) - (row.memory.before or 0))
        items.append(bar(row.title, join(cells.size(_peak(row)), " ", tag("small", f"+{added}")), fills))
    calls = [
        part
        for row in shown
        for part in (
            tag("dt", row.title),
            tag("dd", f"{cells.call_memory(row, result)} per call, {cells.steady_memory(row)} resident between calls"),
        )
    ]
    hint = "Resident memory at its highest during the first call, compile workers included. Light: torch and the model."
    words = "Afterwards" if result.device != "cuda" else "Afterwards (per call: the GPU allocator's peak)"
    return card("Peak memory while compiling", bars(items), tag("h3", words), tag("dl", calls), hint=hint)


def _peak(row: CandidateResult) -> int:
    return (row.memory.compile_peak if row.memory else None) or 0


def timeline_card(result: Measured) -> Markup | None:
    shown = [row for row in result.candidates if row.timeline and len(row.timeline.points) > 2]
    if not shown:
        return None
    colour = colours(result)
    series = []
    for row in shown:
        assert row.timeline
        points = [(moment, value / 2**20) for moment, value in row.timeline.points]
        series.append(Series(row.title, colour[row.name], points, *_compile_begin(row, points)))
    plot = line_plot(
        series,
        title="Resident memory of each candidate's process over time",
        x_format=lambda seconds: f"{seconds:g} s",
        y_format=lambda mebibytes: f"{mebibytes:,.0f}",
        x_label="since the process started",
    )
    hint = "MiB resident over the life of each candidate's own process, with its workers. The dot: compiling begins."
    return card("Memory over time", legend(shown, colour), plot, hint=hint)


def _compile_begin(row: CandidateResult, points: list[tuple[float, float]]) -> tuple[tuple[float, float] | None, str]:
    assert row.timeline
    for moment, name in row.timeline.phases:
        if name == "compile":
            nearest = min(points, key=lambda point: abs(point[0] - moment))
            return nearest, f"{row.title} begins to compile"
    return None, ""
