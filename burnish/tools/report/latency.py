"""Cards about time per call: against eager, distributions, tails, and the first calls."""

from __future__ import annotations

import burnish.tools.bench.cells as cells
from burnish.tools.bench.measured import CandidateResult, Measured
from burnish.tools.measure import duration, quantile
from burnish.tools.report.markup import Markup, join, tag
from burnish.tools.report.parts import card, colours, legend
from burnish.tools.report.plot import Ridge, Series, line_plot, ridge_plot, step_points

_FIRST_CALLS = 40


def round_time(seconds: float) -> str:
    """A round time: 30 µs, 2.5 ms."""
    if seconds < 1e-3:
        return f"{seconds * 1e6:.3g} µs"
    return f"{seconds * 1e3:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"


def speed_card(result: Measured) -> Markup | None:
    rivals = [row for row in result.measured if row.speedup is not None]
    if not rivals:
        return None
    colour = colours(result)
    low = min(1.0, *(row.speedup.low for row in rivals if row.speedup))
    high = max(1.0, *(row.speedup.high for row in rivals if row.speedup))
    margin = 0.06 * (high - low) or 0.05
    low, high = max(0.0, low - margin), high + margin
    items = [_whisker(row, colour[row.name], low, high) for row in sorted(rivals, key=lambda row: -_speed(row))]
    ends = tag(
        "div", tag("span", f"{low:.2f} ×"), tag("span", "dashed: eager"), tag("span", f"{high:.2f} ×"), class_="foot"
    )
    return card(
        "Speed against eager",
        tag("ul", items, class_="bars"),
        ends,
        hint="The median of the rounds' ratios, and its 95 % interval. To the right of the dashed line is faster.",
    )


def _speed(row: CandidateResult) -> float:
    return row.speedup.value if row.speedup else 0.0


def _whisker(row: CandidateResult, colour: int, low: float, high: float) -> Markup:
    assert row.speedup

    def at(value: float) -> str:
        return f"{100 * (value - low) / (high - low):.2f}%"

    width = f"{100 * (row.speedup.high - row.speedup.low) / (high - low):.2f}%"
    figure = join(f"{row.speedup.value:.2f} × ", tag("small", f"{row.speedup.low:.2f}–{row.speedup.high:.2f}"))
    rail = tag(
        "div",
        tag("i", class_="rail"),
        tag("i", class_="one", style=f"left:{at(1.0)}"),
        tag("i", class_="range", style=f"left:{at(row.speedup.low)};width:{width}"),
        tag("i", class_="point", style=f"left:{at(row.speedup.value)}"),
        class_=f"whisker s{colour}",
        aria_hidden="true",
    )
    return tag("li", tag("div", tag("span", row.title), tag("b", figure), class_="head"), rail)


def distribution_card(result: Measured) -> Markup | None:
    shown = [row for row in result.measured if len(row.samples) > 4]
    if not shown:
        return None
    colour = colours(result)
    ridges = [Ridge(row.title, colour[row.name], row.samples, _marks(row)) for row in shown]
    plot = ridge_plot(
        ridges,
        title="Latency distribution of each candidate",
        x_format=duration,
        x_tick=round_time,
        x_label="time per call",
    )
    hint = "Where the calls lie. Solid: p50, dashed: p95, dotted: p99; what lies beyond the slowest p99 is left out."
    return card("Latency distributions", plot, hint=hint)


def _marks(row: CandidateResult) -> list[tuple[str, float]]:
    assert row.latency
    return [(name, getattr(row.latency, name).value) for name in ("p50", "p95", "p99")]


def tail_card(result: Measured) -> Markup | None:
    shown = [row for row in result.measured if len(row.samples) > 4]
    if not shown:
        return None
    colour = colours(result)
    limit = max(row.latency.p99.value for row in shown if row.latency) * 1.05
    series = []
    for row in shown:
        points = [(value, share) for value, share in step_points(row.samples) if value <= limit]
        series.append(Series(row.title, colour[row.name], [(points[0][0], 0.0), *points]))
    lowest = min(x for one in series for x, _ in one.points)
    plot = line_plot(
        series,
        title="Share of calls done within a time",
        x_format=round_time,
        y_format=lambda share: f"{share * 100:.0f} %",
        x_label="time per call",
        log_x=limit / lowest > 5,
    )
    hint = "The share of calls that took at most so long: further left is faster, steeper is steadier."
    return card("Calls done within a time", legend(shown, colour), plot, hint=hint)


def _steady_after(row: CandidateResult) -> str:
    calls = cells.warm_up(row)
    if calls == "drifts":
        return "still drifts when its time is up"
    return (
        "is steady from the start"
        if calls in ("0", cells.NONE)
        else f"is steady after {calls} call{'s' * (calls != '1')}"
    )


def warm_up_card(result: Measured) -> Markup | None:
    shown = [row for row in result.candidates if row.warm_up and len(row.warm_up.samples) > 3]
    if not shown:
        return None
    colour = colours(result)
    series = []
    for row in shown:
        assert row.warm_up
        samples = row.warm_up.samples[:_FIRST_CALLS]
        steady = quantile(row.warm_up.samples[-10:], 0.5)
        series.append(
            Series(row.title, colour[row.name], [(index + 1, value / steady) for index, value in enumerate(samples)])
        )
    spread = max(y for one in series for _, y in one.points)
    plot = line_plot(
        series,
        title="The first calls of each candidate, against its steady ones",
        x_format=lambda index: f"{index:.0f}",
        y_format=lambda ratio: f"{ratio:g} ×",
        x_label="sample (short calls are timed in groups)",
        log_y=spread > 5,
        height=200.0,
    )
    words = "; ".join(f"{row.title} {_steady_after(row)}" for row in shown)
    hint = f"Time of the first calls after compiling, against the steady ones: {words}."
    return card("Warm-up", legend(shown, colour), plot, hint=hint)
