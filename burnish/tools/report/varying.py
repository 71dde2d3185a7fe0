"""The report of `burnish bench --shapes`: strategies for varying sizes on the same traffic."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from burnish.tools.bench.varying import MEANINGS, ShapesResult, StrategyResult
from burnish.tools.measure import duration, quantile
from burnish.tools.report.latency import round_time
from burnish.tools.report.markup import Markup, join, tag
from burnish.tools.report.page import whole
from burnish.tools.report.parts import Piece, bar, bars, card, swatch, table
from burnish.tools.report.plot import Series, line_plot, step_points

_MOST_GROUPS = 24  # of requests of about the same size, in a plot
_LARGEST_POINTS = 400  # of a line


def page(result: ShapesResult) -> str:
    assert result.machine is not None
    cards = [each(result) for each in (_speed, _numbers, _done, _by_size, _first_pass, _traffic, _notes)]
    return whole(result.target, result.machine, result.machine.gpu is not None, _verdict(result), cards)


def _colour(result: ShapesResult, row: StrategyResult) -> int:
    """eager's and burnish's own are those of every report."""
    return min([each.name for each in result.rows].index(row.name), 7)


def _legend(result: ShapesResult) -> Markup:
    items = [tag("li", swatch(_colour(result, row)), row.name) for row in result.measured]
    return tag("ul", items, class_="legend")


def _verdict(result: ShapesResult) -> Markup:
    best = max(result.measured, key=lambda row: row.requests_per_s)
    ratio = result.against_eager(best)
    beside = f", {ratio:.2f} × eager's" if ratio is not None else ""
    said = f"{best.name} serves the most: {best.requests_per_s:,.1f} requests/s{beside}."
    steady = min(result.measured, key=lambda row: row.first_p99_s)
    spikes = (
        f"In the first pass {steady.name} has the smallest p99, {duration(steady.first_p99_s)}; "
        f"{best.name} has {duration(best.first_p99_s)}, and compiled {best.compiles} times, {best.compiles_later} of "
        "them later."
    )
    return card(said, tag("p", spikes), tag("p", f"{result.requests} requests, {result.traffic}.", class_="hint"))


def _speed(result: ShapesResult) -> Markup:
    most = max(row.requests_per_s for row in result.measured)
    items = []
    for row in sorted(result.measured, key=lambda row: -row.requests_per_s):
        ratio = result.against_eager(row)
        figure = join(f"{row.requests_per_s:,.1f}/s", tag("small", f" {ratio:.2f} ×") if ratio is not None else None)
        items.append(bar(row.name, figure, [Piece(row.requests_per_s / most, _colour(result, row))]))
    hint = "Requests per second in the second pass over the traffic; beside it, against eager."
    return card("Throughput", bars(items), hint=hint)


_COLUMNS: Sequence[tuple[str, Callable[[StrategyResult], str]]] = (
    ("requests/s", lambda row: f"{row.requests_per_s:,.1f}"),
    ("p50", lambda row: duration(row.p50_s)),
    ("p95", lambda row: duration(row.p95_s)),
    ("p99", lambda row: duration(row.p99_s)),
    ("first pass p99", lambda row: duration(row.first_p99_s)),
    ("worst", lambda row: duration(row.first_worst_s)),
    ("prepared in", lambda row: duration(row.prepare_s)),
    ("compiles", lambda row: f"{row.compiles}"),
    ("in pass 2", lambda row: f"{row.compiles_later}"),
    ("padding", lambda row: f"{row.waste:.0%}"),
    ("peak memory", lambda row: f"{row.peak_bytes / 2**20:,.0f} MiB"),
)


def _numbers(result: ShapesResult) -> Markup:
    rows = [
        tag(
            "tr",
            tag("th", swatch(_colour(result, row)), row.name, scope="row"),
            [tag("td", cell(row)) for _, cell in _COLUMNS],
        )
        for row in result.measured
    ]
    hint = (
        "Each strategy in a process of its own with empty caches: prepared, then the traffic twice, one request after "
    )
    return card(
        "The numbers",
        table("Strategies", ["strategy", *(heading for heading, _ in _COLUMNS)], rows),
        hint=f"{hint}the other.",
        wide=True,
    )


def _done(result: ShapesResult) -> Markup:
    limit = max(row.p99_s for row in result.measured) * 1.05
    series = []
    for row in result.measured:
        points = [(value, share) for value, share in step_points(row.later) if value <= limit]
        series.append(Series(row.name, _colour(result, row), [(points[0][0], 0.0), *points]))
    lowest = min(x for one in series for x, _ in one.points)
    plot = line_plot(
        series,
        title="Share of requests done within a time",
        x_format=round_time,
        y_format=lambda share: f"{share * 100:.0f} %",
        x_label="time per request, second pass",
        log_x=limit / lowest > 5,
    )
    return card("Requests done within a time", _legend(result), plot, hint="Further left is faster.")


def _by_size(result: ShapesResult) -> Markup | None:
    """Where padding costs, and where a program for the size pays."""
    sizes = [math.prod(each.values()) for each in result.sizes]
    groups = _groups(sizes)
    if len(groups) < 2:
        return None
    series = []
    for row in result.measured:
        points = [(quantile([sizes[k] for k in group], 0.5), quantile([row.later[k] for k in group], 0.5)) for group in groups]  # fmt: skip # noqa: E501
        series.append(Series(row.name, _colour(result, row), points))
    plot = line_plot(
        series,
        title="Time of requests by their size",
        x_format=lambda size: f"{size:,.0f}",
        y_format=round_time,
        x_label=" × ".join(result.sizes[0]),
    )
    return card("Time by size", _legend(result), plot, hint="The median of requests of about the same size.")


def _groups(sizes: Sequence[int]) -> list[list[int]]:
    """Numbers of requests, by size: about as many in each group."""
    ordered = sorted(range(len(sizes)), key=lambda k: sizes[k])
    length = max(1, math.ceil(len(ordered) / _MOST_GROUPS))
    return [ordered[start : start + length] for start in range(0, len(ordered), length)]


def _first_pass(result: ShapesResult) -> Markup:
    series = [
        Series(row.name, _colour(result, row), [(k + 1.0, each) for k, each in _thinned(row.first)])
        for row in result.measured
    ]
    plot = line_plot(
        series,
        title="Each request of the first pass",
        x_format=lambda number: f"{number:.0f}",
        y_format=round_time,
        x_label="request",
        log_y=True,
    )
    return card("The first pass", _legend(result), plot, hint="Peaks are requests that waited for a compile.")


def _thinned(times: Sequence[float]) -> list[tuple[int, float]]:
    """The slowest of each few requests: peaks are what the plot is for."""
    few = max(1, math.ceil(len(times) / _LARGEST_POINTS))
    parts = [range(start, min(start + few, len(times))) for start in range(0, len(times), few)]
    return [(k := max(part, key=lambda n: times[n]), times[k]) for part in parts]


def _traffic(result: ShapesResult) -> Markup:
    series = []
    for number, name in enumerate(result.sizes[0]):
        series.append(Series(name, number, step_points([float(each[name]) for each in result.sizes])))
    items = [tag("li", swatch(one.colour), one.name) for one in series]
    plot = line_plot(
        series,
        title="Sizes of the requests",
        x_format=lambda size: f"{size:g}",
        y_format=lambda share: f"{share * 100:.0f} %",
        x_label="size",
        height=200.0,
    )
    return card("The traffic", tag("ul", items, class_="legend"), plot, hint="The share of requests up to a size.")


def _notes(result: ShapesResult) -> Markup:
    items = [tag("li", tag("b", row.name), f": {MEANINGS.get(row.name, '')}", _said(row)) for row in result.rows]
    return card("The strategies", tag("ul", items), wide=True)


def _said(row: StrategyResult) -> Markup | None:
    said = [f"failed: {row.failure}"] if row.failure else list(row.notes)
    return tag("ul", [tag("li", each) for each in said]) if said else None
