"""Cards about what a call does: operators, the step around the model, exactness, energy."""

from __future__ import annotations

import math

import burnish.tools.bench.cells as cells
from burnish.tools.bench.measured import CandidateResult, Measured
from burnish.tools.bench.verdict import is_wrong, most_error
from burnish.tools.bench.words import percent
from burnish.tools.measure import duration
from burnish.tools.report.markup import Markup, join, tag
from burnish.tools.report.parts import Fill, bar, bars, card, colours, swatch

_TOP = 6


def around_card(result: Measured) -> Markup | None:
    """Amdahl: how much of a step compiling can touch."""
    share = result.share
    if share is None:
        return None
    parts = [
        (share.model, 2, "inside the model"),
        (share.data, 1, "fetching data"),
        (share.other, 0, "Python around the model"),
    ]
    fills = [Fill(value / share.total, colour, title=name) for value, colour, name in parts if value > 0]
    items = [
        tag("li", swatch(colour), f"{name} {percent(value / share.total)} ({duration(value)})")
        for value, colour, name in parts
        if value > 0
    ]
    best = "without limit" if math.isinf(share.best_gain) else f"{share.best_gain:.2f} ×"
    return card(
        "A whole step",
        bars([bar(f"one step, median of {share.steps}", duration(share.total), fills)]),
        tag("ul", items, class_="legend"),
        tag(
            "p", f"If the model took no time at all, a step would be {best} faster: that is the most a compiler can do."
        ),
        hint="What the target's own loop spends its time on, in eager.",
    )


def work_card(result: Measured) -> Markup | None:
    shown = [row for row in result.measured if row.profile and (row.profile.top or row.latency)]
    if not shown:
        return None
    colour = colours(result)
    parts: list[Markup] = []
    for row in shown:
        parts.append(tag("div", _operators(row, colour[row.name], result.device == "cuda")))
    hint = (
        "The kernels of one call, by their time on the GPU."
        if result.device == "cuda"
        else "The ATen operators in one call under torch's profiler, by their own time. It does not see generated "
        "kernels and Python: they are the rest of the call."
    )
    return card("Where the time goes", tag("div", parts, class_="grid"), hint=hint, wide=True)


def _operators(row: CandidateResult, colour: int, on_gpu: bool) -> list[Markup]:
    """A bar for each part; the parts add up to what the heading says."""
    assert row.profile and row.latency
    # Parts of the very calls that were profiled; on a GPU the profiler slows the host, not the kernels.
    whole = max(row.latency.p50.value if on_gpu else row.profile.seconds, row.profile.operator_seconds)
    items = [
        bar(
            join(operator.name, " ", tag("small", f"{operator.calls:.0f} ×")),
            duration(operator.seconds),
            [Fill(operator.seconds / whole, colour)],
        )
        for operator in row.profile.top[:_TOP]
    ]
    others = row.profile.operator_seconds - sum(operator.seconds for operator in row.profile.top[:_TOP])
    rest = whole - row.profile.operator_seconds
    if rest <= 0.01 * whole:  # too little for a bar of its own
        others, rest = others + rest, 0.0
    if others > 0.001 * whole:
        items.append(
            bar("other kernels" if on_gpu else "other operators", duration(others), [Fill(others / whole, colour)])
        )
    if rest > 0:
        ours = "generated kernels and Python" if row.candidate.compiles else "Python"
        name = "the GPU waits" if on_gpu else ours
        items.append(bar(name, duration(rest), [Fill(rest / whole, colour, light=True)]))
    return [tag("h3", swatch(colour), f"{row.title}: {_whole_call(row, whole, on_gpu)}"), bars(items)]


def _whole_call(row: CandidateResult, whole: float, on_gpu: bool) -> str:
    """What the parts add up to, and what a call takes where that is something else."""
    assert row.latency
    usual = duration(row.latency.p50.value)
    if on_gpu:
        beside = f"{duration(whole)} of kernels, some side by side, in {usual} per call"
        return beside if whole > 1.01 * row.latency.p50.value else f"{usual} per call"
    return f"{duration(whole)} under the profiler, {usual} without"


def parity_card(result: Measured) -> Markup | None:
    shown = [row for row in result.measured if row.error is not None]
    eager = next((row for row in shown if not row.candidate.compiles), None)
    if eager is None or eager.error is None:
        return None
    colour = colours(result)
    limit = most_error(eager.error)
    finite = [row.error for row in shown if row.error and math.isfinite(row.error)]
    low = math.log10(min([*finite, limit]) / 4)
    high = math.log10(max([*finite, limit]) * 1.5)

    def place(error: float) -> float:
        if error <= 0:
            return 0.0
        return 1.0 if math.isinf(error) or math.isnan(error) else (math.log10(error) - low) / (high - low)

    items = []
    for row in shown:
        assert row.error is not None
        wrong = row.candidate.compiles and is_wrong(row, eager)
        ratio = f"{row.error / eager.error:.1f} × eager's" if eager.error and row is not eager else ""
        badge = tag("span", "wrong", class_="badge bad") if wrong else tag("small", ratio)
        items.append(bar(row.title, join(f"{row.error:.1e} ", badge), [Fill(place(row.error), colour[row.name])]))
    return card(
        "Exactness",
        bars(items),
        tag(
            "div",
            tag("span", f"{10**low:.0e}"),
            tag("span", f"taken for wrong above {limit:.0e}"),
            tag("span", f"{10**high:.0e}"),
            class_="foot",
        ),
        hint="The largest error against the same model in float64, relative, on a logarithmic scale. Eager rounds too: "
        "its own error is the yardstick.",
    )


def energy_card(result: Measured) -> Markup | None:
    shown = [row for row in result.measured if row.energy and row.energy.joules is not None]
    if not shown:
        return None
    colour = colours(result)
    most = max(row.energy.joules or 0.0 for row in shown if row.energy)
    items = [
        bar(
            row.title,
            cells.energy(row),
            [Fill((row.energy.joules or 0.0) / most if row.energy else 0, colour[row.name])],
        )
        for row in shown
    ]
    meter = next(row.energy.meter for row in shown if row.energy)
    return card("Energy per call", bars(items), hint=f"By {meter}; what else ran on the machine meanwhile is in it.")
