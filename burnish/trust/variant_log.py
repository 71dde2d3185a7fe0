"""Writes the events of variants to the object's log: counts them, passes them to its sinks, and warns once."""

from __future__ import annotations

from burnish.errors import CompileError, FallbackWarning, warn
from burnish.observe.log import CompileLog
from burnish.trust.gate import Failure
from burnish.trust.record import SizeClass
from burnish.trust.variant import Variant


class VariantLog:
    """The listener of one variant."""

    def __init__(self, log: CompileLog, name: str) -> None:
        self._log = log
        self._name = name  # the variant's: "graph 1"

    def judged(self, variant: Variant, seconds: float, at: SizeClass | None = None) -> None:
        """`at`: for the sizes of one class only."""
        gate = at.gate if at is not None else variant.gate
        if gate is None:
            return
        self._log.add_seconds("gate", seconds)
        detail: dict[str, object] = {"engine": at.engine if at is not None else variant.engine}
        if gate.ratio is not None:
            detail |= {"rounds": gate.rounds, "eager_us": gate.eager_us, "compiled_us": gate.compiled_us}
        ratio = {"ratio": gate.ratio_median, "low": gate.ratio_low, "high": gate.ratio_high}
        detail |= {name: round(value, 3) for name, value in ratio.items() if value is not None}
        reason = f"at other sizes: {at}" if at is not None else _reason(variant)
        self._log.emit("gate", variant=self._name, seconds=seconds, reason=reason, **detail)

    def compared(self, seconds: float) -> None:
        """Half of a training step was compared; the whole step is judged later."""
        self._log.add_seconds("gate", seconds)

    def rolled_back(self, variant: Variant, failure: Failure) -> None:
        if failure.asked:
            self._log.emit("rollback", variant=self._name, reason=failure.reason, cause="asked")
            return
        first = self._log.fallback("run", CompileError("run", failure.reason))
        cause = "exception" if failure.stack else "numbers"
        self._log.emit("rollback", variant=self._name, reason=failure.reason, cause=cause)
        if first:
            warn(
                f"burnish: {self._log.name or 'a compiled object'} runs {self._name} in eager, because of the compiled "
                f"one: {failure.reason}. Results are right, the speed is eager's; burnish.stats has the stack. "
                "Way out: `burnish verify` finds the kernel, and .burnish.retry() tries again.",
                FallbackWarning,
            )

    def retried(self, variant: Variant) -> None:
        self._log.emit("retry", variant=self._name)

    def unmet(self, why: str) -> None:
        self._log.noticed(f"{self._name} in eager: {why}")


def _reason(variant: Variant) -> str:
    if variant.failure is not None:
        return variant.failure.reason
    return variant.gate.note if variant.gate else ""
