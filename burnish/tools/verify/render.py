"""`burnish verify` for people: the table, the culprit and its kernel."""

from __future__ import annotations

import io
import textwrap
from collections.abc import Sequence

from rich import box
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from burnish.tools.verify.findings import Check, Findings

_SOURCE_LINES = 60


def as_text(result: Findings) -> str:
    out = io.StringIO()
    Console(file=out, width=150, highlight=False, markup=False, color_system=None).print(report(result))
    return out.getvalue().rstrip()


def report(result: Findings, full: bool = False) -> RenderableType:
    parts: list[RenderableType] = [_table(result.checks, full)] if result.checks else []
    parts += [Text(f"  skipped   {text}", style="dim") for text in result.skipped]
    parts += [Text(f"  note      {text}") for text in result.notes]
    if result.culprit is not None:
        parts.append(_culprit(result))
    style = "bold green" if result.ok else "bold red"
    parts.append(Text(f"\n{result.name}: {result.verdict}  ({result.seconds:.1f} s)", style=style))
    return Group(*parts)


def _table(checks: Sequence[Check], full: bool) -> Table:
    """Every wrong tensor; of the right ones each kind's closest to its limit (`full`: all of them)."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for title in ("inputs", "phase", "compared", "of type", "error", "eager's", "allowed", ""):
        numeric = title in ("error", "eager's", "allowed")
        table.add_column(title, justify="right" if numeric else "left", no_wrap=title != "", overflow="fold")
    for case in dict.fromkeys((c.inputs, c.phase, c.kind) for c in checks):
        mine = [c for c in checks if (c.inputs, c.phase, c.kind) == case]
        fine = sorted((c for c in mine if c.ok), key=lambda c: -c.verdict.times_limit)
        for check in (c for c in mine if not c.ok):
            table.add_row(*_row(check, check.name), style="red")
        if full:
            for check in fine:
                table.add_row(*_row(check, check.name))
        elif fine:
            others = f" (closest of {len(fine)})" if len(fine) > 1 else ""
            table.add_row(*_row(fine[0], f"{fine[0].name}{others}"))
    return table


def _row(check: Check, name: str) -> tuple[str, ...]:
    v = check.verdict
    exact = not check.dtype.startswith(("float", "bfloat", "complex"))
    numbers = ("exact", "", "") if exact and v.ok else tuple(f"{e.largest:.1e}" for e in (v.error, v.eager, v.limit))
    told = "right" if v.ok else f"WRONG: {v.reason}"
    kind = f"{check.dtype}[{', '.join(map(str, check.shape))}]" if check.dtype else ""
    return (check.inputs, check.phase, name, kind, *numbers, told)


def _culprit(result: Findings) -> RenderableType:
    culprit = result.culprit
    assert culprit is not None
    lines = [
        Text("\nThe cause", style="bold"),
        Text(f"  stage     {culprit.stage}: {culprit.meaning}"),
        Text(f"  step      {culprit.step}" + (f"  (in the {culprit.graph} graph)" if culprit.graph else "")),
    ]
    if culprit.fuel:
        lines.append(Text(f"  fuel      right with BURNISH_FUEL={culprit.fuel - 1}, wrong with {culprit.fuel}"))
    if result.repro is not None:
        lines.append(Text(f"  repro     python {result.repro}"))
    parts: list[RenderableType] = list(lines)
    for title, text in (("its loop", culprit.kernel), ("its source", culprit.source)):
        if text:
            parts += [Text(f"  {title}"), Text(_clipped(text), no_wrap=True, overflow="ignore")]
    return Group(*parts)


def _clipped(text: str) -> str:
    lines = text.splitlines()
    more = [f"… {len(lines) - _SOURCE_LINES} more lines (--json has all)"] if len(lines) > _SOURCE_LINES else []
    return textwrap.indent("\n".join(lines[:_SOURCE_LINES] + more), "    ")
