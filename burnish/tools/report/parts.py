"""Parts that several cards of the report share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from burnish.tools.bench.measured import CandidateResult, Measured
from burnish.tools.report.markup import Markup, Part, tag

_OWN_COLOURS = {"eager": 0, "inductor": 1, "burnish": 2}  # the rest take what is left, in order


def colours(result: Measured) -> dict[str, int]:
    """A colour's number for each candidate, the same in every plot and every report."""
    taken: dict[str, int] = {}
    free = iter((3, 4, 5, 6, 7, *range(3, 8)))
    for row in result.candidates:
        taken[row.name] = _OWN_COLOURS[row.name] if row.name in _OWN_COLOURS else next(free, 7)
    return taken


def card(title: str, *parts: Part, hint: str = "", wide: bool = False) -> Markup:
    return tag(
        "section",
        tag("h2", title),
        tag("p", hint, class_="hint") if hint else None,
        *parts,
        class_="card wide" if wide else "card",
    )


def legend(rows: Sequence[CandidateResult], colour: dict[str, int]) -> Markup:
    items = [tag("li", swatch(colour[row.name]), row.title) for row in rows]
    return tag("ul", items, class_="legend")


def swatch(colour: int) -> Markup:
    return tag("span", class_=f"swatch s{colour}", aria_hidden="true")


@dataclass(frozen=True)
class Fill:
    """A part of a bar, as a fraction of the whole track."""

    fraction: float
    colour: int
    light: bool = False
    title: str = ""


def bar(name: Part, figure: Part, fills: Sequence[Fill]) -> Markup:
    """A name and a figure above a track that is filled from the left."""
    drawn = [
        tag(
            "i",
            class_=f"fill s{fill.colour}" + (" light" if fill.light else "") + (" part" if len(fills) > 1 else ""),
            style=f"width:{100 * min(max(fill.fraction, 0.0), 1.0):.2f}%",
            title=fill.title or None,
        )
        for fill in fills
    ]
    return tag(
        "li",
        tag("div", tag("span", name), tag("b", figure), class_="head"),
        tag("div", drawn, class_="track"),
    )


def bars(items: Sequence[Markup]) -> Markup:
    return tag("ul", items, class_="bars")


def table(caption: str, headings: Sequence[str], rows: Sequence[Markup]) -> Markup:
    """A table that scrolls in its own box where the page is narrow."""
    head = tag("thead", tag("tr", [tag("th", heading, scope="col") for heading in headings]))
    whole = tag("table", tag("caption", caption, class_="sr"), head, tag("tbody", rows))
    return tag("div", whole, class_="scroll", tabindex="0", role="region", aria_label=caption)
