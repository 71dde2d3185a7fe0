"""The first card: the verdict, its figures, its reasons."""

from __future__ import annotations

import burnish.tools.bench.cells as cells
from burnish.tools.bench.candidates import EAGER
from burnish.tools.bench.measured import CandidateResult, Measured
from burnish.tools.measure import duration
from burnish.tools.report.markup import Markup, tag

_TONES = {
    "compile": ("good", "Compile it"),
    "eager": ("warn", "Leave it in eager"),
    "no difference": ("warn", "No difference"),
    "look elsewhere": ("warn", "Look elsewhere first"),
    "unknown": ("bad", "No verdict"),
}


def verdict_card(result: Measured) -> Markup:
    tone, words = _TONES[result.verdict.kind]
    badges = [tag("span", words, class_="badge")]
    if result.incomplete:
        badges.append(tag("span", "incomplete", class_="badge bad"))
    tiles = _tiles(result)
    return tag(
        "section",
        tag("div", [part for badge in badges for part in (badge, " ")]),
        tag("p", result.verdict.headline, class_="headline"),
        tag("div", tiles, class_="tiles") if tiles else None,
        tag("ul", [tag("li", reason) for reason in result.verdict.reasons], class_="reasons"),
        class_=f"card verdict {tone}",
    )


def _tiles(result: Measured) -> list[Markup]:
    """The winner's figures; without a winner, those of the fastest compiled candidate."""
    shown = _shown(result)
    eager = next((row for row in result.measured if row.name == EAGER), None)
    if shown is None or shown.latency is None or eager is None or eager.latency is None:
        return []
    found = [
        (cells.speedup(shown), f"{shown.title} against eager"),
        (f"{duration(eager.latency.p50.value)} → {duration(shown.latency.p50.value)}", "median call"),
    ]
    if shown.compile and shown.compile.cold_seconds is not None:
        found.append((cells.cold(shown), "cold compile"))
        found.append((cells.pays_after(shown), "until it has paid for itself"))
    if result.share is not None and shown.speedup is not None:
        found.append((f"{result.share.gain(shown.speedup.value):.2f} ×", "a whole step, data and all"))
    elif shown.error is not None and eager.error:
        found.append((f"{shown.error / eager.error:.1f} ×", "eager's error against float64"))
    return [tag("div", tag("b", value), tag("span", meaning), class_="tile") for value, meaning in found]


def _shown(result: Measured) -> CandidateResult | None:
    rivals = [row for row in result.measured if row.speedup is not None]
    named = [row for row in rivals if row.name == result.verdict.winner]
    if named:
        return named[0]
    return max(rivals, key=lambda row: row.speedup.value if row.speedup else 0.0, default=None)
