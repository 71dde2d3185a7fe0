"""The gate: at a variant's first call, eager and each engine run on the call's own inputs, are compared, and race.

The race may take a tenth of the compile time. It stops as soon as the result is clear or that time is used up.
"""

from __future__ import annotations

import dataclasses
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from burnish.runtime.process import give_back_freed_memory
from burnish.trust.distance import Nearness
from burnish.trust.inputs import CannotCopy, RandomState, devices_of
from burnish.trust.interval import ENOUGH, Interval
from burnish.trust.record import Engine, GateStats
from burnish.trust.referee import ROOM, Opinion, Results, first_look, judge
from burnish.trust.shadow_runs import Call, Clock, GraphFacts, ShadowRuns

__all__ = ["Call", "Failure", "Gate", "GraphFacts", "Verdict"]

_SHARE_OF_COMPILE = 0.10
_CLEAR = 0.15  # ratios this far from 1 need no further rounds
_OBVIOUS = 2.0  # times as fast as eager: not even a second round
_TO_LOSE = ENOUGH  # rounds: a single slow round may be a busy machine, or the capture of a CUDA graph
_LOSES_ABOVE = 1.02
_LOSES_UNPROVEN_ABOVE = 1.25  # with too few rounds to be sure
_FEW_ROUNDS = 3
_MOST_ROUNDS = 11
_LONG_CALLS = 0.05  # seconds for one call of every engine; below this, the overhead of a first call dominates
_SMALL_CHANGE = 5e-3  # seconds that a race of tiny graphs may always take: less than a tenth of any compile
_CHEAP_ROUND = 5e-3  # seconds: below, calls get enough rounds for an interval, however clear the first are
_BLOCK_SECONDS = 2e-4  # calls timed together, so that the clock's resolution and cold caches do not matter
_LONGEST_BLOCK = 64


@dataclass(frozen=True)
class Failure:
    """Why an engine may not serve: an exception, or wrong numbers."""

    reason: str
    stack: str = ""
    asked: bool = False  # by the user: nothing failed

    @staticmethod
    def of(error: BaseException) -> Failure:
        first = str(error).strip().splitlines()
        what = f"{type(error).__name__}: {first[0]}" if first else type(error).__name__
        return Failure(what, "".join(traceback.format_exception(error)))


@dataclass
class Verdict:
    """`winner` serves from now on. `failures` are engines that must not serve. An engine in neither was slower."""

    winner: Engine
    stats: GateStats
    failures: dict[Engine, Failure] = field(default_factory=dict)
    result: Any = None  # of this call, if `has_result`
    has_result: bool = False


@dataclass
class _Trial:
    """The outcome of the comparison. `raws` has the results of the engines that are right."""

    eager_raw: Any = None
    raws: dict[Engine, Any] = field(default_factory=dict)
    opinions: dict[Engine, Opinion] = field(default_factory=dict)
    failures: dict[Engine, Failure] = field(default_factory=dict)
    times: dict[str, list[float]] = field(default_factory=dict)
    waited: float = 0.0  # for the compile


@dataclass(frozen=True)
class _Race:
    """The outcome of the race, whose times are in the trial."""

    winner: Engine
    rival: Engine | None  # compared with eager in the record: the winner, or the first right engine if eager wins
    rounds: int  # 0: there was no race
    backward_us: tuple[float | None, float | None] = (None, None)  # eager's and the rival's


class Gate:
    """Judges the engines of one variant on one call's inputs."""

    def __init__(
        self,
        facts: GraphFacts,
        *,
        compare: bool,
        race: bool,
        backward: bool = False,
        left_out: frozenset[int] = frozenset(),
        strict: bool = True,
        again: bool = False,
        compile_seconds: float,
        capture_us: float = 0.0,
        modules_us: float = 0.0,
        share: float = _SHARE_OF_COMPILE,
        patient: bool = False,
        clock: Clock = time.perf_counter,
    ) -> None:
        """`share`: the fraction of the compile time that judging may take. `patient`: first runs never decide, however
        long calls are (at another size, eager allocates new memory as well)."""
        self.facts = facts
        self.compare = compare
        self.race = race
        self.backward = backward  # of a training graph: whether to run the backward, too
        self.left_out = left_out  # results that the loss does not use
        self.strict = strict  # whether small differences are also checked in float64, several times as costly as a call
        self.again = again  # all engines have run before
        self.compile_seconds = compile_seconds
        self.capture_us = capture_us
        self.modules_us = modules_us
        self.clock = clock
        self.share = share
        self.patient = patient
        self._until = 0.0  # a point in time: optional measurements stop there
        self._block = 0  # calls that are timed together

    def judge(
        self,
        eager: Call,
        engines: Mapping[Engine, Call],
        args: Sequence[Any],
        ready: Callable[[], object] = lambda: None,
    ) -> Verdict:
        """Raises eager's exception on these inputs, also that of the trial's own backward. Then there is no verdict,
        and no tensor or generator of the caller has changed. `ready` waits for the parts of our program that are still
        being built; that wait counts as compile time."""
        started = self.clock()
        try:
            runs = self._shadow_runs(args)
        except CannotCopy as reason:
            return self._by_rule(engines, str(reason), started)
        try:
            trial = self._compared(runs, eager, engines, ready)
        except torch.OutOfMemoryError:  # memory for both engines' results: each engine alone may still run
            return self._by_rule(engines, "no memory for a second run", started)
        started += trial.waited
        is_real = runs.eagers_is_real or (runs.results_are_real and bool(trial.raws))
        after = RandomState(devices_of(args)) if runs.random is not None and is_real else runs.random
        race = self._raced(runs, eager, engines, trial, started)
        if after is not None:
            after.restore()
        verdict = Verdict(race.winner, self._record(trial, race, started), trial.failures)
        if is_real:
            verdict.result, verdict.has_result = trial.raws[race.rival] if race.rival else trial.eager_raw, True
        return verdict

    # -- the comparison ------------------------------------------------------------------------------------------

    def _compared(
        self, runs: ShadowRuns, eager: Call, engines: Mapping[Engine, Call], ready: Callable[[], object]
    ) -> _Trial:
        try:
            return self._one_by_one(runs, eager, engines) or self._side_by_side(runs, eager, engines, ready)
        except Exception:
            runs.same_numbers()
            raise

    def _side_by_side(
        self, runs: ShadowRuns, eager: Call, engines: Mapping[Engine, Call], ready: Callable[[], object]
    ) -> _Trial:
        trial = _Trial()
        trial.eager_raw, expected, first = self._timed(runs, runs.run, eager)
        trial.times["eager"] = [first]
        for name, call in engines.items():
            try:
                trial.waited += self._waited(ready) if name == "burnish" else 0.0
                raw, results, seconds = self._timed(runs, runs.run_engine, call)
                opinion = self._opinion(runs, eager, expected, results)
            except torch.OutOfMemoryError:
                raise
            except Exception as error:
                trial.failures[name] = Failure.of(error)
                continue
            trial.opinions[name] = opinion
            if opinion.is_right:
                trial.raws[name], trial.times[name] = raw, [seconds]
            else:
                trial.failures[name] = Failure(opinion.wrong)
        return trial

    def _one_by_one(self, runs: ShadowRuns, eager: Call, engines: Mapping[Engine, Call]) -> _Trial | None:
        """Compare a training step's gradients without holding all of eager's at once. None if that is not possible or
        not conclusive."""
        if not self.compare or (self.strict and not self.facts.draws) or not runs.can_hand_over or len(engines) > 1:
            return None
        (name, call), spent = next(iter(engines.items())), 0.0

        def see(index: int, theirs: torch.Tensor) -> None:
            nonlocal spent
            start = self.clock()
            near.see(index, theirs)
            spent += self.clock() - start

        try:
            start = self.clock()
            near = Nearness(runs.run_holding(call))
            ours = self.clock() - start
            give_back_freed_memory()
        except torch.OutOfMemoryError:
            raise
        except Exception:
            return None
        start = self.clock()
        runs.hand_over(eager, see)
        theirs = self.clock() - start - spent
        opinion = first_look(near)
        if opinion is None:
            return None
        return _Trial(None, {name: None}, {name: opinion}, {}, {"eager": [theirs], name: [ours]})

    def _waited(self, ready: Callable[[], object]) -> float:
        start = self.clock()
        ready()
        waited = self.clock() - start
        self.compile_seconds += waited
        return waited

    def _shadow_runs(self, args: Sequence[Any]) -> ShadowRuns:
        if self.facts.unjudgeable:
            raise CannotCopy(self.facts.unjudgeable)
        return ShadowRuns(self.facts, args, backward=self.backward, left_out=self.left_out, repeats=self.race)

    def _timed(
        self, runs: ShadowRuns, run: Callable[[Call], tuple[Any, Results]], call: Call
    ) -> tuple[Any, Results, float]:
        runs.synchronise()  # work that the caller queued before must not count as an engine's time
        start = self.clock()
        raw, results = run(call)
        runs.synchronise()
        return raw, results, self.clock() - start

    def _opinion(self, runs: ShadowRuns, eager: Call, eagers: Results, ours: Results) -> Opinion:
        if not self.compare:
            return Opinion("", 0.0)
        return judge(
            ours,
            eagers,
            exact=None if self.facts.has_no_referee else lambda wide: runs.run(eager, wide)[1],
            eager_again=lambda: runs.run(eager)[1],
            coarsest=self.facts.coarsest,
            exactness=self.facts.exactness,
            returned=runs.returned,
            room=1.0 if self.strict else ROOM,
        )

    def _by_rule(self, engines: Mapping[Engine, Call], reason: str, started: float) -> Verdict:
        """A graph that cannot run twice is not compared: the first engine serves, and only exceptions cause a
        rollback."""
        seconds = self.clock() - started
        stats = GateStats(
            None, None, self.capture_us, self.modules_us, 0, None, None, seconds, self.compile_seconds,
            note=f"used without a trial: {reason}",
        )  # fmt: skip
        return Verdict(next(iter(engines), "eager"), stats)

    # -- the race ------------------------------------------------------------------------------------------------

    def _raced(
        self, runs: ShadowRuns, eager: Call, engines: Mapping[Engine, Call], trial: _Trial, started: float
    ) -> _Race:
        if not trial.raws:
            return _Race("eager", None, 0)
        rounds = self._race(runs, {"eager": eager, **{n: engines[n] for n in trial.raws}}, trial.times, started)
        winner = self._winner(trial.times, list(trial.raws), rounds)
        rival = winner if winner != "eager" else next(iter(trial.raws))
        if not rounds:
            return _Race(winner, rival, 0)
        return _Race(winner, rival, rounds, self._backwards(runs, eager, engines[rival], trial.times, rival))

    def _race(self, runs: ShadowRuns, calls: Mapping[str, Call], times: dict[str, list[float]], started: float) -> int:
        """Time the engines alternately; the runs of the comparison are the first round. Returns the number of
        rounds."""
        if not self.race:
            return 0
        budget = max(self.share * self.compile_seconds, self.clock() - started + _SMALL_CHANGE)
        self._until = started + budget
        first = sum(values[0] for values in times.values())
        # A tiny graph's first run in eager may also be slow, because its Python code is generated then.
        are_long = len(times) * min(values[0] for values in times.values()) > _LONG_CALLS
        spent = self.clock() - started + first > budget
        if are_long and spent and not self.patient and self._wins_at_once(times):
            return 1
        block = 1
        if not are_long:
            warm = min(runs.seconds(call, 1, self.clock) for call in calls.values())
            block = max(1, min(_LONGEST_BLOCK, int(_BLOCK_SECONDS / max(warm, 1e-7))))
        to_lose = 1 + self.patient if are_long and not runs.on_cuda else _TO_LOSE  # long calls are dear
        times.update({name: [] for name in times})  # a single run with cold caches does not predict later ones
        rounds = 1
        while rounds < _MOST_ROUNDS:
            begin = self.clock()
            for name, call in calls.items():
                times[name].append(runs.seconds(call, block, self.clock))
            rounds += 1
            now = self.clock()
            spent = now + (now - begin) - started > budget
            too_soon = rounds <= to_lose and (self.patient or self._loses(times))
            enough = len(times["eager"]) >= ENOUGH or now - begin > _CHEAP_ROUND
            if not too_soon and (spent or (enough and self._is_clear(times))):
                break
        self._block = block
        return rounds

    def _backwards(
        self, runs: ShadowRuns, eager: Call, engine: Call, times: Mapping[str, list[float]], name: Engine
    ) -> tuple[float | None, float | None]:
        """The backward's time of eager and of the engine in µs: the step's time minus the forward's, if there is time
        to measure it."""
        if not runs.training:
            return None, None
        if not self.backward:
            return 0.0, 0.0
        steps = min(times["eager"]), min(times[name])
        takes = self._block * sum(steps)
        if not self._block or (takes > _SMALL_CHANGE and self.clock() + takes > self._until):
            return None, None
        forwards = [runs.seconds(call, self._block, self.clock, whole=False) for call in (eager, engine)]
        behind = [max(0.0, step - forward) * 1e6 for step, forward in zip(steps, forwards, strict=True)]
        return behind[0], behind[1]

    def _wins_at_once(self, times: Mapping[str, list[float]]) -> bool:
        """The first run of a program is its slowest. Where a second run is expensive, an engine that wins with its
        first run serves until the next call. (Eager's first run is slow, too, so the `Variant` races again at that
        call, with one run each.)"""
        limit = 1.0 - _CLEAR if self.again else 1.0
        return any(self._ratio(times, name) <= limit for name in times if name != "eager")

    def _is_clear(self, times: Mapping[str, list[float]]) -> bool:
        ratios = [self._ratio(times, name) for name in times if name != "eager"]
        if all(ratio <= 1.0 / _OBVIOUS for ratio in ratios):
            return True
        return len(times["eager"]) >= 2 and all(abs(ratio - 1.0) > _CLEAR for ratio in ratios)

    def _loses(self, times: Mapping[str, list[float]]) -> bool:
        return any(self._ratio(times, name) > 1.0 for name in times if name != "eager")

    def _ratio(self, times: Mapping[str, list[float]], name: str) -> float:
        """The engine's time divided by eager's, with the overhead of each call. Minima are used because noise only adds
        time."""
        ours = min(times[name]) * 1e6 + self.capture_us
        return ours / max(min(times["eager"]) * 1e6 + self.modules_us, 1e-9)

    def _winner(self, times: Mapping[str, list[float]], right: list[Engine], rounds: int) -> Engine:
        if not rounds:
            return right[0]
        best = min(right, key=lambda name: min(times[name]))
        limit = _LOSES_ABOVE if rounds >= _FEW_ROUNDS else _LOSES_UNPROVEN_ABOVE
        return best if self._ratio(times, best) <= limit else "eager"

    # -- the record ----------------------------------------------------------------------------------------------

    def _record(self, trial: _Trial, race: _Race, started: float) -> GateStats:
        opinion = trial.opinions.get(race.rival) if self.compare and race.rival else None
        stats = GateStats(
            eager_us=None,
            compiled_us=None,
            capture_us=self.capture_us,
            modules_us=self.modules_us,
            rounds=race.rounds,
            compiled_error=opinion.error if opinion else None,
            eager_error=opinion.eager_error if opinion else None,
            seconds=self.clock() - started,
            compile_seconds=self.compile_seconds,
        )
        return self._with_times(stats, trial, race, race.rival) if race.rival and race.rounds else stats

    def _with_times(self, stats: GateStats, trial: _Trial, race: _Race, rival: Engine) -> GateStats:
        times, (eager_backward_us, compiled_backward_us) = trial.times, race.backward_us
        stats = dataclasses.replace(
            stats,
            eager_us=_best_us(times["eager"]),
            compiled_us=_best_us(times[rival]),
            engines_us=tuple((name, _best_us(times[name])) for name in trial.raws),
            eager_backward_us=eager_backward_us,
            compiled_backward_us=compiled_backward_us,
        )
        ratios = [
            (ours * 1e6 + self.capture_us) / max(theirs * 1e6 + self.modules_us, 1e-9)
            for ours, theirs in zip(times[rival], times["eager"], strict=True)
        ]
        found = Interval.of(ratios)
        if found is None:
            return stats
        return dataclasses.replace(stats, ratio_median=found.median, ratio_low=found.low, ratio_high=found.high)


def _best_us(samples: Sequence[float]) -> float:
    return min(samples) * 1e6
