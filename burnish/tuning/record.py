"""The result of tuning: each kernel's form. A record prints as JSON, and `burnish.compile(tuning=...)` accepts it."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

_LONGEST = 1 << 24  # bytes of a file that may be a record


@dataclass(frozen=True)
class Tuned:
    """One kernel's form, and the rule's; seconds of a launch where it was measured in this compile."""

    key: str
    form: str
    rule: str
    seconds: float | None = None
    rule_seconds: float | None = None
    tried: int = 0
    source: str = "measured"  # measured, cached, given
    device: str = ""

    @property
    def gain(self) -> float | None:
        """How many times as long the rule's form takes."""
        return self.rule_seconds / self.seconds if self.seconds and self.rule_seconds else None

    def __str__(self) -> str:
        gain = f", {self.gain:.2f} x as fast as {self.rule}" if self.gain and self.form != self.rule else ""
        return f"{self.key}: {self.form} ({self.source}{gain})"


@dataclass(frozen=True)
class Tuning:
    """A record: kernels' keys and the text of their forms. `device` is where they were measured, or empty."""

    forms: tuple[tuple[str, str], ...] = ()
    device: str = ""

    def __str__(self) -> str:
        return json.dumps({"device": self.device, "forms": dict(self.forms)}, indent=1)

    @property
    def digest(self) -> str:
        return hashlib.sha256(str(self).encode()).hexdigest()

    def get(self, key: str) -> str | None:
        return dict(self.forms).get(key)

    @classmethod
    def of(cls, tuned: Iterable[Tuned]) -> Tuning:
        known = list(tuned)
        devices = dict.fromkeys(t.device for t in known)
        return cls(tuple(sorted({t.key: t.form for t in known}.items())), ", ".join(devices))

    @classmethod
    def read(cls, source: object) -> Tuning:
        """Read a printed record: its file, or the mapping (the mapping of forms suffices). Raises TypeError or
        ValueError if it is not a record."""
        if isinstance(source, Tuning):
            return source
        if isinstance(source, (str, os.PathLike)):
            path = Path(source).expanduser()
            if path.stat().st_size > _LONGEST:
                raise ValueError(source)
            source = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(source, Mapping):
            raise TypeError(source)
        forms, device = source.get("forms", source), source.get("device", "")
        if not isinstance(forms, Mapping) or not isinstance(device, str):
            raise TypeError(source)
        found = {key: form for key, form in forms.items() if key != "device"}
        if not all(isinstance(text, str) for pair in found.items() for text in pair):
            raise TypeError(source)
        return cls(tuple(sorted(found.items())), device)
