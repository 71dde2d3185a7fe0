"""Prometheus's text exposition format, version 0.0.4: the writer."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

Type = Literal["counter", "gauge", "histogram"]
Labels = Mapping[str, str]


class Family:
    """One metric with its help, its type and its samples, one for each set of labels."""

    def __init__(self, name: str, kind: Type, help: str) -> None:
        self.name = name
        self.kind = kind
        self.help = help
        self._lines: list[str] = []

    def add(self, value: float, **labels: str) -> None:
        self._sample(self.name, labels, value)

    def add_histogram(self, bounds: Sequence[float], counts: Sequence[int], total: float, **labels: str) -> None:
        """`counts` are per bucket, with one more than `bounds` for what is above them all; the format adds them up."""
        seen = 0
        for bound, count in zip((*bounds, math.inf), counts, strict=True):
            seen += count
            self._sample(f"{self.name}_bucket", {**labels, "le": _number(bound)}, seen)
        self._sample(f"{self.name}_sum", labels, total)
        self._sample(f"{self.name}_count", labels, seen)

    def _sample(self, name: str, labels: Labels, value: float) -> None:
        inside = ",".join(f'{label}="{_escaped(text)}"' for label, text in labels.items())
        self._lines.append(f"{name}{{{inside}}} {_number(value)}" if inside else f"{name} {_number(value)}")

    def text(self) -> str:
        """Nothing at all where there are no samples."""
        if not self._lines:
            return ""
        described = self.help.replace("\\", "\\\\").replace("\n", "\\n")
        return "\n".join((f"# HELP {self.name} {described}", f"# TYPE {self.name} {self.kind}", *self._lines, ""))


def exposition(families: Iterable[Family]) -> str:
    return "".join(family.text() for family in families)


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


def _number(value: float) -> str:
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    if math.isnan(value):
        return "NaN"
    return str(int(value)) if value == int(value) and abs(value) < 1e15 else repr(float(value))
