"""`CompileLog`: one compiled object's record, written while it compiles and read as `burnish.stats`.

Each method updates a count and emits an `Event` to the object's sinks: log lines, the event file. Calls that find their
compiled program run none of this code.
"""

from __future__ import annotations

import contextlib
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from burnish.errors import CompileError
from burnish.observe.events import Event, EventKind, Sink
from burnish.observe.latency import Histogram
from burnish.observe.memory import memory_of
from burnish.record import Recorder
from burnish.stats import Fallback, GraphBreak, Recompile, RegionStats, Span, Stats
from burnish.trust.record import VariantStats
from burnish.tuning.record import Tuned

_MOST_SPANS = 4096  # of one object: a process that recompiles for ever must not grow


class HasVariantStats(Protocol):
    def stats(self) -> VariantStats: ...


@dataclass
class _OpenStage:
    start: float
    inner: float = 0.0  # seconds spent in stages opened inside this one


class CompileLog:
    """One compiled object's record. Thread-safe: several threads may compile, and build kernels, for one object."""

    def __init__(self, dump_dir: Path | None = None, name: str = "", sinks: Sequence[Sink] = ()) -> None:
        self.dump_dir = dump_dir
        self.name = name
        self.label = name  # what events and metrics call it; burnish/observe/registry.py makes it unique
        self.sinks = tuple(sinks)
        self.recorder: Recorder | None = None  # `burnish verify` and `burnish explain` read it
        self._programs: weakref.WeakSet[Callable[..., Any]] = weakref.WeakSet()
        self._lock = threading.Lock()
        self._open_stages = threading.local()
        self._clear()

    def _clear(self) -> None:
        self.seconds: dict[str, float] = {}
        self._spans: list[Span] = []
        self._lanes: dict[int, int] = {}  # thread -> lane
        self.graphs: Counter[str] = Counter()
        self.aten_calls: Counter[str] = Counter()
        self.notices: Counter[str] = Counter()
        self.events: Counter[str] = Counter()  # by kind
        self.rollbacks: Counter[str] = Counter()  # by cause
        self.fallbacks: list[Fallback] = []
        self.fusions: list[str] = []
        self.regions: dict[str, RegionStats] = {}
        self.graph_breaks: list[GraphBreak] = []
        self.recompiles: list[Recompile] = []
        self.cache_reasons: list[str] = []
        self.cache_hits = 0
        self.cache_misses = 0
        self.kernel_count = 0
        self.tuning: dict[str, Tuned] = {}  # by key
        self._kernels_told = 0  # in events
        self.compiles = 0
        self.loads = 0  # of variants from packs
        self._histograms: dict[tuple[str, str], Histogram] = {}
        self._variants: list[weakref.ref[HasVariantStats]] = []

    def clear(self) -> None:
        with self._lock:
            self._clear()

    def emit(
        self, kind: EventKind, *, variant: str = "", seconds: float | None = None, reason: str = "", **detail: object
    ) -> None:
        """Count it, and tell every sink. Never call it with the lock held: a sink may write to a slow disk."""
        with self._lock:
            self.events[kind] += 1
            if kind == "rollback":
                self.rollbacks[str(detail.get("cause", "other"))] += 1
        if self.sinks:
            event = Event(kind, self.label, variant, seconds, reason, detail)
            for sink in self.sinks:
                sink(event)

    # -- written by the pipeline -----------------------------------------------------------------------------

    @contextlib.contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Add the time spent inside to `seconds[name]`. Stages nest: the outer one is not charged for the inner,
        so the seconds of all stages add up to the compile time (worker threads' stages apart)."""
        stack: list[_OpenStage] = self._open_stages.__dict__.setdefault("stack", [])
        stage = _OpenStage(time.perf_counter())
        stack.append(stage)
        try:
            yield
        finally:
            end = time.perf_counter()
            elapsed = end - stage.start
            stack.pop()
            self._span(name, stage.start, end, len(stack))
            if stack:
                stack[-1].inner += elapsed
            else:
                self._open_stages.last = elapsed
            self.add_seconds(name, elapsed - stage.inner)

    def seconds_so_far(self) -> float | None:
        """The seconds of this thread in its outermost open stage or, if none is open, in its last one."""
        stack: list[_OpenStage] = self._open_stages.__dict__.get("stack", [])
        if stack:
            return time.perf_counter() - stack[0].start
        return self._open_stages.__dict__.get("last")

    def charge(self, name: str, seconds: float) -> None:
        """The last `seconds` of the open stage were spent on something that has a name of its own."""
        stack: list[_OpenStage] = self._open_stages.__dict__.get("stack", [])
        now = time.perf_counter()
        if stack:
            stack[-1].inner += seconds
        self.add_seconds(name, seconds)
        self._span(name, now - seconds, now, len(stack))

    def beside(self, name: str, begin: float, end: float) -> None:
        """Note work done beside the stages, by a thread that did nothing else meanwhile; times are perf_counter's."""
        self._span(name, begin, end, 0)

    def _span(self, name: str, begin: float, end: float, depth: int) -> None:
        with self._lock:
            lane = self._lanes.setdefault(threading.get_ident(), len(self._lanes))
            if len(self._spans) < _MOST_SPANS:
                self._spans.append(Span(name, begin, end, depth, lane))

    def add_seconds(self, name: str, seconds: float) -> None:
        with self._lock:
            self.seconds[name] = self.seconds.get(name, 0.0) + max(seconds, 0.0)

    def aten_call(self, op_name: str) -> None:
        with self._lock:
            self.aten_calls[op_name] += 1

    def noticed(self, what: str) -> None:
        """Count something that a run-time, not the compiler, decided: a graph captured, a call that ran without."""
        with self._lock:
            self.notices[what] += 1

    def tuned(self, entry: Tuned) -> None:
        """A kernel's form was found, in whatever way."""
        with self._lock:
            self.tuning[entry.key] = entry

    def kernels(self, n: int) -> None:
        with self._lock:
            self.kernel_count += n

    def cache(self, hit: bool, why: str = "") -> None:
        with self._lock:
            if hit:
                self.cache_hits += 1
            else:
                self.cache_misses += 1
                if why:
                    self.cache_reasons.append(why)
        self.emit("cache_hit" if hit else "cache_miss", reason=why)

    def fallback(self, stage: str, error: BaseException) -> bool:
        """Count it, and say whether it is this object's first failure in this stage (the one to warn about)."""
        entry = Fallback(stage, failure_reason(error))
        with self._lock:
            first = all(known.stage != stage for known in self.fallbacks)
            self.fallbacks.append(entry)
        self._open_stages.failed = True
        self.emit("fallback", reason=entry.reason, stage=stage)
        return first

    def program(self, run: Callable[..., Any]) -> None:
        """Remember a program for as long as it is in use: `memory` asks it what it holds."""
        with self._lock:
            self._programs.add(run)

    def release(self) -> None:
        """Programs still referred to, by a call under way or a graph that autograd holds, keep no memory for later."""
        with self._lock:
            programs = list(self._programs)
        for program in programs:
            release = getattr(program, "release", None)
            if release is not None:
                release()
            elif "pool" in (names := getattr(program, "__globals__", {})):
                names["pool"].clear()

    def histogram(self, variant: str, engine: str) -> Histogram:
        """The histogram of latencies of one variant's calls by one engine."""
        with self._lock:
            return self._histograms.setdefault((variant, engine), Histogram(variant, engine))

    def fusion(self, text: str) -> None:
        with self._lock:
            self.fusions.append(text)

    def region(self, name: str, *, traced: int = 0, copied: int = 0, shared: int = 0, reason: str = "") -> None:
        """Add to what is known of the blocks of one class."""
        with self._lock:
            known = self.regions.get(name, RegionStats(name, 0, 0))
            self.regions[name] = RegionStats(
                name, known.traced + traced, known.copied + copied, known.shared + shared, reason or known.reason
            )

    def dump(self, filename: str, text: str) -> None:
        """Write one stage's printed output where the user asked for it. A full disk must not fail the compile."""
        if self.dump_dir is None:
            return
        try:
            path = self.dump_dir / filename
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8", errors="backslashreplace")
        except OSError as error:
            self.fallback("dump", error)

    # -- written by the capture layer ------------------------------------------------------------------------

    def captured(self) -> str:
        """A graph went through the compiler, or was given to eager (a fallback has been counted then). Returns what
        to call it: "graph 1" is the first of this object."""
        with self._lock:
            self.compiles += 1
            variant, kernels = f"graph {self.compiles}", self.kernel_count - self._kernels_told
            self._kernels_told = self.kernel_count
        if not self._open_stages.__dict__.pop("failed", False):
            self.emit("compiled", variant=variant, seconds=self.seconds_so_far(), kernels=kernels)
        return variant

    def loaded(self) -> str:
        """A variant came from a pack. Returns what to call it."""
        with self._lock:
            self.loads += 1
            return f"variant {self.loads}"

    def compiled(self, kind: str) -> None:
        with self._lock:
            self.graphs[kind] += 1

    def not_built(self, kind: str) -> None:
        """A graph was counted as compiled, and then its kernels could not be built, which has been counted, too."""
        with self._lock:
            self.graphs -= Counter({kind: 1})
        self._open_stages.__dict__.pop("failed", None)  # it is no news about the graph that comes next

    def graph_break_met(self, entry: GraphBreak) -> None:
        """For listeners that need the preceding graph; `graph_break` counts the break once it is confirmed."""
        if self.recorder is not None:
            self.recorder.graph_break(entry)

    def graph_break(self, entry: GraphBreak) -> None:
        with self._lock:
            if entry in self.graph_breaks:  # a recompile meets the same line again
                return
            self.graph_breaks.append(entry)
        self.emit("graph_break", reason=entry.reason, file=entry.file, line=entry.line)

    def recompile(self, entry: Recompile) -> None:
        if self.recorder is not None:
            self.recorder.recompile(entry)
        with self._lock:
            self.recompiles.append(entry)
        self.emit("recompile", reason=entry.reason, function=entry.function, file=entry.file, line=entry.line)

    def variant(self, variant: HasVariantStats) -> None:
        """Remember a variant for as long as it is in use."""
        with self._lock:
            self._variants = [known for known in self._variants if known() is not None] + [weakref.ref(variant)]

    def variants(self) -> list[Any]:
        with self._lock:
            return [variant for known in self._variants if (variant := known()) is not None]

    # -- read by the user ------------------------------------------------------------------------------------

    def snapshot(self) -> Stats:
        variants = tuple(variant.stats() for variant in self.variants())  # each takes a lock of its own
        with self._lock:
            return Stats(
                name=self.name,
                compiles=self.compiles,
                graphs=dict(self.graphs),
                recompiles=tuple(self.recompiles),
                graph_breaks=tuple(self.graph_breaks),
                aten_calls=dict(self.aten_calls),
                notices=dict(self.notices),
                kernels=self.kernel_count,
                cache_hits=self.cache_hits,
                cache_misses=self.cache_misses,
                cache_reasons=tuple(self.cache_reasons),
                fallbacks=tuple(self.fallbacks),
                fusions=tuple(self.fusions),
                regions=tuple(self.regions.values()),
                seconds=dict(self.seconds),
                timeline=_timeline(self._spans),
                latency=tuple(histogram.snapshot() for histogram in self._histograms.values()),
                memory=memory_of(self._programs),
                variants=variants,
                events=dict(self.events),
                rollbacks=dict(self.rollbacks),
                tuning=tuple(self.tuning.values()),
            )


def _timeline(spans: Sequence[Span]) -> tuple[Span, ...]:
    """In the order in which they began, counted from the first; its thread is lane 0."""
    ordered = sorted(spans, key=lambda span: (span.begin, span.depth))
    if not ordered:
        return ()
    origin = next((span for span in ordered if span.name == "dynamo"), ordered[0])
    start, lanes = ordered[0].begin, {origin.lane: 0}
    return tuple(
        replace(span, begin=span.begin - start, end=span.end - start, lane=lanes.setdefault(span.lane, len(lanes)))
        for span in ordered
    )


def failure_reason(error: BaseException) -> str:
    """The reason in one line: what a CompileError says, else the exception's class and first line."""
    text = (error.reason if isinstance(error, CompileError) else str(error)).strip()
    first_line = text.splitlines()[0] if text else ""
    if isinstance(error, CompileError):
        return first_line
    return f"{type(error).__name__}: {first_line}" if first_line else type(error).__name__
