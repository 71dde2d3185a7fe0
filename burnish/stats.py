"""The return value of `burnish.stats(c)`: frozen records of an object's compiles and calls.

The names here are an interface: programs read them, and a test pins them. `Stats.schema` is increased when a field is
removed or changes its meaning, not for a new field. `burnish/observe/log.py` writes these records.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from burnish.shapes.record import ShapeStats
from burnish.trust.jobs import JobStats
from burnish.trust.record import VariantStats, WholeCall
from burnish.tuning.record import Tuned, Tuning

SCHEMA = 1


@dataclass(frozen=True)
class GraphBreak:
    """A line of the user's code that could not be captured: the graph was split there."""

    file: str
    line: int
    reason: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.reason}"


@dataclass(frozen=True)
class Recompile:
    """A function compiled again because `reason`, a check on its inputs or state, no longer held."""

    file: str
    line: int
    function: str
    reason: str

    def __str__(self) -> str:
        return f"{self.function} ({self.file}:{self.line}): {self.reason}"


@dataclass(frozen=True)
class Fallback:
    """A graph that eager serves, because `stage` failed with `reason`."""

    stage: str
    reason: str

    def __str__(self) -> str:
        return f"{self.stage}: {self.reason}"


@dataclass(frozen=True)
class Span:
    """An interval of a compile. Stages nest: `depth` counts the enclosing ones. Lane 0 is the thread that compiled
    first; other lanes ran in parallel (other threads, worker processes)."""

    name: str
    begin: float  # seconds since the object's first span began
    end: float
    depth: int = 0
    lane: int = 0

    def __str__(self) -> str:
        beside = f", lane {self.lane}" if self.lane else ""
        return f"{self.name} {self.begin:.3f} to {self.end:.3f} s{beside}"


@dataclass(frozen=True)
class RegionStats:
    """Calls of equal blocks: `traced` calls were traced, `copied` calls were copied from a traced one, and `shared` of
    all calls passed through AOTAutograd as one operation. `reason` tells why the last traced block was not copied."""

    name: str
    traced: int
    copied: int
    shared: int = 0
    reason: str = ""

    def __str__(self) -> str:
        why = f" ({self.reason})" if self.reason else ""
        return f"{self.name}: {self.traced} traced, {self.copied} copied, {self.shared} as one in AOTAutograd{why}"


@dataclass(frozen=True)
class LatencyStats:
    """Calls of one variant by one engine, counted by how long they took on the host (with `latency=True`).

    `counts[i]` calls took at most `bounds[i]` seconds and more than the bound before; the last count has no bound.
    Quantiles are interpolated within a bucket, whose bounds are a factor of two apart."""

    variant: str
    engine: str
    calls: int
    seconds: float
    bounds: tuple[float, ...] = field(repr=False, default=())
    counts: tuple[int, ...] = field(repr=False, default=())

    def quantile(self, q: float) -> float:
        """The approximate `q`-quantile of call times; 0.0 before the first call."""
        wanted, seen = q * self.calls, 0
        for i, count in enumerate(self.counts):
            if count and seen + count >= wanted:
                low = self.bounds[i - 1] if i else 0.0
                high = self.bounds[i] if i < len(self.bounds) else low
                return low + (high - low) * max(wanted - seen, 0.0) / count
            seen += count
        return 0.0

    def __str__(self) -> str:
        p50, p99 = (self.quantile(q) * 1e6 for q in (0.5, 0.99))
        return f"{self.variant or 'all'} by {self.engine}: {self.calls} calls, p50 {p50:.0f} us, p99 {p99:.0f} us"


@dataclass(frozen=True)
class MemoryStats:
    """Bytes an object's compiled programs hold between calls, besides the model's own parameters."""

    arena_bytes: int = 0  # workspaces for intermediate results, kept for the next call
    constant_bytes: int = 0  # constants folded out of the graph, and weights kept in another layout
    cuda_pool_bytes: int = 0  # the memory pools of captured CUDA graphs


@dataclass(frozen=True)
class Stats:
    """The statistics of one compiled object; `print` it, or use `to_dict()`."""

    name: str = ""
    compiles: int = 0  # graphs captured and handed to the compiler; a forward with its backward counts once
    graphs: Mapping[str, int] = field(default_factory=dict)  # kind (forward, backward, inference) -> compiled
    recompiles: tuple[Recompile, ...] = ()
    graph_breaks: tuple[GraphBreak, ...] = ()
    aten_calls: Mapping[str, int] = field(default_factory=dict)  # op -> calls to ATen in the compiled programs
    notices: Mapping[str, int] = field(default_factory=dict)  # what happened in calls (CUDA graphs, seals) -> times
    kernels: int = 0
    cache_hits: int = 0
    cache_misses: int = 0
    cache_reasons: tuple[str, ...] = ()  # why an entry was not found
    fallbacks: tuple[Fallback, ...] = ()
    fusions: tuple[str, ...] = ()
    regions: tuple[RegionStats, ...] = ()  # repeated blocks
    seconds: Mapping[str, float] = field(default_factory=dict)  # stage -> its own time, without the stages inside it
    timeline: tuple[Span, ...] = ()  # the same stages as intervals, and parallel work
    latency: tuple[LatencyStats, ...] = ()  # empty unless compiled with the option latency=True
    memory: MemoryStats = MemoryStats()
    variants: tuple[VariantStats, ...] = ()  # one for each captured graph that is in use
    whole_call: tuple[WholeCall, ...] = ()  # the race of the user's calls, one for each kind of inputs (gate=True)
    jobs: tuple[JobStats, ...] = ()  # frames given to the compiling thread, with background=True or a budget
    events: Mapping[str, int] = field(default_factory=dict)  # kind (burnish/observe/events.py) -> how many
    rollbacks: Mapping[str, int] = field(default_factory=dict)  # cause (exception, numbers, asked) -> how many
    tuning: tuple[Tuned, ...] = ()  # the forms of kernels on a GPU, where they were searched for or given
    shapes: ShapeStats | None = None  # with shapes=: buckets, padding, refusals
    schema: int = SCHEMA

    @property
    def compile_seconds(self) -> float:
        return sum(self.seconds.values())

    @property
    def tuning_record(self) -> Tuning:
        """`tuning` as `burnish.compile(tuning=...)` takes it; print it to get its text."""
        return Tuning.of(self.tuning)

    def to_dict(self) -> dict[str, Any]:
        """Plain dicts, lists, numbers and text: what JSON can hold."""
        plain = _plain(self)
        return {**plain, "compile_seconds": self.compile_seconds}

    def to_json(self) -> str:
        return json.dumps(self.to_dict(), ensure_ascii=False)

    def __str__(self) -> str:
        kinds = ", ".join(f"{count} {kind}" for kind, count in self.graphs.items())
        cached = f"{self.cache_hits} hits, {self.cache_misses} misses"
        lines = [
            f"burnish stats for {self.name or 'a compiled object'}",
            f"  compiles      {self.compiles}" + (f" ({kinds})" if kinds else ""),
            f"  kernels       {self.kernels}",
            f"  cache         {cached}",
            f"  compile time  {self.compile_seconds:.3f} s",
        ]
        lines += [f"    {stage:11} {seconds:.3f} s" for stage, seconds in self.seconds.items()]
        held = self.memory
        if held != MemoryStats():
            total = held.arena_bytes + held.constant_bytes + held.cuda_pool_bytes
            lines.append(f"  memory held   {total / 2**10:,.0f} KiB between calls")
        if self.rollbacks:
            lines.append(
                "  rollbacks     " + ", ".join(f"{count} ({cause})" for cause, count in self.rollbacks.items())
            )
        calls = [f"{count} x {op}" for op, count in sorted(self.aten_calls.items(), key=lambda item: -item[1])]
        for title, entries in (
            ("recompiles", self.recompiles),
            ("graph breaks", self.graph_breaks),
            ("fallbacks", self.fallbacks),
            ("ATen calls", calls),
            ("notices", [f"{count} x {what}" for what, count in self.notices.items()]),
            ("cache misses", self.cache_reasons),
            ("fusions", self.fusions),
            ("regions", self.regions),
            ("latency", self.latency),
            ("variants", self.variants),
            ("whole call", self.whole_call),
            ("jobs", self.jobs),
            ("tuning", self.tuning),
            ("shapes", () if self.shapes is None else (self.shapes,)),
        ):
            if entries:
                lines.append(f"  {title} ({len(entries)})")
                lines += [f"    {entry}" for entry in entries]
        return "\n".join(lines)


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {entry.name: _plain(getattr(value, entry.name)) for entry in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(name): _plain(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if value is None or isinstance(value, (bool, int, float, str)) else str(value)
