"""What compiling did, as data: `CompileLog` is written while an object compiles, `Stats` is what a user reads.

Nothing here runs on the path of a call that finds its compiled program.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from burnish.errors import CompileError


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
class Stats:
    """What burnish knows about one compiled object; `print` it."""

    name: str = ""
    compiles: int = 0  # graphs captured and handed to the compiler; a forward with its backward counts once
    graphs: Mapping[str, int] = field(default_factory=dict)  # kind (forward, backward, inference) -> compiled
    recompiles: tuple[Recompile, ...] = ()
    graph_breaks: tuple[GraphBreak, ...] = ()
    aten_calls: Mapping[str, int] = field(default_factory=dict)  # op -> calls to ATen in the compiled programs
    kernels: int = 0
    cache_hits: int = 0
    cache_misses: int = 0
    cache_reasons: tuple[str, ...] = ()  # why an entry was not found
    fallbacks: tuple[Fallback, ...] = ()
    fusions: tuple[str, ...] = ()
    seconds: Mapping[str, float] = field(default_factory=dict)  # stage -> its own time, without the stages inside it

    @property
    def compile_seconds(self) -> float:
        return sum(self.seconds.values())

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
        calls = [f"{count} x {op}" for op, count in sorted(self.aten_calls.items(), key=lambda item: -item[1])]
        for title, entries in (
            ("recompiles", self.recompiles),
            ("graph breaks", self.graph_breaks),
            ("fallbacks", self.fallbacks),
            ("ATen calls", calls),
            ("cache misses", self.cache_reasons),
            ("fusions", self.fusions),
        ):
            if entries:
                lines.append(f"  {title} ({len(entries)})")
                lines += [f"    {entry}" for entry in entries]
        return "\n".join(lines)


class CompileLog:
    """One compiled object's record. Thread-safe: several threads may compile, and build kernels, for one object."""

    def __init__(self, dump_dir: Path | None = None, name: str = "") -> None:
        self.dump_dir = dump_dir
        self.name = name
        self._lock = threading.Lock()
        self._open_stages = threading.local()
        self._clear()

    def _clear(self) -> None:
        self.seconds: dict[str, float] = {}
        self.graphs: Counter[str] = Counter()
        self.aten_calls: Counter[str] = Counter()
        self.fallbacks: list[Fallback] = []
        self.fusions: list[str] = []
        self.graph_breaks: list[GraphBreak] = []
        self.recompiles: list[Recompile] = []
        self.cache_reasons: list[str] = []
        self.cache_hits = 0
        self.cache_misses = 0
        self.kernel_count = 0
        self.compiles = 0

    def clear(self) -> None:
        with self._lock:
            self._clear()

    # -- written by the pipeline -----------------------------------------------------------------------------

    @contextlib.contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Add the time spent inside to `seconds[name]`. Stages nest: the outer one is not charged for the inner,
        so the seconds of all stages add up to the compile time (worker threads' stages apart)."""
        stack: list[float] = self._open_stages.__dict__.setdefault("stack", [])
        stack.append(0.0)  # seconds spent in stages opened inside this one
        start = time.perf_counter()
        try:
            yield
        finally:
            elapsed = time.perf_counter() - start
            inner = stack.pop()
            if stack:
                stack[-1] += elapsed
            self.add_seconds(name, elapsed - inner)

    def add_seconds(self, name: str, seconds: float) -> None:
        with self._lock:
            self.seconds[name] = self.seconds.get(name, 0.0) + max(seconds, 0.0)

    def aten_call(self, op_name: str) -> None:
        with self._lock:
            self.aten_calls[op_name] += 1

    def kernels(self, n: int) -> None:
        with self._lock:
            self.kernel_count += n

    def cache(self, hit: bool, why: str = "") -> None:
        with self._lock:
            if hit:
                self.cache_hits += 1
                return
            self.cache_misses += 1
            if why:
                self.cache_reasons.append(why)

    def fallback(self, stage: str, error: BaseException) -> bool:
        """Count it, and say whether it is this object's first failure in this stage (the one to warn about)."""
        entry = Fallback(stage, failure_reason(error))
        with self._lock:
            first = all(known.stage != stage for known in self.fallbacks)
            self.fallbacks.append(entry)
        return first

    def fusion(self, text: str) -> None:
        with self._lock:
            self.fusions.append(text)

    def dump(self, filename: str, text: str) -> None:
        """Write one stage's printed output where the user asked for it. A full disk must not fail the compile."""
        if self.dump_dir is None:
            return
        try:
            path = self.dump_dir / filename
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        except OSError as error:
            self.fallback("dump", error)

    # -- written by the capture layer ------------------------------------------------------------------------

    def captured(self) -> None:
        with self._lock:
            self.compiles += 1

    def compiled(self, kind: str) -> None:
        with self._lock:
            self.graphs[kind] += 1

    def graph_break(self, entry: GraphBreak) -> None:
        with self._lock:
            if entry not in self.graph_breaks:  # a recompile meets the same line again
                self.graph_breaks.append(entry)

    def recompile(self, entry: Recompile) -> None:
        with self._lock:
            self.recompiles.append(entry)

    # -- read by the user ------------------------------------------------------------------------------------

    def snapshot(self) -> Stats:
        with self._lock:
            return Stats(
                name=self.name,
                compiles=self.compiles,
                graphs=dict(self.graphs),
                recompiles=tuple(self.recompiles),
                graph_breaks=tuple(self.graph_breaks),
                aten_calls=dict(self.aten_calls),
                kernels=self.kernel_count,
                cache_hits=self.cache_hits,
                cache_misses=self.cache_misses,
                cache_reasons=tuple(self.cache_reasons),
                fallbacks=tuple(self.fallbacks),
                fusions=tuple(self.fusions),
                seconds=dict(self.seconds),
            )


def failure_reason(error: BaseException) -> str:
    """The reason in one line: what a CompileError says, else the exception's class and first line."""
    text = (error.reason if isinstance(error, CompileError) else str(error)).strip()
    first_line = text.splitlines()[0] if text else ""
    if isinstance(error, CompileError):
        return first_line
    return f"{type(error).__name__}: {first_line}" if first_line else type(error).__name__
