"""Eager, Inductor and burnish side by side on one target: the engine room of `burnish demo` and of the benchmarks.

A cold compile only counts in a fresh process with empty caches, so each runs in a child; the steady timings of all
engines are taken in turns inside one process. Two children per target are enough:

1. burnish, cold, into an empty cache;
2. Inductor, cold (the first thing its process does); then burnish again, from the cache that child 1 filled; then
   the race and the comparison with float64.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch

from burnish.errors import TrialFailed
from burnish.measure import Ratio, Timing, interleave
from burnish.parity import float64_errors
from burnish.targets import Target, load_target

ENGINES: tuple[str, ...] = ("eager", "inductor", "burnish")
TITLES: dict[str, str] = {"eager": "eager", "inductor": "Inductor", "burnish": "burnish"}

CHILD_LIMIT_SECONDS = 900.0
_PROGRESS = "burnish-progress:"  # the lines of a child's output that are ours; a model may print what it likes
# torch is imported first and burnish's own import is timed: a user of burnish pays for it, a user of Inductor does not.
_CHILD = """
import sys, time, torch
begin = time.perf_counter()
import burnish
took = time.perf_counter() - begin
from burnish.trial import child_main
child_main(sys.argv[1], took)
"""


@dataclass(frozen=True)
class EngineResult:
    """One engine on one target. `cold_seconds` is the first call less a steady one, with empty caches."""

    cold_seconds: float | None = None
    timing: Timing | None = None
    error: float | None = None  # against float64, relative
    failure: str | None = None  # why there are no numbers
    notes: tuple[str, ...] = ()  # what the reader must know about them, e.g. that eager served a graph


@dataclass(frozen=True)
class Comparison:
    """One target, every engine. `speedup[x]` is how many times faster burnish is than x."""

    target: str
    engines: dict[str, EngineResult]
    speedup: dict[str, Ratio]
    threads: int


@dataclass(frozen=True)
class _Job:
    """What a child is asked to do; travels as JSON."""

    task: Literal["cold", "compare"]
    target: str
    engine: str
    seconds: float
    result: str
    cold: dict[str, float] = field(default_factory=dict)


def compile_with(engine: str, model: Callable[..., Any]) -> Callable[..., Any]:
    """The model as `engine` runs it, with the engine's defaults."""
    if engine == "eager":
        return model
    if engine == "inductor":
        return torch.compile(model)
    import burnish

    compiled: Callable[..., Any] = burnish.compile(model)
    return compiled


def cold_compile(target: Target, engine: str) -> tuple[Callable[..., Any], float]:
    """Compile and call once; the seconds that took beyond what a call takes afterwards. Call it inside grad_mode()."""
    begin = time.perf_counter()
    compiled = compile_with(engine, target.model)
    step = target.step(compiled)
    step()
    first = time.perf_counter() - begin
    steady = []
    for _ in range(2):
        begin = time.perf_counter()
        step()
        steady.append(time.perf_counter() - begin)
    return compiled, first - min(steady)


# -- the parent ---------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def empty_caches() -> Iterator[dict[str, str]]:
    """Environment variables that give every compiler an empty cache of its own, deleted afterwards."""
    with tempfile.TemporaryDirectory(prefix="burnish-trial-", ignore_cleanup_errors=True) as root:
        folders = {"BURNISH_CACHE_DIR": "burnish", "TORCHINDUCTOR_CACHE_DIR": "inductor", "TRITON_CACHE_DIR": "triton"}
        yield {variable: str(Path(root, folder)) for variable, folder in folders.items()}


def compare(
    target: str,
    *,
    seconds: float,
    caches: dict[str, str],
    on_progress: Callable[[str, float], None] = lambda doing, fraction: None,
) -> Comparison:
    """Run both children for one target, in `caches` fresh from `empty_caches`. `on_progress` hears what is being done
    and which fraction of the target's work is behind it."""
    first = _Job("cold", target, "burnish", seconds, result="")
    cold = run_child(first, caches, lambda doing, part: on_progress(doing, 0.25 * part))
    second = dataclasses.replace(first, task="compare", cold=cold)
    found = run_child(second, caches, lambda doing, part: on_progress(doing, 0.25 + 0.75 * part))
    return _comparison_from(found)


def cold_seconds(target: str, engine: str) -> float:
    """One more cold compile in a process and caches of its own."""
    with empty_caches() as caches:
        found = run_child(_Job("cold", target, engine, 0.0, result=""), caches)
    return float(found[engine])


def run_child(
    job: _Job, caches: dict[str, str], on_progress: Callable[[str, float], None] = lambda doing, part: None
) -> Any:
    """Do `job` in a fresh process and return its result; raises TrialFailed with the end of its output."""
    with tempfile.TemporaryDirectory(prefix="burnish-trial-") as folder:
        result, log = Path(folder, "result.json"), Path(folder, "stderr.txt")
        job = dataclasses.replace(job, result=str(result))
        command = [sys.executable, "-c", _CHILD, json.dumps(dataclasses.asdict(job))]
        with log.open("w") as stderr:
            environment = {**os.environ, **caches}
            process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr, text=True, env=environment)
        limit = threading.Timer(CHILD_LIMIT_SECONDS, process.kill)
        limit.start()
        try:
            assert process.stdout is not None
            for line in process.stdout:
                if line.startswith(_PROGRESS):
                    part, _, doing = line[len(_PROGRESS) :].strip().partition(" ")
                    on_progress(doing, float(part))
            status = process.wait()
        except BaseException:  # also Ctrl-C: never leave a child computing
            process.kill()
            process.wait()
            raise
        finally:
            limit.cancel()
        if status != 0 or not result.exists():
            raise TrialFailed(job.target, status, log.read_text()[-2000:])
        return json.loads(result.read_text())


def _comparison_from(found: dict[str, Any]) -> Comparison:
    engines = {
        name: EngineResult(
            cold_seconds=one["cold_seconds"],
            timing=Timing(**one["timing"]) if one["timing"] else None,
            error=one["error"],
            failure=one["failure"],
            notes=tuple(one["notes"]),
        )
        for name, one in found["engines"].items()
    }
    speedup = {name: Ratio(**one) for name, one in found["speedup"].items()}
    return Comparison(found["target"], engines, speedup, found["threads"])


# -- the child ----------------------------------------------------------------------------------------------------


def child_main(job_text: str, import_seconds: float) -> None:
    job = _Job(**json.loads(job_text))
    _say(0.0, f"{job.target}: building the model")
    target = load_target(job.target)
    if job.task == "cold":
        _say(0.3, f"{job.target}: {TITLES[job.engine]} compiles, cold")
        with target.grad_mode():
            _, seconds = cold_compile(target, job.engine)
        made: Any = {job.engine: seconds + (import_seconds if job.engine == "burnish" else 0.0)}
    else:
        made = dataclasses.asdict(_compare_here(target, job))
    Path(job.result).write_text(json.dumps(made))


def _compare_here(target: Target, job: _Job) -> Comparison:
    models: dict[str, Callable[..., Any]] = {}
    cold: dict[str, float] = dict(job.cold)
    failures: dict[str, str] = {}
    with target.grad_mode():
        # Inductor first: nothing of Dynamo may have been loaded for it by another engine.
        for part, engine, how in ((0.05, "inductor", "cold"), (0.6, "burnish", "from its cache"), (0.7, "eager", "")):
            if how:
                _say(part, f"{target.name}: {TITLES[engine]} compiles, {how}")
            try:
                models[engine], seconds = cold_compile(target, engine)
                if engine == "inductor":
                    cold[engine] = seconds
            except Exception as error:  # one engine's failure is a row of the table, not the end of it
                failures[engine] = f"{type(error).__name__}: {_first_line(error)}"
        _say(0.7, f"{target.name}: timing in turns")
        steps = {engine: target.step(models[engine]) for engine in ENGINES if engine in models}
        race = interleave(
            steps,
            seconds=job.seconds,
            on_round=lambda part: _say(0.7 + 0.25 * part, f"{target.name}: timing in turns"),
        )
    _say(0.95, f"{target.name}: checking against float64")
    errors = float64_errors(target, models)
    results = {
        engine: EngineResult(
            cold_seconds=cold.get(engine),
            timing=race.timing(engine),
            error=errors[engine],
            notes=_notes(models[engine]) if engine == "burnish" else (),
        )
        if engine in models
        else EngineResult(failure=failures[engine])
        for engine in ENGINES
    }
    raced = steps if "burnish" in steps else {}
    faster = {engine: race.ratio(engine, "burnish") for engine in raced if engine != "burnish"}
    return Comparison(target.name, results, faster, torch.get_num_threads())


def _notes(compiled: Callable[..., Any]) -> tuple[str, ...]:
    import burnish

    stats = burnish.stats(compiled)
    served = [f"eager served a graph: {fallback}" for fallback in stats.fallbacks]
    breaks = [f"graph break: {where}" for where in stats.graph_breaks]
    return (*served, *breaks)


def _first_line(error: BaseException) -> str:
    lines: Sequence[str] = str(error).strip().splitlines()
    return lines[0] if lines else ""


def _say(part: float, doing: str) -> None:
    print(_PROGRESS, f"{part:.3f}", doing, flush=True)
