"""What `burnish.stats(c).variants` holds: one frozen record per compiled graph."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

# on trial: not judged yet.  compiled: in use.  eager: right but not faster.  rolled back: failed, or told to.
State = Literal["on trial", "compiled", "eager", "rolled back"]
Engine = Literal["burnish", "inductor", "eager"]
GraphKind = Literal["inference", "training"]


@dataclass(frozen=True)
class GateStats:
    """What the gate measured at a variant's first call. Times are per call of the graph, in microseconds."""

    eager_us: float | None  # None: not timed (gate=False, or no time was left within the budget)
    compiled_us: float | None  # of the engine in `VariantStats.engine`, or the best one if eager serves
    capture_us: float  # what the guards and the way through Dynamo add to each compiled call
    modules_us: float  # what eager pays for calling its modules, and a captured graph does not
    rounds: int
    compiled_error: float | None  # largest error of the results relative to their size; None: not compared
    eager_error: float | None  # None: the two agreed so well that the float64 referee was not asked
    seconds: float  # what judging cost
    compile_seconds: float
    engines_us: tuple[tuple[str, float], ...] = ()  # every engine that was timed
    note: str = ""  # why something was judged by a rule and not by measuring it, or when it was measured
    source: Literal["measured", "remembered"] = "measured"  # the latter: by an earlier process, of the same program

    @property
    def ratio(self) -> float | None:
        """Compiled time over eager's, all that a call costs included: below 1 is a gain."""
        if self.eager_us is None or self.compiled_us is None:
            return None
        return (self.compiled_us + self.capture_us) / max(self.eager_us + self.modules_us, 1e-9)

    @property
    def share_of_compile(self) -> float:
        return self.seconds / self.compile_seconds if self.compile_seconds > 0 else 0.0


@dataclass(frozen=True)
class VariantStats:
    """One captured graph: what serves it, and why."""

    id: int  # counts the compiled object's graphs, from 1
    kind: GraphKind
    signature: str  # types and sizes of the tensors it takes, parameters apart
    state: State
    engine: Engine  # what the next call runs
    reason: str = ""  # why eager serves it
    stack: str = ""  # the traceback, if an exception was the reason
    gate: GateStats | None = None  # None: not judged yet, or verify and gate are off
    rollbacks: int = 0
    samples: int = 0  # live calls compared with eager
    samples_dropped: int = 0  # live calls that would have been compared, had the comparing thread kept up
    unmet: int = 0  # calls whose inputs it was not compiled for, which eager served (`stats().notices` says why)

    def __str__(self) -> str:
        ratio = self.gate.ratio if self.gate else None
        measured = f", {1 / ratio:.2f} x eager's speed" if ratio else ""
        why = f": {self.reason}" if self.reason else ""
        return f"{self.id} {self.kind} {self.signature}: {self.state}, served by {self.engine}{measured}{why}"
