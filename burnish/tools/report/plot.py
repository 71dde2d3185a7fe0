"""Small plots as SVG. They are drawn 400 units wide, so that their text stays readable on a phone, and scale up."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from burnish.tools.report.markup import Markup, tag

WIDTH = 400.0
Format = Callable[[float], str]


@dataclass(frozen=True)
class Scale:
    """From values to positions, straight or logarithmic."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def __call__(self, value: float) -> float:
        low, high, value = (
            (math.log10(max(v, 1e-300)) for v in (self.low, self.high, value))
            if self.log
            else (
                self.low,
                self.high,
                value,
            )
        )
        part = (value - low) / (high - low) if high > low else 0.5
        return self.start + min(max(part, 0.0), 1.0) * (self.end - self.start)

    def ticks(self, about: int = 4) -> list[float]:
        if self.log:
            return _log_ticks(self.low, self.high, about)
        return _ticks(self.low, self.high, about)


def _ticks(low: float, high: float, about: int) -> list[float]:
    """Round values that divide the range into about so many parts."""
    if not high > low:
        return [low]
    rough = (high - low) / about
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * nice for nice in (1, 2, 2.5, 5, 10) if power * nice >= rough)
    first = math.ceil(low / step - 1e-9)
    return [index * step for index in range(first, math.floor(high / step + 1e-9) + 1)]


def _log_ticks(low: float, high: float, about: int) -> list[float]:
    exponents = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for multiples in ((1, 2, 5), (1, 3), (1,)):
        found = [m * 10.0**e for e in exponents for m in multiples if low * 0.999 <= m * 10.0**e <= high * 1.001]
        if len(found) <= about + 2:
            return found or [low]
    every = math.ceil(len(found) / (about + 1))
    return found[::every]


@dataclass(frozen=True)
class Series:
    """A line of a plot: its points, its name and its colour's number."""

    name: str
    colour: int
    points: Sequence[tuple[float, float]]
    mark: tuple[float, float] | None = None  # a point to put a dot on
    mark_title: str = ""


def line_plot(
    series: Sequence[Series],
    *,
    title: str,
    x_format: Format,
    y_format: Format,
    x_label: str,
    y_from_zero: bool = True,
    log_y: bool = False,
    log_x: bool = False,
    height: float = 230.0,
) -> Markup:
    """Lines over a common x. The legend is the caller's: names as text beside colours, above the plot."""
    points = [point for one in series for point in one.points]
    xs, ys = [x for x, _ in points], [y for _, y in points]
    bottom = min(ys) if log_y else 0.0 if y_from_zero else min(ys)
    left, right, top, base = 52.0, WIDTH - 10, 10.0, height - 34
    x_scale = Scale(min(xs), max(xs), left, right, log_x)
    y_scale = Scale(bottom, max(ys) * (1.0 if log_y else 1.05), base, top, log_y)
    parts = [
        *_grid(y_scale, left, right, y_format),
        *_x_axis(x_scale, base, x_format, x_label, height),
        *(_line(one, x_scale, y_scale) for one in series),
    ]
    return picture(title, height, parts)


def step_points(samples: Sequence[float]) -> list[tuple[float, float]]:
    """The share of samples at or below each value."""
    ordered = sorted(samples)
    n = len(ordered)
    keep = max(1, n // 160)
    return [(value, (rank + 1) / n) for rank, value in enumerate(ordered) if rank % keep == 0 or rank == n - 1]


@dataclass(frozen=True)
class Ridge:
    """One candidate's distribution."""

    name: str
    colour: int
    samples: Sequence[float]
    marks: Sequence[tuple[str, float]]  # p50, p95, p99


def ridge_plot(ridges: Sequence[Ridge], *, title: str, x_format: Format, x_tick: Format, x_label: str) -> Markup:
    """A histogram for each candidate, one above the other, over one axis: the widths and tails can be compared."""
    row, top = 58.0, 6.0
    height = top + row * len(ridges) + 40
    low = min(min(ridge.samples) for ridge in ridges)
    high = max(mark for ridge in ridges for _, mark in ridge.marks)
    log = high / max(low, 1e-12) > 5
    low, high = (low * 0.95, high * 1.08) if log else (low - 0.05 * (high - low), high + 0.05 * (high - low))
    scale = Scale(low, high, 10.0, WIDTH - 10, log)
    base = top + row * len(ridges)
    parts = list(_x_axis(scale, base, x_tick, x_label, height))
    for index, ridge in enumerate(ridges):
        parts += _ridge(ridge, scale, top + row * (index + 1), row - 20, x_format)
    return picture(title, height, parts)


def _ridge(ridge: Ridge, scale: Scale, base: float, height: float, x_format: Format) -> list[Markup]:
    bins = 72
    width = (scale.end - scale.start) / bins
    counts = [0] * bins
    for sample in ridge.samples:
        if scale.low <= sample <= scale.high:
            counts[min(bins - 1, int((scale(sample) - scale.start) / width))] += 1
    tallest = max(max(counts), 1)
    path = [f"M{scale.start:.1f},{base:.1f}"]
    for index, count in enumerate(counts):
        y = base - height * count / tallest
        x = scale.start + index * width
        path += [f"L{x:.1f},{y:.1f}", f"L{x + width:.1f},{y:.1f}"]
    path.append(f"L{scale.end:.1f},{base:.1f}Z")
    parts = [
        tag("line", x1=scale.start, y1=base, x2=scale.end, y2=base, class_="axis"),
        tag("path", d="".join(path), class_=f"area s{ridge.colour}"),
    ]
    for number, (name, value) in enumerate(ridge.marks):
        x = scale(value)
        mark = tag("line", x1=x, y1=base - height - 2, x2=x, y2=base, class_=f"mark mark{number} s{ridge.colour}")
        parts.append(tag("g", mark, tag("title", f"{ridge.name} {name}: {x_format(value)}")))
    middle = ridge.marks[0][1]
    near_right = scale(middle) > WIDTH * 0.55
    parts.append(
        tag(
            "text",
            f"{ridge.name}  {x_format(middle)}",
            x=scale(middle) + (-5 if near_right else 5),
            y=base - height - 4 + 10,
            class_="label halo",
            text_anchor="end" if near_right else "start",
        )
    )
    return parts


def picture(title: str, height: float, parts: Sequence[Markup]) -> Markup:
    return tag(
        "svg",
        tag("title", title),
        parts,
        viewBox=f"0 0 {WIDTH:.0f} {height:.0f}",
        role="img",
        aria_label=title,
        class_="plot",
    )


def _grid(scale: Scale, left: float, right: float, fmt: Format) -> list[Markup]:
    parts = []
    for value in scale.ticks():
        y = scale(value)
        parts.append(tag("line", x1=left, y1=y, x2=right, y2=y, class_="grid"))
        parts.append(tag("text", fmt(value), x=left - 6, y=y + 3.5, class_="tick", text_anchor="end"))
    return parts


def _x_axis(scale: Scale, base: float, fmt: Format, label: str, height: float) -> list[Markup]:
    parts = [tag("line", x1=scale.start, y1=base, x2=scale.end, y2=base, class_="axis")]
    last = -1e9
    for value in scale.ticks():
        x = scale(value)
        text = fmt(value)
        half = 3.2 * len(text)
        if x - half < last + 6:  # labels never run into each other
            continue
        last = x + half
        parts.append(tag("line", x1=x, y1=base, x2=x, y2=base + 4, class_="axis"))
        anchor = "end" if x > scale.end - 14 else "start" if x < scale.start + 8 else "middle"
        parts.append(tag("text", text, x=x, y=base + 15, class_="tick", text_anchor=anchor))
    parts.append(tag("text", label, x=scale.end, y=height - 4, class_="tick soft", text_anchor="end"))
    return parts


def _line(series: Series, x_scale: Scale, y_scale: Scale) -> Markup:
    points = " ".join(f"{x_scale(x):.1f},{y_scale(y):.1f}" for x, y in series.points)
    line = tag("polyline", points=points, class_=f"line s{series.colour}")
    parts = [line, tag("title", series.name)]
    if series.mark is not None:
        x, y = series.mark
        dot = tag("circle", cx=x_scale(x), cy=y_scale(y), r=4, class_=f"dot s{series.colour}")
        parts.append(tag("g", dot, tag("title", series.mark_title or series.name)))
    return tag("g", parts)
