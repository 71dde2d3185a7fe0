"""`bench`: each candidate cold in its own process, then all of them alternately in one process, then the verdict."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

from burnish.errors import TargetUnusable
from burnish.tools.bench.candidates import EAGER, Candidate, default_candidates, parse_candidates, with_eager
from burnish.tools.bench.children import LIMIT_SECONDS, Job, Outcome, empty_caches, run_child
from burnish.tools.bench.machine import this_machine
from burnish.tools.bench.measured import CandidateResult, CompileCost
from burnish.tools.bench.memory import MemoryUse, Sampler, Timeline
from burnish.tools.bench.noise import likely_causes
from burnish.tools.bench.plain import from_plain
from burnish.tools.bench.progress import Forecast, Progress, expected_alone, expected_race
from burnish.tools.bench.result import BenchResult
from burnish.tools.bench.verdict import break_even, decide
from burnish.tools.bench.worker import Alone, Checked, Lane, Raced, Racing, checked, device_of, measure_alone
from burnish.tools.targets import Target, as_inputs, check_target, placed

DEFAULT_SECONDS = 10.0
CHECKLIST_SECONDS = 30.0  # about
CHECKLIST_LINE_SECONDS = 2.0  # of calls, for a line that counts something in many of them
MOST_POINTS = 240  # of a timeline
_EAGER_FAILED = "the target {!r} failed while running it in eager: {}"
IN_PROCESS = (
    "Compiled inside the calling process, where torch and its compilers may have been loaded before: a fresh process "
    "takes longer. Name a TARGET (FILE.py:FUNCTION) instead of passing an object to have it measured there."
)


def bench(
    target: str | Target | Callable[..., Any],
    inputs: object = None,
    *,
    candidates: str | Sequence[Candidate] | None = None,
    seconds: float = DEFAULT_SECONDS,
    dynamic: bool | None = None,
    fullgraph: bool = False,
    threads: int | None = None,
    device: str | None = None,
    dtype: str | None = None,
    eager_alone: bool = True,
    checklist: bool = False,
    limit_seconds: float = LIMIT_SECONDS,
    on_progress: Callable[[Progress], None] = lambda progress: None,
) -> BenchResult:
    """Measure `target` with every candidate and say what to do.

    `target` is what the command line takes ("bert-base", "model.py:build"), measured in fresh processes, or a module
    or function of this process with its `inputs` (a tensor, a tuple, or a dict by name), measured in it. `candidates`
    is the command line's list or a sequence of Candidate. `seconds` is how long the candidates take turns.
    `eager_alone=False` leaves out eager's own process and with it its memory; `checklist=True` adds the production
    checklist of burnish's version. Ctrl-C returns what there is so far,
    marked `incomplete`.
    """
    chosen = (
        parse_candidates(candidates, dynamic=dynamic, fullgraph=fullgraph)
        if isinstance(candidates, str)
        else None
        if candidates is None
        else with_eager(candidates)
    )
    if isinstance(target, str):
        check_target(target)
        place: _Place = _Elsewhere(target, seconds, threads, device, dtype, limit_seconds)
    else:
        place = _Here(_as_target(target, inputs, device, dtype), seconds, threads)
    return _Bench(place, chosen, seconds, dynamic, fullgraph, eager_alone, checklist, on_progress).run()


def cold_seconds(target: str, candidate: Candidate) -> float:
    """One more cold compile, in a process and caches of its own."""
    with empty_caches() as caches_for:
        return _started(target, candidate, caches_for(candidate.name))


def _started(target: str, candidate: Candidate, caches: dict[str, str]) -> float:
    outcome = _Elsewhere(target).alone(candidate, caches, lambda part, doing: None)
    if outcome.failure is not None or outcome.interrupted:
        raise outcome.failure or KeyboardInterrupt()
    cold = outcome.answer.cold_seconds
    assert cold is not None, outcome.answer.failure
    return float(cold)


def _as_target(target: Target | Callable[..., Any], inputs: object, device: str | None, dtype: str | None) -> Target:
    if not isinstance(target, Target):
        name = getattr(target, "__name__", type(target).__name__)
        target = Target(name, target, () if inputs is None else as_inputs(inputs))
    return placed(target, device, getattr(torch, dtype) if dtype else None) if device or dtype else target


Hear = Callable[[float, str], None]


class _Elsewhere:
    """Measures in children."""

    isolated = True

    def __init__(
        self,
        target: str,
        seconds: float = 0.0,
        threads: int | None = None,
        device: str | None = None,
        dtype: str | None = None,
        limit_seconds: float = LIMIT_SECONDS,
    ) -> None:
        self.name = target
        self.device_type = device.partition(":")[0] if device else None
        self._job = Job("alone", target, (), {}, seconds, threads, device, dtype)
        self._limit = limit_seconds

    def alone(self, candidate: Candidate, caches: dict[str, str], hear: Hear) -> Outcome:
        return self._do("alone", (candidate,), {candidate.name: caches}, hear, Alone)

    def race(self, candidates: tuple[Candidate, ...], caches: dict[str, dict[str, str]], hear: Hear) -> Outcome:
        return self._do("race", candidates, caches, hear, Raced)

    def checklist(self, candidate: Candidate, caches: dict[str, str], hear: Hear, calls: int) -> Outcome:
        self._job = dataclasses.replace(self._job, calls=calls)
        return self._do("checklist", (candidate,), {candidate.name: caches}, hear, Checked)

    def _do(
        self, task: Any, candidates: tuple[Candidate, ...], caches: dict[str, dict[str, str]], hear: Hear, kind: Any
    ) -> Outcome:
        job = dataclasses.replace(self._job, task=task, candidates=candidates, caches=caches)
        outcome = run_child(job, hear, self._limit)
        answer = None if outcome.answer is None else from_plain(kind, outcome.answer)
        return dataclasses.replace(outcome, answer=answer)


class _Here:
    """Measures in this process, for a model that no other can build."""

    isolated = False

    def __init__(self, target: Target, seconds: float, threads: int | None) -> None:
        self.name = target.name
        self.device_type: str | None = device_of(target).type
        self._target = target
        self._seconds = seconds
        self._threads = threads

    def alone(self, candidate: Candidate, caches: dict[str, str], hear: Hear) -> Outcome:
        sampler = Sampler(os.getpid())

        def say(part: float, phase: str, doing: str) -> None:
            sampler.phase(phase)
            hear(part, doing)

        answer, interrupted = None, False
        try:
            with _environment(caches), _threads(self._threads):
                answer = measure_alone(self._target, candidate, say, 0.0, 0.0)
        except KeyboardInterrupt:
            interrupted = True
        return Outcome(answer, sampler.stop(), None, interrupted)

    def race(self, candidates: tuple[Candidate, ...], caches: dict[str, dict[str, str]], hear: Hear) -> Outcome:
        racing = Racing(self._target, candidates, caches, self._seconds, lambda part, phase, doing: hear(part, doing))
        interrupted = False
        try:
            with _environment({}), _threads(self._threads):
                racing.run()
        except KeyboardInterrupt:
            interrupted = True
        return Outcome(racing.answer(), Timeline(), None, interrupted)

    def checklist(self, candidate: Candidate, caches: dict[str, str], hear: Hear, calls: int) -> Outcome:
        try:
            with _environment(caches), _threads(self._threads):
                found = checked(self._target, lambda part, phase, doing: hear(part, doing), calls)
                return Outcome(found, Timeline())
        except KeyboardInterrupt:
            return Outcome(None, Timeline(), None, True)


_Place = _Elsewhere | _Here


class _Bench:
    def __init__(
        self,
        place: _Place,
        candidates: tuple[Candidate, ...] | None,
        seconds: float,
        dynamic: bool | None,
        fullgraph: bool,
        eager_alone: bool,
        checklist: bool,
        on_progress: Callable[[Progress], None],
    ) -> None:
        self._place = place
        self._chosen = candidates
        self._seconds = seconds
        self._dynamic = dynamic
        self._fullgraph = fullgraph
        self._eager_alone = eager_alone or candidates is None
        self._wants_checklist = checklist
        self._checked = Checked()
        self._forecast = Forecast(on_progress)
        self._alone: dict[str, Outcome] = {}
        self._raced = Raced()
        self._notes: list[str] = [] if place.isolated else [IN_PROCESS]
        self._race_failure: str | None = None
        self._incomplete: str | None = None

    def run(self) -> BenchResult:
        begin = time.perf_counter()
        candidates: tuple[Candidate, ...] = self._chosen or (Candidate(EAGER),)
        with empty_caches() as caches_for:
            try:
                candidates = self._measure(caches_for)
            except KeyboardInterrupt:  # between two children
                self._incomplete = self._incomplete or "stopped by Ctrl-C"
        return self._result(candidates, time.perf_counter() - begin)

    def _measure(self, caches_for: Callable[[str], dict[str, str]]) -> tuple[Candidate, ...]:
        eager = Candidate(EAGER)
        guess = self._chosen or self._default(on_cuda=self._place.device_type == "cuda")
        for candidate in guess if self._eager_alone else guess[1:]:
            self._forecast.expect(candidate.name, expected_alone(candidate))
        self._forecast.expect("race", expected_race(guess, self._seconds))
        if self._wants_checklist:
            self._forecast.expect("checklist", CHECKLIST_SECONDS)
        if self._eager_alone:
            self._run_alone(eager, caches_for)
        candidates = guess
        if self._chosen is None:  # only now is it known where the target computes
            candidates = self._default(on_cuda=self._found(EAGER).device == "cuda")
            for candidate in candidates[len(guess) :]:
                self._forecast.expect(candidate.name, expected_alone(candidate))
        for candidate in candidates[1:]:
            if self._incomplete is None:
                self._run_alone(candidate, caches_for)
        if self._incomplete is None:
            self._run_race(candidates, caches_for)
        ours = next((candidate for candidate in candidates if candidate.engine == "burnish"), None)
        if self._wants_checklist and self._incomplete is None and ours is not None:
            self._run_checklist(ours, caches_for)
        return candidates

    def _default(self, on_cuda: bool) -> tuple[Candidate, ...]:
        return default_candidates(on_cuda, dynamic=self._dynamic, fullgraph=self._fullgraph)

    def _run_alone(self, candidate: Candidate, caches_for: Callable[[str], dict[str, str]]) -> None:
        self._forecast.begin(candidate.name)
        self._forecast.move(
            0.0, f"{candidate.title}: a fresh process starts" if self._place.isolated else candidate.title
        )
        outcome = self._place.alone(candidate, caches_for(candidate.name), self._forecast.move)
        self._alone[candidate.name] = outcome
        self._forecast.end()
        if outcome.interrupted:
            self._incomplete = f"stopped by Ctrl-C while {candidate.title} was compiling"
        elif outcome.failure is not None and not candidate.compiles:
            raise outcome.failure  # a target that eager cannot run is no target
        elif not candidate.compiles and (said := self._found(EAGER).failure):
            raise TargetUnusable(_EAGER_FAILED.format(self._place.name, said))

    def _run_race(self, candidates: tuple[Candidate, ...], caches_for: Callable[[str], dict[str, str]]) -> None:
        able = tuple(
            candidate
            for candidate in candidates
            if candidate.name not in self._alone
            or (self._alone[candidate.name].failure is None and self._found(candidate.name).failure is None)
        )
        self._forecast.begin("race")
        self._forecast.move(0.0, "the race: a process for all")
        outcome = self._place.race(able, {c.name: caches_for(c.name) for c in able}, self._forecast.move)
        self._forecast.end()
        self._raced = outcome.answer or Raced()
        if (lane := self._raced.lanes.get(EAGER)) is not None and lane.failure:
            raise TargetUnusable(_EAGER_FAILED.format(self._place.name, lane.failure))
        if outcome.interrupted or self._raced.interrupted:
            self._incomplete = "stopped by Ctrl-C during the race"
        elif outcome.failure is not None:
            self._race_failure = f"the racing process ended with status {outcome.failure.status}"
            if not self._raced.lanes:
                raise outcome.failure

    def _run_checklist(self, candidate: Candidate, caches_for: Callable[[str], dict[str, str]]) -> None:
        self._forecast.begin("checklist")
        self._forecast.move(0.0, "the production checklist")
        lane = self._raced.lanes.get(candidate.name, Lane())
        once = lane.latency.p50.value if lane.latency else 0.0
        calls = min(30, max(5, int(CHECKLIST_LINE_SECONDS / max(once, 1e-6))))
        outcome = self._place.checklist(candidate, caches_for(candidate.name), self._forecast.move, calls)
        self._forecast.end()
        self._checked = outcome.answer or Checked()
        if outcome.interrupted:
            self._incomplete = "stopped by Ctrl-C during the checklist"
        elif outcome.failure is not None:
            self._notes.append(f"The checklist could not be measured: {_short(outcome.failure.said)}")

    def _found(self, name: str) -> Alone:
        outcome = self._alone.get(name)
        return outcome.answer if outcome and outcome.answer else Alone()

    # -- putting it together -------------------------------------------------------------------------------------

    def _result(self, candidates: tuple[Candidate, ...], seconds: float) -> BenchResult:
        rows = [self._row(candidate) for candidate in candidates]
        eager = rows[0]
        rows = [dataclasses.replace(row, break_even_calls=break_even(row, eager)) for row in rows]
        about = next((self._found(name) for name in self._alone), Alone())
        causes = likely_causes(self._raced.activity) if self._raced.activity else ()
        if self._raced.share_failure:
            self._notes.append(f"The step around the model could not be measured: {self._raced.share_failure}")
        return BenchResult(
            target=self._place.name,
            kind=about.kind,
            device=about.device,
            machine=this_machine(about.threads, about.gpu),
            candidates=tuple(rows),
            verdict=decide(rows, share=self._raced.share, causes=causes, incomplete=self._incomplete),
            seconds=seconds,
            batch_size=about.batch_size,
            activity=self._raced.activity,
            causes=causes if any(row.latency and row.latency.noisy for row in rows) else (),
            share=self._raced.share,
            checklist=self._checked.lines,
            incomplete=self._incomplete,
            notes=tuple(self._notes),
        )

    def _row(self, candidate: Candidate) -> CandidateResult:
        alone, lane = self._found(candidate.name), self._raced.lanes.get(candidate.name, Lane())
        outcome = self._alone.get(candidate.name)
        timeline = _thinned(outcome.timeline) if outcome and self._place.isolated else None
        return CandidateResult(
            candidate=candidate,
            failure=self._failure(candidate, alone, lane, outcome),
            latency=lane.latency,
            samples=lane.samples,
            host=lane.host,
            speedup=lane.speedup_over.get(EAGER),
            speedup_over=lane.speedup_over,
            compile=CompileCost(alone.cold_seconds, lane.warm_seconds, self._place.isolated, alone.stages)
            if candidate.compiles
            else None,
            warm_up=lane.warm_up,
            memory=_memory(alone.memory, outcome.timeline) if outcome else None,
            timeline=timeline,
            profile=lane.profile,
            kernels=alone.kernels,
            energy=lane.energy,
            error=lane.error,
            uncompared=lane.uncompared,
            breaks=alone.breaks,
            notes=alone.notes,
        )

    def _failure(self, candidate: Candidate, alone: Alone, lane: Lane, outcome: Outcome | None) -> str | None:
        if outcome is not None and outcome.failure is not None:
            return _short(outcome.failure.said) or f"its process ended with status {outcome.failure.status}"
        if alone.failure or lane.failure:
            return alone.failure or lane.failure
        return self._race_failure if lane.latency is None else None


def _memory(found: MemoryUse, timeline: Timeline) -> MemoryUse:
    """The child knows its own peak to the page; its compile workers were only seen from outside."""
    seen = [peak for peak in (found.compile_peak, timeline.peak("compile")) if peak is not None]
    return dataclasses.replace(found, compile_peak=max(seen) if seen else None)


def _short(said: str) -> str:
    """The last line of a traceback is the one that says what happened."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    return lines[-1][:300] if lines else ""


def _thinned(timeline: Timeline) -> Timeline:
    """Few enough points to draw, peaks kept: of each stretch the highest."""
    points = timeline.points
    stretch = max(1, -(-len(points) // MOST_POINTS))
    kept = [max(points[i : i + stretch], key=lambda point: point[1]) for i in range(0, len(points), stretch)]
    return dataclasses.replace(timeline, points=tuple((round(moment, 2), value) for moment, value in kept))


@contextlib.contextmanager
def _environment(changes: Mapping[str, str]) -> Iterator[None]:
    saved = dict(os.environ)
    os.environ.update(changes)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(saved)


@contextlib.contextmanager
def _threads(count: int | None) -> Iterator[None]:
    before = torch.get_num_threads()
    if count:
        torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
