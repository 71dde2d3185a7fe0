"""The gate: at a variant's first call, eager and each engine run on the call's own inputs, are compared, and race.

It may cost a tenth of what compiling cost: the race stops as soon as its answer is clear or that time is spent.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch

from burnish.capture.saved_tensors import hooks_are_active, own_saved_tensors
from burnish.trust.inputs import CannotCopy, RandomState, SideInputs, devices_of
from burnish.trust.process import give_back_freed_memory
from burnish.trust.record import Engine, GateStats, GraphKind
from burnish.trust.referee import InFloat64, Opinion, Results, judge, widened

Call = Callable[..., Any]
Clock = Callable[[], float]

_SHARE_OF_COMPILE = 0.10
_CLEAR = 0.15  # ratios this far from 1 need no further rounds
_LOSES_ABOVE = 1.02
_LOSES_UNPROVEN_ABOVE = 1.25  # with too few rounds to be sure
_FEW_ROUNDS = 3
_MOST_ROUNDS = 11
_LONG_CALLS = 0.05  # seconds for one call of everybody; below, first calls are mostly what a first call costs
_SMALL_CHANGE = 5e-3  # seconds that a race of tiny graphs may take in any case: less than any compile's tenth
_BLOCK_SECONDS = 2e-4  # so many calls are timed together that the clock and cold caches do not matter
_LONGEST_BLOCK = 64


@dataclass(frozen=True)
class GraphFacts:
    """What the capture layer knows of a graph, in terms of its inputs' positions."""

    kind: GraphKind
    signature: str = ""
    changed: frozenset[int] = frozenset()  # inputs that a call writes
    static: frozenset[int] = frozenset()  # parameters and buffers
    draws: bool = False  # from a random generator
    coarsest: torch.dtype = torch.float32  # the least exact type it computes in
    modules: int = 0  # module calls that eager makes, and the captured graph does not
    unjudgeable: str = ""  # why the graph cannot be run a second time beside the real call


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
    """`winner` serves from now on. `failures` are engines that must not; what is in neither was slower."""

    winner: Engine
    stats: GateStats
    failures: dict[Engine, Failure] = field(default_factory=dict)
    result: Any = None  # of this call, if `has_result`
    has_result: bool = False


class Rig:
    """Runs a graph beside the real call: same inputs, same random numbers, nothing of the caller's changed."""

    def __init__(self, facts: GraphFacts, args: Sequence[Any], *, backward: bool, repeats: bool) -> None:
        """`repeats`: runs that are compared may be followed by others."""
        self.facts = facts
        self.training = facts.kind == "training"
        self.backward = backward
        self.inputs = SideInputs(args, facts.changed, detached=self.training)
        # A forward that changes nothing can be the caller's own, if it is right. Not with hooks on what it saves: what
        # they raise is the caller's, and no failure.
        can_serve = self.training and not (backward or repeats or self.inputs.copies_anything or hooks_are_active())
        self._callers = tuple(args) if can_serve else None
        devices = devices_of(args)
        # Only then: the generators are the process's, and putting them back would repeat other threads' numbers.
        self.random = RandomState(devices) if facts.draws else None
        self._cuda = [d for d in devices if d.type == "cuda"]
        self._cotangents: list[torch.Tensor] = []

    @property
    def results_are_real(self) -> bool:
        """Whether an engine's result can be handed to the caller as that of his call."""
        return self._callers is not None or self.eagers_is_real

    @property
    def eagers_is_real(self) -> bool:
        return not self.training and not self.inputs.copies_anything

    def run_engine(self, call: Call) -> tuple[Any, Results]:
        """As `run`, of what may serve the caller."""
        if self._callers is None:
            return self.run(call)
        self.same_numbers()
        raw = call(*self._callers)
        return raw, [x.detach() for x in _tensors(raw)]

    def run(self, call: Call, wide: InFloat64 | None = None) -> tuple[Any, Results]:
        """The raw result, if it is real; and all its tensors, the gradients of its inputs, and what it changed, to be
        compared."""
        args = self.inputs.take()
        if wide is not None:
            args = widened(args)
        self.same_numbers()
        with self._isolated(), wide or nullcontext():
            raw = call(*args)
            results = _tensors(raw)
            gradients = self._gradients(results, args) if self.backward else []
        found = [x.detach() for x in (*results, *gradients, *self.inputs.changed(args))]
        if self.eagers_is_real:
            return raw, found
        del raw, results, gradients
        if self.training:
            give_back_freed_memory()  # what autograd saved, before the next saves as much
        return None, found

    def _gradients(self, results: Results, args: Sequence[Any]) -> Results:
        roots = [x for x in results if x.requires_grad]
        leaves = [x for x in args if isinstance(x, torch.Tensor) and x.requires_grad]
        if not roots or not leaves:
            return []
        if not self._cotangents:
            self._cotangents = [_random_like(x, seed) for seed, x in enumerate(roots)]
        weights = [w.to(x.dtype) for w, x in zip(self._cotangents, roots, strict=True)]
        found = torch.autograd.grad(roots, leaves, weights, allow_unused=True)
        nothing = (leaf.new_zeros(()).expand(leaf.shape) for leaf in leaves)
        return [zero if x is None else x for x, zero in zip(found, nothing, strict=True)]

    def seconds(self, call: Call, calls: int, clock: Clock) -> float:
        """One call's time, the mean of a few in a row."""
        if self.inputs.copies_anything:
            return min(self._one(call, clock) for _ in range(calls))
        args = self.inputs.take()
        with self._isolated():
            self.synchronise()
            start = clock()
            for _ in range(calls):
                self._step(call, args)
            self.synchronise()
            return (clock() - start) / calls

    def _one(self, call: Call, clock: Clock) -> float:
        self.same_numbers()
        args = self.inputs.take()
        with self._isolated():
            self.synchronise()
            start = clock()
            self._step(call, args)
            self.synchronise()
            return clock() - start

    def same_numbers(self) -> None:
        if self.random is not None:
            self.random.restore()

    def _isolated(self) -> AbstractContextManager[Any]:
        return own_saved_tensors() if self.training else nullcontext()

    def _step(self, call: Call, args: Sequence[Any]) -> None:
        raw = call(*args)
        if self.backward:
            self._gradients(_tensors(raw), args)

    def synchronise(self) -> None:
        for device in self._cuda:
            torch.cuda.synchronize(device)


def _tensors(raw: Any) -> Results:
    return [x for x in (raw if isinstance(raw, (tuple, list)) else (raw,)) if isinstance(x, torch.Tensor)]


def _random_like(tensor: torch.Tensor, seed: int) -> torch.Tensor:
    generator = torch.Generator(tensor.device).manual_seed(seed)
    dtype = tensor.dtype if tensor.is_complex() else torch.float32
    return torch.randn(tensor.shape, dtype=dtype, device=tensor.device, generator=generator)


class Gate:
    """Judges the engines of one variant on one call's inputs."""

    def __init__(
        self,
        facts: GraphFacts,
        *,
        compare: bool,
        race: bool,
        backward: bool = False,
        referee: bool = True,
        compile_seconds: float,
        capture_us: float = 0.0,
        modules_us: float = 0.0,
        clock: Clock = time.perf_counter,
    ) -> None:
        self.facts = facts
        self.compare = compare
        self.race = race
        self.backward = backward  # of a training graph: whether to run it, too
        self.referee = referee  # whether float64 may be asked, at several times the cost of a call
        self.compile_seconds = compile_seconds
        self.capture_us = capture_us
        self.modules_us = modules_us
        self.clock = clock

    def judge(
        self,
        eager: Call,
        engines: Mapping[Engine, Call],
        args: Sequence[Any],
        ready: Callable[[], object] = lambda: None,
    ) -> Verdict:
        """Raises what eager raises on these inputs: the caller's own mistake, and no verdict on anybody. `ready` waits
        for what of our program is still being built: the compile's time, and not the trial's."""
        started = self.clock()
        try:
            rig = self._rig(args)
        except CannotCopy as reason:
            return self._by_rule(engines, str(reason), started)
        try:
            eager_raw, eager_results, first = self._timed(rig, rig.run, eager)
        except torch.OutOfMemoryError:
            rig.same_numbers()
            return self._by_rule(engines, "no memory for a second run", started)
        failures: dict[Engine, Failure] = {}
        opinions: dict[Engine, Opinion] = {}
        raws: dict[Engine, Any] = {}
        times: dict[str, list[float]] = {"eager": [first]}
        for name, call in engines.items():
            try:
                started += self._waited(ready) if name == "burnish" else 0.0
                raw, results, seconds = self._timed(rig, rig.run_engine, call)
                opinion = self._opinion(rig, eager, eager_results, results)
            except torch.OutOfMemoryError:  # beside what eager returned: alone it may well do
                rig.same_numbers()
                return self._by_rule(engines, "no memory for a second run", started)
            except Exception as error:
                failures[name] = Failure.of(error)
                continue
            opinions[name] = opinion
            if opinion.is_right:
                raws[name], times[name] = raw, [seconds]
            else:
                failures[name] = Failure(opinion.wrong)
        is_real = rig.eagers_is_real or (rig.results_are_real and bool(raws))
        after = RandomState(devices_of(args)) if rig.random is not None and is_real else rig.random
        rounds = self._race(rig, {"eager": eager, **{n: engines[n] for n in raws}}, times, started) if raws else 0
        if after is not None:
            after.restore()
        winner = self._winner(times, list(raws), rounds)
        served = winner if winner != "eager" else next(iter(raws), None)
        stats = GateStats(
            eager_us=_best_us(times["eager"]) if rounds else None,
            compiled_us=_best_us(times[served]) if rounds and served else None,
            capture_us=self.capture_us,
            modules_us=self.modules_us,
            rounds=rounds,
            compiled_error=opinions[served].error if self.compare and served in opinions else None,
            eager_error=opinions[served].eager_error if self.compare and served in opinions else None,
            seconds=self.clock() - started,
            compile_seconds=self.compile_seconds,
            engines_us=tuple((name, _best_us(times[name])) for name in raws) if rounds else (),
        )
        verdict = Verdict(winner, stats, failures)
        if is_real:
            verdict.result, verdict.has_result = raws.get(served, eager_raw) if served else eager_raw, True
        return verdict

    def _waited(self, ready: Callable[[], object]) -> float:
        start = self.clock()
        ready()
        waited = self.clock() - start
        self.compile_seconds += waited
        return waited

    def _rig(self, args: Sequence[Any]) -> Rig:
        if self.facts.unjudgeable:
            raise CannotCopy(self.facts.unjudgeable)
        return Rig(self.facts, args, backward=self.backward, repeats=self.race)

    def _timed(self, rig: Rig, run: Callable[[Call], tuple[Any, Results]], call: Call) -> tuple[Any, Results, float]:
        rig.synchronise()  # what the caller has queued before is nobody's time
        start = self.clock()
        raw, results = run(call)
        rig.synchronise()
        return raw, results, self.clock() - start

    def _opinion(self, rig: Rig, eager: Call, eagers: Results, ours: Results) -> Opinion:
        if not self.compare:
            return Opinion("", 0.0)
        exact = (lambda wide: rig.run(eager, wide)[1]) if self.referee and not self.facts.draws else None
        return judge(ours, eagers, exact=exact, eager_again=lambda: rig.run(eager)[1], coarsest=self.facts.coarsest)

    def _by_rule(self, engines: Mapping[Engine, Call], reason: str, started: float) -> Verdict:
        """What cannot be run twice is trusted unseen: the first engine serves, watched for exceptions only."""
        seconds = self.clock() - started
        stats = GateStats(
            None, None, self.capture_us, self.modules_us, 0, None, None, seconds, self.compile_seconds,
            note=f"used without a trial: {reason}",
        )  # fmt: skip
        return Verdict(next(iter(engines), "eager"), stats)

    # -- the race ------------------------------------------------------------------------------------------------

    def _race(self, rig: Rig, calls: Mapping[str, Call], times: dict[str, list[float]], started: float) -> int:
        """Times in turns, the comparing run's being the first. Returns how many rounds there are."""
        if not self.race:
            return 0
        budget = max(_SHARE_OF_COMPILE * self.compile_seconds, self.clock() - started + _SMALL_CHANGE)
        first = sum(values[0] for values in times.values())
        # A tiny graph's first run in eager may take long, too: its Python is written then.
        are_long = len(times) * min(values[0] for values in times.values()) > _LONG_CALLS
        if are_long and self.clock() - started + first > budget and self._wins_cold(times):
            return 1
        block = 1
        if not are_long:
            warm = min(rig.seconds(call, 1, self.clock) for call in calls.values())
            block = max(1, min(_LONGEST_BLOCK, int(_BLOCK_SECONDS / max(warm, 1e-7))))
        times.update({name: [] for name in times})  # what ran but once, with cold caches, is no measure of the rest
        rounds = 1
        while rounds < _MOST_ROUNDS:
            begin = self.clock()
            for name, call in calls.items():
                times[name].append(rig.seconds(call, block, self.clock))
            rounds += 1
            now = self.clock()
            if self._is_clear(times) or now + (now - begin) - started > budget:
                break
        return rounds

    def _wins_cold(self, times: Mapping[str, list[float]]) -> bool:
        """The first run of a program is its slowest: one that wins even so needs no second, where that is dear."""
        return any(self._ratio(times, name) <= 1.0 for name in times if name != "eager")

    def _is_clear(self, times: Mapping[str, list[float]]) -> bool:
        return len(times["eager"]) >= 2 and all(
            abs(self._ratio(times, name) - 1.0) > _CLEAR for name in times if name != "eager"
        )

    def _ratio(self, times: Mapping[str, list[float]], name: str) -> float:
        """The engine's time over eager's with all that each call costs. Minima: noise only ever adds."""
        ours = min(times[name]) * 1e6 + self.capture_us
        return ours / max(min(times["eager"]) * 1e6 + self.modules_us, 1e-9)

    def _winner(self, times: Mapping[str, list[float]], right: list[Engine], rounds: int) -> Engine:
        if not right:
            return "eager"
        if not rounds:
            return right[0]
        best = min(right, key=lambda name: min(times[name]))
        limit = _LOSES_ABOVE if rounds >= _FEW_ROUNDS else _LOSES_UNPROVEN_ABOVE
        return best if self._ratio(times, best) <= limit else "eager"


def _best_us(samples: Sequence[float]) -> float:
    return min(samples) * 1e6
