"""What `burnish doctor` prints."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table
from rich.text import Text

from burnish.tools.doctor.examine import Examination
from burnish.tools.doctor.line import Line

if TYPE_CHECKING:
    from burnish.tools.doctor.checklist import ChecklistLine  # which imports what only a target needs

_STYLES: dict[str, str] = {"ok": "green", "warn": "yellow", "fail": "bold red", "not measured": "dim"}


def plain_console() -> Console:
    """Messages may hold [brackets] of their own, and numbers need no colours."""
    return Console(highlight=False, markup=False)


def print_examination(console: Console, found: Examination) -> None:
    table = _table()
    for line in found.lines:
        table.add_row(_word(line.status), line.name, line.says)
        for hint in _hints(line):
            table.add_row("", "", hint)
    console.print(table)
    console.print(Text.assemble(("tier: ", "bold"), found.tier), soft_wrap=True)
    started = f", after {found.start_seconds:.1f} s of starting Python and torch" if found.start_seconds else ""
    console.print(f"{_tally([line.status for line in found.lines])} in {found.seconds:.1f} s{started}", style="dim")


def print_checklist(console: Console, target: str, lines: Sequence[ChecklistLine]) -> None:
    console.print()
    console.print(f"production checklist for {target}", style="bold")
    table = _table()
    for line in lines:
        table.add_row(_word(line.verdict), line.name, line.figure)
        if line.advice:
            table.add_row("", "", Text(f"→ {line.advice}", style="cyan"))
    console.print(table)
    console.print(_tally([line.verdict for line in lines]), style="dim")


def _table() -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    return table


def _word(status: str) -> Text:
    return Text("–" if status == "not measured" else status, style=_STYLES[status])


def _hints(line: Line) -> list[Text]:
    advice = [Text(f"→ {line.advice}", style="cyan")] if line.advice else []
    return advice + ([Text(f"  $ {line.command}", style="bold")] if line.command else [])


def _tally(statuses: Sequence[str]) -> str:
    warned, failed = statuses.count("warn"), statuses.count("fail")
    parts = [f"{len(statuses)} checks"]
    parts += [f"{warned} warning{'s' if warned > 1 else ''}"] if warned else []
    parts += [f"{failed} failed"] if failed else []
    return ", ".join(parts) if warned or failed else f"{len(statuses)} checks, nothing wrong"
