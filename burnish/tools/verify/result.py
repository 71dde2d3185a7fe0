"""The result of `burnish.verify`: its findings, which print like the command's output."""

from __future__ import annotations

from dataclasses import dataclass

from burnish.tools.verify.findings import Findings


@dataclass(frozen=True)
class VerifyResult(Findings):
    """`ok` is the answer; `print` it for the table."""

    def __str__(self) -> str:
        from burnish.tools.verify.render import as_text  # rich takes its time to import

        return as_text(self)
