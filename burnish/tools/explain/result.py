"""The result of `burnish.explain`: its findings, which print like the command's output."""

from __future__ import annotations

from dataclasses import dataclass

from burnish.tools.explain.findings import Findings


@dataclass(frozen=True)
class Explanation(Findings):
    """`print` it, or read its parts."""

    def __str__(self) -> str:
        from burnish.tools.explain.render import as_text  # rich takes its time to import

        return as_text(self)
