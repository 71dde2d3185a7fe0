"""One finding of `burnish doctor`."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

# ok: as it should be.  warn: works, and could be better.  fail: burnish cannot do its work because of it.
Status = Literal["ok", "warn", "fail"]


@dataclass(frozen=True)
class Line:
    name: str
    status: Status
    says: str  # what was found, and what it means for the user
    advice: str = ""  # what to do about it
    command: str = ""  # the command that does it, or the setting
    seconds: float = 0.0  # what finding out cost

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)
