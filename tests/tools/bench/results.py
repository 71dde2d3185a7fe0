"""Made-up results: what a bench would return, without measuring anything."""

from __future__ import annotations

import dataclasses
import random
from typing import Any

from burnish.tools.bench.around import StepShare
from burnish.tools.bench.candidates import Candidate, parse_candidates
from burnish.tools.bench.energy import Energy
from burnish.tools.bench.machine import Machine
from burnish.tools.bench.measured import Break, CandidateResult, CheckLine, CompileCost
from burnish.tools.bench.memory import MemoryUse, Timeline
from burnish.tools.bench.noise import Activity
from burnish.tools.bench.operators import CallProfile, Operator
from burnish.tools.bench.result import BenchResult
from burnish.tools.bench.statistics import Rounds, estimate_of, latency_of, speedup_of, thinned
from burnish.tools.bench.verdict import break_even, decide
from burnish.tools.bench.warmup import WarmUp

MACHINE = Machine("Test CPU", 2, 2, "Linux x86_64", None, "3.11.0", "2.13.0", "0.1.0", "2025-01-01T12:00+00:00")
QUIET = Activity(seconds=10.0, cores=2, threads=2, own_cores=2.0, other_cores=0.0)
BUSY = dataclasses.replace(QUIET, other_cores=0.8)


def rounds_of(seconds: float, noise: float = 0.005, count: int = 60, seed: int = 0) -> Rounds:
    """Calls of about so many seconds, five in each round."""
    draw = random.Random(seed)
    level = [draw.gauss(1.0, noise) for _ in range(count)]
    return [[seconds * abs(one * draw.gauss(1.0, noise)) for _ in range(5)] for one in level]


def row(
    name: str,
    seconds: float = 0.1,
    *,
    eager_seconds: float = 0.1,
    noise: float = 0.005,
    cold: float = 10.0,
    error: float | None = 2e-7,
    failure: str | None = None,
    **more: Any,
) -> CandidateResult:
    """A candidate that takes so long; a failed one has no numbers."""
    (candidate,) = (one for one in parse_candidates(name) if one.name == name)
    if failure:
        return CandidateResult(candidate, failure=failure, **more)
    rounds = rounds_of(seconds, noise, seed=1)
    eager = rounds_of(eager_seconds, noise, seed=2)
    speedup = speedup_of(eager, rounds) if candidate.compiles else None
    return CandidateResult(
        candidate,
        latency=latency_of(rounds),
        samples=thinned(rounds, 600),
        host=estimate_of(rounds),
        speedup=speedup,
        speedup_over={"eager": speedup} if speedup else {},
        compile=CompileCost(cold, cold / 3, True, {"dynamo": cold / 4, "cc": cold / 2}) if candidate.compiles else None,
        error=error,
        **more,
    )


def result(*rows: CandidateResult, share: StepShare | None = None, **more: Any) -> BenchResult:
    """A bench of these rows, with the verdict that belongs to it."""
    paid = [dataclasses.replace(one, break_even_calls=break_even(one, rows[0])) for one in rows]
    causes = more.pop("causes", ())
    incomplete = more.get("incomplete")
    return BenchResult(
        target="model.py:build",
        kind="inference",
        device="cpu",
        machine=MACHINE,
        candidates=tuple(paid),
        verdict=decide(paid, share=share, causes=causes, incomplete=incomplete),
        seconds=60.0,
        share=share,
        causes=causes,
        **more,
    )


def full_result() -> BenchResult:
    """One of everything that a report can show."""
    timeline = Timeline(tuple((i / 10, (200 + 10 * i) << 20) for i in range(20)), ((0.0, "load"), (0.8, "compile")))
    memory = MemoryUse(200 << 20, 400 << 20, 300 << 20, 5 << 20)
    profile = CallProfile(0.1, (Operator("aten::addmm", 0.03, 12.0), Operator("aten::<b>", 0.01, 2.0)), 0.05, 14.0)
    warm_up = WarmUp((0.4, 0.2, *[0.1] * 10), 2, True)
    extras: dict[str, Any] = {
        "timeline": timeline,
        "memory": memory,
        "profile": profile,
        "warm_up": warm_up,
        "energy": Energy(2.5, "RAPL"),
    }
    broken = (Break("model.py", 12, "a call to print", 'print("<layer>", x)'),)
    return result(
        row("eager", 0.1, **extras),
        row("inductor", 0.09, cold=30.0, **extras),
        row("burnish", 0.08, cold=8.0, breaks=broken, kernels=7, notes=("eager served a graph: build",), **extras),
        row("burnish:reduce-overhead", 0.085, **extras),
        row("aot_eager", failure="RuntimeError: <no> & never"),
        share=StepShare(20, 0.2, 0.06, 0.1, True),
        activity=BUSY,
        causes=("a noisy neighbour",),
        batch_size=8,
        checklist=(
            CheckLine("compiles once", "ok", "1 graph in 2.0 s"),
            CheckLine("no graph breaks", "warn", "1: model.py:12", "rewrite it"),
            CheckLine("sealed", "not measured", "no seal()"),
        ),
        notes=("A note.",),
    )


__all__ = ["BUSY", "MACHINE", "QUIET", "Candidate", "full_result", "result", "rounds_of", "row"]
