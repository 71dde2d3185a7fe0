"""What `burnish.stats(c).shapes` holds: frozen records of calls of varying sizes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class BucketStats:
    """The calls of one compiled size. `served` says who serves them: the padded program, or eager if that is faster."""

    sizes: str
    calls: int
    padded_calls: int  # of those, the ones that had to be padded
    served: str = "compiled"

    def __str__(self) -> str:
        note = "" if self.served == "compiled" else f", served by {self.served}"
        return f"{self.sizes}: {self.calls} calls, {self.padded_calls} padded{note}"


@dataclass(frozen=True)
class ShapeStats:
    """`shapes=` of one object: what was asked for, what was planned, and who served the calls."""

    strategy: str = ""
    plans: tuple[str, ...] = ()  # the boundaries of each form of call
    buckets: tuple[BucketStats, ...] = ()
    variants: int = 0  # compiled sizes in use
    compiles: int = 0  # of sizes, those of earlier plans included
    traces: int = 0  # symbolic traces for proofs; nothing is compiled in them
    waste: float = 0.0  # the share of padding in the elements of calls that have a bucket
    dynamic_calls: int = 0  # served by the program with symbolic sizes
    eager_calls: int = 0  # served by eager: while buckets are learnt, or sealed without a bucket
    refusals: Mapping[str, int] = field(default_factory=dict)  # why calls were not padded -> how many
    needs: tuple[str, ...] = ()  # what proofs take for granted of the numbers

    def __str__(self) -> str:
        plans = "; ".join(self.plans)
        parts = [f"{self.strategy}{f': {plans}' if plans else ''}"]
        parts.append(
            f"{self.variants} variants ({self.compiles} compiles, {self.traces} traces), "
            f"{self.waste:.0%} of the elements are padding"
        )
        parts.append(f"{self.dynamic_calls} calls dynamic, {self.eager_calls} in eager")
        parts += [str(each) for each in self.buckets]
        parts += [f"not padded ({count} calls): {why}" for why, count in self.refusals.items()]
        parts += [f"taken for granted: {need}" for need in self.needs]
        return "\n    ".join(parts)
