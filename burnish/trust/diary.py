"""What becomes of variants, written into the object's log: counted, told to its sinks, and warned about once."""

from __future__ import annotations

import warnings

from burnish.errors import CompileError, FallbackWarning
from burnish.observe.log import CompileLog
from burnish.trust.gate import Failure
from burnish.trust.variant import Variant


class Diary:
    """The listener of one variant."""

    def __init__(self, log: CompileLog, name: str) -> None:
        self._log = log
        self._name = name  # the variant's: "graph 1"

    def judged(self, variant: Variant, seconds: float) -> None:
        gate = variant.gate
        if gate is None:
            return
        self._log.add_seconds("gate", seconds)
        detail: dict[str, object] = {"engine": variant.engine}
        if gate.ratio is not None:
            detail |= {"ratio": round(gate.ratio, 3), "eager_us": gate.eager_us, "compiled_us": gate.compiled_us}
        self._log.emit("gate", variant=self._name, seconds=seconds, reason=_reason(variant), **detail)

    def compared(self, seconds: float) -> None:
        """Half of a training step; judging it all comes later."""
        self._log.add_seconds("gate", seconds)

    def rolled_back(self, variant: Variant, failure: Failure) -> None:
        if failure.asked:
            self._log.emit("rollback", variant=self._name, reason=failure.reason, cause="asked")
            return
        first = self._log.fallback("run", CompileError("run", failure.reason))
        cause = "exception" if failure.stack else "numbers"
        self._log.emit("rollback", variant=self._name, reason=failure.reason, cause=cause)
        if first:
            warnings.warn(
                f"burnish: {self._log.name or 'a compiled object'} runs {self._name} in eager, because of the compiled "
                f"one: {failure.reason}. Results are right, the speed is eager's; burnish.stats has the stack. "
                "Way out: `burnish verify` finds the kernel, and .burnish.retry() tries again.",
                FallbackWarning,
                stacklevel=2,
            )

    def retried(self, variant: Variant) -> None:
        self._log.emit("retry", variant=self._name)

    def unmet(self, why: str) -> None:
        self._log.noticed(f"{self._name} in eager: {why}")


def _reason(variant: Variant) -> str:
    if variant.failure is not None:
        return variant.failure.reason
    return variant.gate.note if variant.gate else ""
