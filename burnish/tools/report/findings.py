"""Cards about what was found beside the numbers: failures, graph breaks, the checklist, noise, how it was measured."""

from __future__ import annotations

from burnish.tools.bench.measured import Break, Measured
from burnish.tools.bench.words import percent
from burnish.tools.report.markup import Markup, tag
from burnish.tools.report.parts import card, table

_TONES = {"ok": "good", "warn": "warn", "fail": "bad"}


def failures_card(result: Measured) -> Markup | None:
    failed = [row for row in result.candidates if row.failure]
    if not failed:
        return None
    items = [tag("li", tag("b", row.title), tag("pre", row.failure or "")) for row in failed]
    return card("What failed", tag("ul", items, class_="breaks"), wide=True)


def breaks_card(result: Measured) -> Markup | None:
    """Graph breaks, each once, with its line of code; said too where there are none."""
    compiled = [row for row in result.candidates if row.candidate.engine == "burnish" and not row.failure]
    if not compiled:
        return None
    found: dict[Break, None] = {entry: None for row in compiled for entry in row.breaks}
    if not found:
        return card("Graph breaks", tag("p", "None: the model is one graph."))
    items = [
        tag(
            "li",
            tag("code", f"{entry.file}:{entry.line}"),
            tag("pre", entry.code) if entry.code else None,
            tag("span", entry.reason),
        )
        for entry in found
    ]
    hint = "At each of these lines the graph is split, and Python runs between the parts."
    return card(f"Graph breaks ({len(found)})", tag("ul", items, class_="breaks"), hint=hint)


def checklist_card(result: Measured) -> Markup | None:
    if not result.checklist:
        return None
    rows = []
    for line in result.checklist:
        tone = _TONES.get(line.verdict, "quiet")
        advice = tag("div", tag("small", f"→ {line.advice}")) if line.advice else None
        rows.append(
            tag(
                "tr",
                tag("td", tag("span", line.verdict, class_=f"badge {tone}")),
                tag("th", line.name, scope="row", style="text-align:left"),
                tag("td", line.figure, advice, class_="text"),
            )
        )
    whole = table("The production checklist", ["result", "check", "measured"], rows)
    hint = "What to know before burnish's version serves, each line measured on this model."
    return card("Production checklist", tag("div", whole, class_="checks"), hint=hint, wide=True)


def noise_card(result: Measured) -> Markup | None:
    activity = result.activity
    if activity is None:
        return None
    spreads = "; ".join(
        f"{row.title} {percent(row.latency.spread)}" for row in result.measured if row.latency is not None
    )
    noisy = any(row.latency and row.latency.noisy for row in result.measured)
    badge = tag("span", "noisy" if noisy else "quiet", class_=f"badge {'warn' if noisy else 'good'}")
    facts = [("spread of the rounds", spreads)]
    facts += [("likely cause", cause) for cause in result.causes]
    facts.append(("our process", f"{activity.own_cores:.1f} of {activity.cores} cores, {activity.threads} threads"))
    for name, value, text in (
        ("other processes", activity.other_cores, "{:.1f} cores"),
        ("taken by the hypervisor", activity.steal_cores, "{:.2f} cores"),
        ("taken off a core", activity.switches_per_second, "{:.0f} times a second"),
        ("load average", activity.load, "{:.1f}"),
        ("clocks dropped by", activity.frequency_drop, "{:.0%}"),
        ("GPU in use before", activity.gpu_busy_before, "{:.0%}"),
        ("GPU clocks dropped by", activity.gpu_clock_drop, "{:.0%}"),
    ):
        if value is not None:
            facts.append((name, text.format(value).replace("%", " %")))
    facts.append(("garbage collector", f"{activity.gc_seconds:.2f} s of {activity.seconds:.0f} s"))
    hint = "What this machine did while the calls were timed. Over 5 % of spread counts as noisy."
    return card("How quiet was the machine?", tag("p", badge), _facts(facts), hint=hint)


def method_card(result: Measured) -> Markup:
    machine = result.machine
    rounds = max((row.latency.rounds for row in result.measured if row.latency), default=0)
    calls = sum(row.latency.n for row in result.measured if row.latency)
    facts = [
        ("target", f"{result.target} ({result.kind}, on {result.device})"),
        (
            "measured",
            f"{machine.measured.replace('T', ' ')} in {result.seconds:.0f} s: {calls:,} calls in {rounds} rounds",
        ),
        (
            "machine",
            f"{machine.cpu}, {machine.cores} cores, {machine.system}" + (f"; {machine.gpu}" if machine.gpu else ""),
        ),
        ("versions", f"burnish {machine.burnish}, torch {machine.torch}, Python {machine.python}"),
        ("batch size", str(result.batch_size) if result.batch_size else "not evident"),
    ]
    if result.device != "cuda":
        facts.append(("host time", "the latency: on a CPU a call returns when it is done"))
    missing = {row.energy.missing for row in result.candidates if row.energy and row.energy.missing}
    facts += [("energy", f"not available: {why}") for why in sorted(missing)]
    if result.share is None:
        facts.append(("a whole step", "not measured: the target gives no data or step of its own"))
    facts += [("note", note) for note in result.notes]
    return card("How it was measured", _facts(facts))


def _facts(facts: list[tuple[str, str]]) -> Markup:
    return tag("dl", [part for name, text in facts for part in (tag("dt", name), tag("dd", text))])
