"""What `burnish verify` found, as data."""

from __future__ import annotations

import dataclasses
import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from burnish.tools.verify.culprit import Culprit
from burnish.tools.verify.judge import TensorVerdict


@dataclass(frozen=True)
class Check:
    """One tensor that a run left behind, compared."""

    inputs: str  # the input set
    phase: str  # inference or gradients
    name: str  # "output.0", "state.bn.running_mean", "input.cache (written)", "grad.linear.weight"
    dtype: str
    shape: tuple[int, ...]
    verdict: TensorVerdict

    @property
    def ok(self) -> bool:
        return self.verdict.ok

    @property
    def kind(self) -> str:
        kinds = {"output": "output", "state": "state", "grad": "gradient", "input": "state"}
        return kinds.get(self.name.split(".")[0], "state")


@dataclass(frozen=True)
class Findings:
    """Of one target; `ok` is the answer."""

    name: str
    checks: tuple[Check, ...]
    skipped: tuple[str, ...] = ()  # what was not compared, and why
    notes: tuple[str, ...] = ()  # what a reader should know: randomness, no referee, eager serving
    compiled: bool = True  # False: eager served everything, and was compared with itself
    culprit: Culprit | None = None
    repro: Path | None = None
    seconds: float = 0.0

    @property
    def ok(self) -> bool:
        return all(check.ok for check in self.checks)

    @property
    def failures(self) -> tuple[Check, ...]:
        return tuple(check for check in self.checks if not check.ok)

    @property
    def verdict(self) -> str:
        """The answer in one sentence."""
        if self.failures:
            worst = max(self.failures, key=lambda check: check.verdict.times_limit)
            wrong = f"{len(self.failures)} of {len(self.checks)} tensors"
            return f"WRONG: {wrong}, the worst is {worst.name} ({worst.inputs} inputs, {worst.phase})"
        if not self.compiled:
            return "not compiled: eager serves it, so there is nothing to prove"
        judged = "in part by eager alone" if any(note.startswith("no float64") for note in self.notes) else "by float64"
        return f"right: {len(self.checks)} tensors agree with eager, judged {judged}"

    def to_dict(self) -> dict[str, Any]:
        plain: dict[str, Any] = _plain(dataclasses.asdict(self))
        for check, entry in zip(self.checks, plain["checks"], strict=True):
            entry["kind"] = check.kind
        return {"ok": self.ok, "verdict": self.verdict, **plain}

    def to_json(self) -> str:
        return json.dumps(self.to_dict(), indent=2, ensure_ascii=False)


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return str(value) if isinstance(value, Path) else value
