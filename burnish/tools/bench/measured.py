"""Every number that `bench` measures, typed, and as JSON."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Literal, Self

from burnish.tools.bench.around import StepShare
from burnish.tools.bench.candidates import EAGER, Candidate
from burnish.tools.bench.energy import Energy
from burnish.tools.bench.machine import Machine
from burnish.tools.bench.memory import MemoryUse, Timeline
from burnish.tools.bench.noise import Activity
from burnish.tools.bench.operators import CallProfile
from burnish.tools.bench.plain import from_plain, to_plain
from burnish.tools.bench.statistics import Estimate, Latency, Speedup
from burnish.tools.bench.warmup import WarmUp

SCHEMA = 1
_NUMBERS = re.compile(r"\[\s*((?:[-+.0-9e]+[,\s]+)*[-+.0-9e]+)\s*\]")  # a list of numbers belongs on one line

VerdictKind = Literal["compile", "eager", "no difference", "look elsewhere", "unknown"]


@dataclass(frozen=True)
class CompileCost:
    """`cold_seconds` is the first call less a steady one (and the import of burnish, for burnish)."""

    cold_seconds: float | None = None
    warm_seconds: float | None = None  # the same in a second process, with the cache that the first one filled
    isolated: bool = True  # cold means: a fresh process with empty caches
    stages: dict[str, float] = field(default_factory=dict)  # burnish's own account of the cold compile


@dataclass(frozen=True)
class Break:
    """A graph break, with the line of code it is at."""

    file: str
    line: int
    reason: str
    code: str = ""


@dataclass(frozen=True)
class CheckLine:
    """A line of the production checklist, as `burnish doctor TARGET` measures it."""

    name: str
    verdict: str  # ok, warn, fail, or not measured
    figure: str
    advice: str = ""


@dataclass(frozen=True)
class CandidateResult:
    """One candidate. `failure` says why there are no numbers; whatever was measured before it is kept."""

    candidate: Candidate
    failure: str | None = None
    latency: Latency | None = None
    samples: tuple[float, ...] = ()  # some of the calls, in order, for plots
    host: Estimate | None = None  # seconds until a call returns; on a CPU that is its latency
    speedup: Speedup | None = None  # over eager
    speedup_over: dict[str, Speedup] = field(default_factory=dict)  # over each of the others, eager too
    compile: CompileCost | None = None
    warm_up: WarmUp | None = None
    memory: MemoryUse | None = None
    timeline: Timeline | None = None
    profile: CallProfile | None = None
    kernels: int | None = None  # distinct ones that the candidate generated, where it says how many
    energy: Energy | None = None
    error: float | None = None  # against float64, relative
    uncompared: str = ""  # why there is no error
    break_even_calls: float | None = None  # calls after which the cold compile has paid for itself; None: never
    breaks: tuple[Break, ...] = ()
    notes: tuple[str, ...] = ()  # what the reader must know, e.g. that eager served a graph

    @property
    def name(self) -> str:
        return self.candidate.name

    @property
    def title(self) -> str:
        return self.candidate.title

    @property
    def calls_per_second(self) -> float | None:
        return 1 / self.latency.mean.value if self.latency else None


@dataclass(frozen=True)
class BenchVerdict:
    """`headline` is the answer, `reasons` are what it rests on."""

    kind: VerdictKind
    headline: str
    reasons: tuple[str, ...] = ()
    winner: str | None = None  # a candidate's name


@dataclass(frozen=True)
class Measured:
    """One target, every candidate."""

    target: str
    kind: str
    device: str
    machine: Machine
    candidates: tuple[CandidateResult, ...]
    verdict: BenchVerdict
    seconds: float  # what all of it took
    batch_size: int | None = None
    activity: Activity | None = None
    causes: tuple[str, ...] = ()  # of the spread
    share: StepShare | None = None
    checklist: tuple[CheckLine, ...] = ()
    incomplete: str | None = None  # why something is missing: Ctrl-C
    notes: tuple[str, ...] = ()
    schema: int = SCHEMA

    def __getitem__(self, name: str) -> CandidateResult:
        for result in self.candidates:
            if result.name == name:
                return result
        raise KeyError(name)

    @property
    def eager(self) -> CandidateResult:
        return self[EAGER]

    @property
    def measured(self) -> tuple[CandidateResult, ...]:
        return tuple(result for result in self.candidates if result.latency is not None)

    def to_json(self) -> str:
        text = json.dumps(to_plain(self), indent=1, allow_nan=False, ensure_ascii=False)
        return _NUMBERS.sub(lambda found: "[" + ", ".join(found[1].replace(",", " ").split()) + "]", text) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Self:
        plain = json.loads(text)
        if plain.get("schema") != SCHEMA:
            raise ValueError(f"this file has schema {plain.get('schema')}, this burnish reads {SCHEMA}")
        return from_plain(cls, plain)
