"""What `burnish.stats(c).variants` holds: one frozen record per compiled graph."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from burnish.trust.interval import said

# on trial: not judged yet. compiled: in use. eager: right but not faster. rolled back: failed, or by the user.
State = Literal["on trial", "compiled", "eager", "rolled back"]
Engine = Literal["burnish", "inductor", "eager"]
GraphKind = Literal["inference", "training"]


@dataclass(frozen=True)
class GateStats:
    """What the gate measured at a variant's first call. Times are per call of the graph, in microseconds."""

    eager_us: float | None  # None: not timed (gate=False, or no time was left within the budget)
    compiled_us: float | None  # of the engine in `VariantStats.engine`, or the best one if eager serves
    capture_us: float  # the overhead of guards and Dynamo in each compiled call
    modules_us: float  # eager's overhead for module calls, which a captured graph does not have
    rounds: int
    compiled_error: float | None  # largest error of the results relative to their size; None: not compared
    eager_error: float | None  # None: the two agreed so well that the float64 referee was not asked
    seconds: float  # what judging cost
    compile_seconds: float
    engines_us: tuple[tuple[str, float], ...] = ()  # every engine that was timed
    note: str = ""  # why a rule decided instead of a measurement, or when it was measured
    source: Literal["measured", "remembered"] = "measured"  # the latter: by an earlier process, of the same program
    # Of a training graph, where its backward took part in the race (0.0: there was none); None: not timed.
    eager_backward_us: float | None = None
    compiled_backward_us: float | None = None
    # The ratio of compiled time to eager's round by round: its median, and the interval of that. None: too few rounds.
    ratio_median: float | None = None
    ratio_low: float | None = None
    ratio_high: float | None = None
    races: int = 1  # processes that raced, and processes in which it won
    size_class: int | None = None  # of a graph with symbolic sizes: at which it was judged (size_classes.py)

    @property
    def ratio(self) -> float | None:
        """Compiled time divided by eager's, the best of each, with the overhead of a call: below 1 is a gain. The gate
        decides by this ratio; `speed` shows it with an interval."""
        if self.eager_us is None or self.compiled_us is None:
            return None
        return (self.compiled_us + self.capture_us) / max(self.eager_us + self.modules_us, 1e-9)

    @property
    def speed(self) -> str:
        """The ratio in words with its interval, a note that there were too few rounds, or nothing if there was no
        race."""
        timed = max(self.rounds - 1, 1)  # the first was a comparison, and counts only where there is no other
        return said(self.ratio_median, self.ratio_low, self.ratio_high, timed) if self.ratio is not None else ""

    @property
    def share_of_compile(self) -> float:
        return self.seconds / self.compile_seconds if self.compile_seconds > 0 else 0.0


@dataclass(frozen=True)
class SizeClass:
    """Of a graph with symbolic sizes: the engine for calls with this much work (the product of its symbols), and the
    reason."""

    work: int  # from here to twice as much, and to its neighbours where no race was held there
    engine: Engine
    gate: GateStats | None = None

    def __str__(self) -> str:
        return f"work of {self.work:,}: {self.engine}" + (
            f", {self.gate.speed}" if self.gate and self.gate.speed else ""
        )


@dataclass(frozen=True)
class VariantStats:
    """One captured graph: the engine that serves it, and the reason."""

    id: int  # counts the compiled object's graphs, from 1
    kind: GraphKind
    signature: str  # types and sizes of its tensor inputs, except parameters
    state: State
    engine: Engine  # what the next call runs
    reason: str = ""  # why eager serves it
    stack: str = ""  # the traceback, if an exception was the reason
    gate: GateStats | None = None  # None: not judged yet, or verify and gate are off
    rollbacks: int = 0
    samples: int = 0  # live calls compared with eager
    samples_dropped: int = 0  # sampled calls that were dropped because the comparing thread was busy
    unmet: int = 0  # calls whose inputs it was not compiled for, which eager served (`stats().notices` says why)
    classes: tuple[SizeClass, ...] = ()  # of a graph with symbolic sizes, each raced by itself

    def __str__(self) -> str:
        measured = f", {self.gate.speed}" if self.gate and self.gate.speed else ""
        why = f": {self.reason}" if self.reason else ""
        sizes = f" [{'; '.join(map(str, self.classes))}]" if len(self.classes) > 1 else ""
        return f"{self.id} {self.kind} {self.signature}: {self.state}, served by {self.engine}{measured}{why}{sizes}"


@dataclass(frozen=True)
class WholeCall:
    """Calls of one kind: the time of the whole compiled object, guards included, against the original."""

    inputs: str  # sizes and types of the arguments
    served: Literal["compiled", "eager", "racing"]
    compiled_us: float | None  # medians; of a training step with the backwards of its graphs
    eager_us: float | None
    ratio: float | None  # compiled time divided by eager's, median over rounds; None: too few rounds
    low: float | None  # the interval of that median
    high: float | None
    rounds: int  # pairs of calls, one by each
    note: str = ""

    def __str__(self) -> str:
        measured = said(self.ratio, self.low, self.high, self.rounds) or "not raced yet"
        who = {"racing": "still racing", "eager": "served by eager", "compiled": "served compiled"}[self.served]
        return f"{self.inputs}: {who}, {self.note or measured}"
