"""The report as one page: what to do first, then what that rests on."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import resources

from burnish.tools.bench.machine import Machine
from burnish.tools.bench.measured import Measured
from burnish.tools.report.compiling import compile_card, memory_card, timeline_card
from burnish.tools.report.findings import breaks_card, checklist_card, failures_card, method_card, noise_card
from burnish.tools.report.latency import distribution_card, speed_card, tail_card, warm_up_card
from burnish.tools.report.markup import Markup, join, tag
from burnish.tools.report.numbers import numbers_card
from burnish.tools.report.verdict import verdict_card
from burnish.tools.report.work import around_card, energy_card, parity_card, work_card


def page(result: Measured) -> str:
    """The whole file. Sections without anything to show are left out."""
    cards = [
        card(result)
        for card in (
            numbers_card,
            failures_card,
            speed_card,
            distribution_card,
            tail_card,
            compile_card,
            around_card,
            work_card,
            memory_card,
            timeline_card,
            parity_card,
            warm_up_card,
            energy_card,
            breaks_card,
            checklist_card,
            noise_card,
            method_card,
        )
    ]
    return whole(result.target, result.machine, result.device == "cuda", verdict_card(result), cards)


def whole(target: str, machine: Machine, on_gpu: bool, verdict: Markup, cards: Sequence[Markup | None]) -> str:
    """A file with these cards."""
    body = tag(
        "div",
        _header(target, machine, on_gpu),
        tag("main", verdict, tag("div", [card for card in cards if card], class_="cards")),
        tag(
            "footer",
            f"Written by burnish {machine.burnish}. This file needs nothing else: it loads no scripts, "
            "fonts or pictures.",
        ),
        class_="wrap",
    )
    return "<!DOCTYPE html>\n" + tag("html", _head(target), tag("body", body), lang="en") + "\n"


def _head(target: str) -> Markup:
    style = resources.files("burnish.tools.report").joinpath("page.css").read_text(encoding="utf-8")
    # Nothing may be fetched, whatever a model's name or an error's text holds.
    policy = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
    return tag(
        "head",
        Markup('<meta charset="utf-8">'),
        Markup('<meta name="viewport" content="width=device-width, initial-scale=1">'),
        Markup(f'<meta http-equiv="Content-Security-Policy" content="{policy}">'),
        Markup('<meta name="color-scheme" content="light dark">'),
        Markup(f'<link rel="icon" href="{_ICON}">'),
        tag("title", f"{target}: burnish bench"),
        tag("style", Markup(style)),
    )


# A file without an icon makes browsers ask for one.
_ICON = (
    "data:image/svg+xml,%3Csvg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 16 16'%3E"
    "%3Crect width='16' height='16' rx='4' fill='%23c2500c'/%3E%3Cpath d='M4 11h8M4 8h6M4 5h3' stroke='white' "
    "stroke-width='1.6' stroke-linecap='round'/%3E%3C/svg%3E"
)


def _header(target: str, machine: Machine, on_gpu: bool) -> Markup:
    where = machine.gpu if on_gpu else f"{machine.cpu}, {machine.threads} threads"
    day, _, moment = machine.measured.partition("T")
    return tag(
        "header",
        tag("span", "burnish bench", class_="brand"),
        tag("h1", target),
        tag("span", join(f"{where} · torch {machine.torch} · {day} {moment[:5]} UTC"), class_="where"),
    )
