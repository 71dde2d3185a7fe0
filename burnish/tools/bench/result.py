"""The result of `burnish.bench`: its measurements, which print as a table or an HTML page."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from burnish.tools.bench.measured import Measured


@dataclass(frozen=True)
class BenchResult(Measured):
    """One target, every candidate. `print` it, or write it with `to_json` and `write_html`."""

    def write_html(self, path: str | Path) -> Path:
        """One file that needs nothing else: no network, no other file."""
        from burnish.tools.report.page import page  # plotting takes its time to import

        written = Path(path)
        written.write_text(page(self), encoding="utf-8")
        return written

    def __str__(self) -> str:
        from burnish.tools.bench.table import as_text  # so does rich

        return as_text(self)
