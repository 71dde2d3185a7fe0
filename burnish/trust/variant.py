"""A variant: one captured graph, the engines that can serve it, and the one that does.

Its first call goes through the gate. After that, the function that Dynamo calls goes directly to the program. The
serving function is the content of one closure cell; a rollback or a retry only changes that cell.
"""

from __future__ import annotations

import contextlib
import dataclasses
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, Protocol

import torch

from burnish.assumptions import AssumptionUnmet
from burnish.runtime.caller_errors import is_callers_mistake
from burnish.runtime.host.checks import Boxed
from burnish.runtime.host.extension import Host
from burnish.runtime.signals import handlers_raise_through, is_handlers_own
from burnish.trust.checkpoints import Checkpoint, RegionGraphs
from burnish.trust.counts import Counts, Suspicions
from burnish.trust.engines import EagersOwn, Engines
from burnish.trust.gate import Call, Failure, Gate, GraphFacts, Verdict
from burnish.trust.graph_function import graph_function
from burnish.trust.record import Engine, GateStats, SizeClass, State, VariantStats
from burnish.trust.sampling import sampled
from burnish.trust.saved_tensor_hooks import hooks_are_active
from burnish.trust.size_classes import SizeClasses
from burnish.trust.stored_verdicts import Verdicts, class_part

_SLOW = 1.25  # multiple of eager's time in the race above which a sampled call is slow
_MOST_SLOW = 4  # net number of slow samples after which the graph is raced again
_MOST_REPEATED_RACES = 3
_MOST_UNJUDGED = 3  # trials that raised, after which eager serves
_SHARE_FOR_CLASS = 0.03  # fraction of the compile time for a race at another size


def nothing_left() -> None:
    """For a compile that has no parts in the background."""


def _no_backward() -> None:
    """For a graph without a backward so far."""


@dataclass(frozen=True)
class Policy:
    """The checks of a compiled graph; made from Options."""

    verify: bool = True  # compare with eager before use
    gate: bool = True  # race against eager before use
    sample: float = 0.0  # share of live calls compared with eager

    @property
    def tries(self) -> bool:
        return self.verify or self.gate


@dataclass(frozen=True)
class Compile:
    """How the graph was compiled, as far as its trial depends on it."""

    seconds: float = 0.0
    ready: Callable[[], object] = nothing_left  # waits for the parts of engine "burnish" that are still being built
    # ends the background work of the compile, before the trial or at once if there is none
    before_trial: Callable[[], object] = nothing_left
    # the results without gradients in the first backward; None before it
    backward_without: Callable[[], frozenset[int] | None] = _no_backward


_NO_COMPILE = Compile()


class Listener(Protocol):
    """Receives the events of a variant (in practice the log)."""

    def rolled_back(self, variant: Variant, failure: Failure) -> None: ...

    def judged(self, variant: Variant, seconds: float, at: SizeClass | None = None) -> None: ...

    def compared(self, seconds: float) -> None: ...

    def retried(self, variant: Variant) -> None: ...

    def unmet(self, why: str) -> None: ...


class TrialRaised(Exception):
    """Eager raised in the trial's own forward or backward. The call itself must still be made: the caller sees what a
    forward writes before it raises, and may never run a backward."""


def _without_anomaly_mode() -> contextlib.AbstractContextManager[object]:
    """A NaN in the trial's own backward must not make the caller's forward raise; the caller's backward checks
    again."""
    return torch.autograd.set_detect_anomaly(False) if torch.is_anomaly_enabled() else contextlib.nullcontext()


class Variant:
    """Give `call` to Dynamo. `engines` are eager and the compiled forms of the graph."""

    def __init__(
        self,
        number: int,
        facts: GraphFacts,
        engines: Engines,
        policy: Policy,
        *,
        compile: Compile = _NO_COMPILE,
        listener: Listener | None = None,
        verdicts: Verdicts | None = None,
        owner: object = None,
    ) -> None:
        """`verdicts` has the verdicts of earlier processes and receives new ones. `owner` identifies the compiled
        object of the graph."""
        self.number = number
        self.facts = facts
        self.eager = engines.eager
        self.policy = policy
        self.capture_us = 0.0  # Dynamo's overhead per call, from the capture layer
        self.modules_us = 0.0  # eager's overhead beside the graph
        self.on_verdict: Callable[[], None] = lambda: None
        self._engines = engines
        self._compile = compile
        self._listener = listener
        self._verdicts = verdicts
        self._regions = RegionGraphs(owner, engines.alone)
        # What serves, and why.
        self.state: State = "on trial"
        self.engine: Engine = "eager"
        self.gate: GateStats | None = None
        self.failure: Failure | None = None
        self.is_provisional = False  # serves because it won with first runs only: the next call races again
        self._classes = SizeClasses(facts.sizes, self._other_size) if facts.sizes and policy.gate and engines else None
        self._size_class: int | None = None  # of the call that was judged last
        self._serving: Boxed = list
        # What calls have shown so far.
        self.counts = Counts()
        self.suspicions = Suspicions()
        self.knows_infinity = False  # eager's results have had NaNs or infinities, too
        self._forward_seen = False
        self._is_prepared = False  # the compile's background work has been ended
        self._lock = threading.Lock()  # held during changes of state, never while a graph runs
        self._trying = threading.Lock()  # held by the call that is the trial; no other call waits for it
        self.call, self._put = graph_function(self, policy.sample)
        if not self._was_judged():
            self._begin()
        if self.state != "on trial":
            self._end_preparing()

    def _was_judged(self) -> bool:
        """Whether an earlier process found the same program right and, if the race is on, faster than eager."""
        policy = self.policy
        if self._verdicts is None or not self._engines or not policy.tries:
            return False
        found = self._verdicts.passed("graph", compared=policy.verify, raced=policy.gate)
        if found is None:
            return False
        if self._classes is not None and found.size_class is None:
            return False
        self.gate = dataclasses.replace(found, compile_seconds=self._compile.seconds)
        self._size_class = found.size_class
        self._settle("compiled", "burnish")
        if policy.verify and not self.facts.draws and not self.facts.unjudgeable:
            self._serve_with(self._first_of_judged)
        if self._listener is not None:
            self._listener.judged(self, 0.0)
        return True

    def _first_of_judged(self, boxed: list[Any]) -> Any:
        """The stored verdict does not cover the weights, so this call is compared, too, but by the sampling thread."""
        args = tuple(boxed)
        boxed.clear()
        with self._lock:
            if self.state == "compiled":
                self._settle("compiled", self.engine)
        return sampled(self, self._run, args)

    def _begin(self) -> None:
        if self._classes is not None:
            self._classes.clear()
        if not self._engines:
            self._settle("eager", "eager", Failure("it was not compiled"))
        elif self.policy.tries:
            self.state, self.engine = "on trial", "eager"
            self._engines.unsettle()
            self._serve_with(self._trial)
        else:
            self._settle("compiled", self._engines.first)

    # -- the trial -----------------------------------------------------------------------------------------------

    def _trial(self, boxed: list[Any]) -> Any:
        args = tuple(boxed)
        boxed.clear()
        assumptions = self.facts.assumptions
        if assumptions is not None and (why := assumptions.unmet(args)):
            raise AssumptionUnmet(why)  # only calls that meet the assumptions are judged
        if not self._trying.acquire(blocking=False):
            return self._run(args)  # another thread's call is the trial; this one runs in eager or the current engine
        try:
            if self.state == "on trial":
                return self._try(args)
            if self.is_provisional and _can_be_tried(args):
                return self._race_again(args)
            return self._run(args)  # it was on trial when this call began
        except TrialRaised as raised:
            return self._run_unjudged(raised, args)
        finally:
            self._trying.release()

    def _run_unjudged(self, raised: TrialRaised, args: Sequence[Any]) -> Any:
        """The call whose trial raised. If the call itself does not raise, every trial may raise, so the number of
        trials is limited."""
        result = self._run(args)
        with self._lock:
            self.suspicions.unjudged += 1
            if self.suspicions.unjudged >= _MOST_UNJUDGED:
                if self.state == "on trial":
                    self._settle("eager", "eager", Failure(f"its trial raised {raised.__cause__!r}"))
                elif self.is_provisional:
                    self._settle("compiled", self.engine)
        return result

    def _end_preparing(self) -> None:
        if not self._is_prepared:
            self._is_prepared = True
            self._compile.before_trial()

    @property
    def _has_backward(self) -> bool:
        return self._compile.backward_without() is not None

    def _try(self, args: Sequence[Any]) -> Any:
        self._end_preparing()
        if not _can_be_tried(args):
            return self._run_alone(self._engines.first, args)
        training = self.facts.kind == "training"
        if training and not self._has_backward and not self._forward_seen:
            return self._try_forward(args)
        # Both halves of a training step were compared when they first ran. In full precision a comparison with eager
        # alone suffices: real errors are far larger than the tolerance below which float64 is not used.
        known = self._forward_seen and self.facts.coarsest in (torch.float32, torch.float64)
        backward = training and self._has_backward
        verdict = self._judge(args, race=self.policy.gate, backward=backward, strict=not (backward and known))
        self._accept(verdict)
        if verdict.has_result:
            return verdict.result
        return self._run(args)

    def _try_forward(self, args: Sequence[Any]) -> Any:
        """The backward is compiled at its first call, which may never come, so only the forward is compared now. The
        next call races, with the backward if it exists by then."""
        self._forward_seen = True
        winner = self._engines.first
        if self._verdicts is None or self._verdicts.passed("forward", compared=True, raced=False) is None:
            verdict = self._judge(args, race=False, backward=False)
            if verdict.winner == "eager":
                self._accept(verdict)
                return self._run(args)
            if self._listener is not None:
                self._listener.compared(verdict.stats.seconds)
            winner = verdict.winner
            if self._verdicts is not None and verdict.stats.compiled_error is not None:
                self._verdicts.keep("forward", verdict.stats)
            if verdict.has_result:
                return verdict.result
        return self._run_alone(winner, args)

    def _race_again(self, args: Sequence[Any]) -> Any:
        """The second call: first-run costs (memory, the libraries' selection of kernels) no longer count."""
        verdict = self._judge(args, race=True, backward=False, again=True)
        self._accept(verdict)
        return verdict.result if verdict.has_result else self._run(args)

    def _judge(
        self,
        args: Sequence[Any],
        *,
        race: bool,
        backward: bool,
        strict: bool = True,
        again: bool = False,
        **settings: Any,
    ) -> Verdict:
        """`again`: the engines have been compared, and all have run before."""
        self.counts.judgings += 1
        self._size_class = self._classes.of(args) if self._classes is not None else None
        settings.setdefault("compare", self.policy.verify and not again)
        gate = Gate(
            self.facts,
            **settings,
            race=race,
            backward=backward,
            left_out=self._compile.backward_without() or frozenset(),
            strict=strict,
            again=again,
            compile_seconds=self._compile.seconds,
            capture_us=self.capture_us,
            modules_us=self.modules_us,
        )
        try:
            with handlers_raise_through(), _without_anomaly_mode():
                verdict = gate.judge(self.eager, self._engines.compiled, args, self._compile.ready)
        except Exception as error:
            if is_handlers_own(error):
                raise
            raise TrialRaised from error
        return dataclasses.replace(verdict, stats=dataclasses.replace(verdict.stats, size_class=self._size_class))

    # -- other sizes (size_classes.py) ---------------------------------------------------------------------------

    def _other_size(self, boxed: list[Any]) -> Any:
        """A call of a class of sizes that no race covers."""
        args = tuple(boxed)
        boxed.clear()
        if not self._trying.acquire(blocking=False):
            return self._run(args)
        try:
            assert self._classes is not None
            size = self._classes.of(args)
            may_race = self.state in ("compiled", "eager") and self.suspicions.unjudged < _MOST_UNJUDGED
            if not may_race or not _can_be_tried(args):
                return self._run(args)
            if not self._classes.knows(size):
                with self._lock:
                    known = self._knows_of(size)
                if not known:
                    return self._race_at(size, args)
            return self._run_at(size, args)
        except TrialRaised as raised:
            return self._run_unjudged(raised, args)
        finally:
            self._trying.release()

    def _knows_of(self, size: int) -> bool:
        """Decide without a race: by an earlier process's verdict, or by races at other sizes if there were enough."""
        assert self._classes is not None
        if self._classes.is_full:
            self._classes.follow_nearest(size)
            return True
        found = (
            self._verdicts.passed(class_part(size), compared=self.policy.verify, raced=True) if self._verdicts else None
        )
        if found is not None:
            self._classes.put(size, self._engines.behind_assumptions("burnish"), "burnish", found)
        return found is not None

    def _race_at(self, size: int, args: Sequence[Any]) -> Any:
        assert self._classes is not None
        verdict = self._judge(
            args,
            race=True,
            backward=self.facts.kind == "training" and self._has_backward,
            strict=False,
            again=True,
            compare=self.policy.verify,
            share=_SHARE_FOR_CLASS,
            patient=True,
        )
        if verdict.failures:
            self.roll_back(next(iter(verdict.failures.values())))
        else:
            self._accept_at(size, verdict)
        return verdict.result if verdict.has_result else self._run_at(size, args)

    def _accept_at(self, size: int, verdict: Verdict) -> None:
        assert self._classes is not None
        with self._lock:
            if self.state not in ("compiled", "eager"):  # rolled back meanwhile
                return
            self._classes.put(size, self._engines.behind_assumptions(verdict.winner), verdict.winner, verdict.stats)
            engines = self._classes.engines() - {"eager"}
            if self.state == "eager" and engines:
                self.state, self.engine, self.failure = "compiled", next(iter(engines)), None
        if self._listener is not None:
            self._listener.judged(self, verdict.stats.seconds, self._classes.found(size))
        if self._verdicts is not None and verdict.winner == "burnish":
            self._verdicts.keep(class_part(size), verdict.stats)
        self.on_verdict()

    def gate_here(self) -> GateStats | None:
        """The measurements, if they hold for every size."""
        return self.gate if self._classes is None else None

    def _run_at(self, size: int, args: Sequence[Any]) -> Any:
        if self._classes is None or self.state not in ("compiled", "eager") or not self._classes.knows(size):
            return self._run(args)
        self._regions.serves(self._classes.engine_of(args))
        return self._classes.serving(size)(list(args))

    def _accept(self, verdict: Verdict) -> None:
        with self._lock:
            if self.state != "on trial" and not self.is_provisional:  # rolled back by the user meanwhile
                return
            again = self.is_provisional
            self.gate = _together(self.gate, verdict.stats) if again and self.gate is not None else verdict.stats
            failed = next(iter(verdict.failures.values()), None)
            if verdict.winner != "eager":
                self._settle("compiled", verdict.winner, failed)
                if verdict.stats.rounds == 1 and not again and self.facts.kind == "inference":
                    self.is_provisional = True
                    self._serve_with(self._trial)
            elif failed is not None:
                self.counts.rollbacks += 1
                self._settle("rolled back", "eager", failed)
            else:
                self._settle("eager", "eager", Failure(_slower(verdict.stats)))
        if self._listener is not None:
            self._listener.judged(self, verdict.stats.seconds)
            if failed is not None:
                self._listener.rolled_back(self, failed)
        if self._verdicts is not None and not self.is_provisional:
            self._verdicts.keep("graph", self.gate) if verdict.winner == "burnish" else self._verdicts.forget()
        self.on_verdict()

    # -- serving -------------------------------------------------------------------------------------------------

    def _serve_with(self, serve: Boxed) -> None:
        self._serving = serve
        self._put(serve)

    def noting(self, note: Callable[[Variant], None]) -> Callable[[], None]:
        """Call `note` with each call, until the returned function is called or another engine serves."""
        before = self._serving

        def noted(boxed: list[Any]) -> Any:
            note(self)
            return before(boxed)

        def end() -> None:
            with self._lock:
                if self._serving is noted:
                    self._serve_with(before)

        with self._lock:
            if self._serving is before:
                self._serve_with(noted)
        return end

    def _settle(self, state: State, engine: Engine, failure: Failure | None = None) -> None:
        again, self.is_provisional = self.is_provisional, False
        self.state, self.engine, self.failure = state, engine, failure
        serve = self._engines.settle(engine)
        if self._classes is not None and self._size_class is not None and state in ("compiled", "eager"):
            if again:
                self._classes.clear()
            self._classes.put(self._size_class, serve, engine, self.gate)
            serve = self._classes.serve
        self._serve_with(serve)

    def without_guards(self, host: Host | None) -> None:
        """The object is sealed: from now on only assumptions are checked."""
        with self._lock:
            self._engines.without_guards(host)
            if self.state == "on trial" or self.is_provisional:
                return  # which checks them anyway
            self._engines.settle_again()
            if self._classes is not None and self._classes.engines():
                self._classes.serve_by(self._engines.behind_assumptions)
            elif self._serving != self._first_of_judged:  # an object from a pack is sealed before its first call
                self._serve_with(self._engines.alone(self.engine))

    def run_in_checkpoint(self, checkpoint: Checkpoint, boxed: list[Any], serve: Boxed) -> Any:
        settled = self._classes.engine_of(boxed) if self._classes is not None else self.engine
        return self._regions.run(checkpoint, boxed, serve, lambda: settled or self.engine)

    def _run(self, args: Sequence[Any]) -> Any:
        """Exceptions are handled where those of all calls are (graph_function.py), and only there: a second recovery
        would run eager twice and write the caller's tensors twice."""
        return self._run_alone(self.engine, args)

    def _run_alone(self, engine: Engine, args: Sequence[Any]) -> Any:
        self._regions.serves(engine)
        return self._engines.alone(engine)(list(args))

    def took(self, seconds: float) -> None:
        """A sampled call, on other values than the race's: denormals or another branch may be slow. If several samples
        take longer than eager did, the next call races. The number of such races is limited, because the machine may
        just be busy."""
        gate = self.gate
        if self.facts.kind != "inference" or self._classes is not None or gate is None or gate.eager_us is None:
            return
        is_slow = seconds * 1e6 > _SLOW * gate.eager_us
        self.suspicions.slow = self.suspicions.slow + 1 if is_slow else max(0, self.suspicions.slow - 1)
        if self.suspicions.slow < _MOST_SLOW or self.suspicions.repeated_races >= _MOST_REPEATED_RACES:
            return
        with self._lock:
            if self.state == "compiled" and self.policy.gate:
                self.suspicions.slow = 0
                self.suspicions.repeated_races += 1
                self.is_provisional = True
                self._serve_with(self._trial)

    def compiled(self) -> Call | None:
        """The serving engine, if it is not eager."""
        return self._engines.compiled.get(self.engine)

    def recover(self, error: Exception, args: Sequence[Any]) -> Any:
        """A call raised `error`: return eager's result, or raise eager's exception."""
        if isinstance(error, EagersOwn):
            raise error.error from error.error.__cause__
        if isinstance(error, AssumptionUnmet):
            return self._serve_unmet(str(error), args)
        if is_handlers_own(error):
            raise error
        if self.facts.kind == "training" and hooks_are_active():
            raise error  # the hooks' own: checkpointing ends a recomputation by raising
        if getattr(error, "of_earlier_call", False):
            raise error  # a GPU reports an index out of range late: a caller error, of an earlier call
        if getattr(error, "inputs_changed", False):
            self._refuse_half_done(error)
        result = self.eager(*args)  # also raises for a caller error, which then is not our failure
        self.roll_back(Failure.of(error))
        return result

    def _serve_unmet(self, why: str, args: Sequence[Any]) -> Any:
        """Nothing has run yet. The graph in eager accepts all inputs that its guards accept."""
        self.counts.unmet += 1
        if self._listener is not None:
            self._listener.unmet(why)
        return self.eager(*args)

    def _refuse_half_done(self, error: Exception) -> NoReturn:
        if not is_callers_mistake(error) and not isinstance(error, IndexError):  # his divisors; his indices
            self.roll_back(Failure.of(error))
            error.add_note(
                "burnish: this failed in a compiled program that had begun to write its inputs in place, so that this "
                "call cannot be repeated in eager. Their values are not reliable. Further calls run in eager."
            )
        raise error

    # -- rolling back --------------------------------------------------------------------------------------------

    def roll_back(self, failure: Failure) -> None:
        """Eager serves from now on. Calls in flight finish with their engine."""
        with self._lock:
            if self.state == "rolled back":
                return
            self.counts.rollbacks += 1
            self._settle("rolled back", "eager", failure)
        if self._verdicts is not None and not failure.asked:
            self._verdicts.forget()
        if self._listener is not None:
            self._listener.rolled_back(self, failure)
        self.on_verdict()

    def abandon(self) -> None:
        """Drop the compiled forms, which are not available after all."""
        with self._lock:
            self._engines.give_up()
            self._begin()

    def retry(self) -> None:
        """On trial again, whatever engine serves now."""
        with self._lock:
            self.failure = self.gate = None
            self._forward_seen = False
            self.suspicions.doubts = 0
            self._begin()
        if self._listener is not None:
            self._listener.retried(self)
        self.on_verdict()

    def stats(self) -> VariantStats:
        with self._lock:
            return VariantStats(
                id=self.number,
                kind=self.facts.kind,
                signature=self.facts.signature,
                state=self.state,
                engine=self.engine,
                reason=self.failure.reason if self.failure else (self.gate.note if self.gate else ""),
                stack=self.failure.stack if self.failure else "",
                gate=self.gate,
                rollbacks=self.counts.rollbacks,
                samples=self.counts.samples,
                samples_dropped=self.counts.samples_dropped,
                unmet=self.counts.unmet,
                classes=self._classes.stats() if self._classes is not None else (),
            )


def _slower(stats: GateStats) -> str:
    if stats.ratio_median is None:
        return f"compiled it takes longer ({stats.speed})" if stats.speed else "compiled it takes longer"
    return f"compiled it takes {stats.ratio_median:.2f} times as long ({stats.ratio_low:.2f} to {stats.ratio_high:.2f})"


def _together(compared: GateStats, raced: GateStats) -> GateStats:
    """The record of a repeated race: the second's times, the first's errors, and the seconds of both."""
    return dataclasses.replace(
        raced,
        compiled_error=compared.compiled_error,
        eager_error=compared.eager_error,
        seconds=compared.seconds + raced.seconds,
    )


def _can_be_tried(args: Sequence[Any]) -> bool:
    """False during a CUDA graph capture: a trial synchronises, which a capture forbids."""
    on_cuda = any(isinstance(x, torch.Tensor) and x.device.type == "cuda" for x in args)
    return not (on_cuda and torch.cuda.is_current_stream_capturing())
