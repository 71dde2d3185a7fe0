"""The entrance of one compiled object: selects the path of its calls, and changes it.

Each entrance has its own code object, so Dynamo's cache, recompile limit and record of sizes are separate for each
object. Its callback (`frame_compiler.py`) does all work that only compiling needs.
"""

from __future__ import annotations

import inspect
import threading
import time
import types
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from burnish.capture.background.frames import DeferredFrames
from burnish.capture.background.queue import worker_for
from burnish.capture.dynamo import Backend, make_backend
from burnish.capture.entry.bypass import bypass, in_words, kind_of
from burnish.capture.entry.call_context import EntranceSurroundings
from burnish.capture.entry.definition import Definition, definition_of
from burnish.capture.entry.diagnosis import GRAPH_BREAKS, graph_break_error
from burnish.capture.entry.direct_call import ORDINARY_STANCE, DirectCall, is_ordinary
from burnish.capture.entry.frame_compiler import FrameCompiler
from burnish.capture.entry.frame_values import locals_of
from burnish.capture.entry.own_frame import own_frame, place_of, runs_outside_its_call
from burnish.capture.entry.prefetch import wanted_by
from burnish.capture.entry.seal import Seal
from burnish.capture.entry.unguarded import DynamoEntry, is_whole, remember_sources
from burnish.observe.log import CompileLog
from burnish.options import Options
from burnish.runtime.host.extension import host_if_built, prepare_host
from burnish.stats import GraphBreak
from burnish.torch_private import dynamo
from burnish.torch_private.dispatch import len_torch_dispatch_stack
from burnish.torch_private.dynamo import eval_frame, reset_code
from burnish.trust.checkpoints import recorded_python, regions_are_recorded
from burnish.trust.record import WholeCall
from burnish.trust.saved_tensor_hooks import hooks_are_active
from burnish.trust.whole_call import WholeCallRace

_CHANGES_AT_ONCE = 3  # changes of the original that are recompiled at once
_PAYS_AFTER = 20.0  # multiple of the last compile's duration that must pass before the next recompile


class Entrance:
    """One compiled callable. `call` is the function to call; `restart` drops all compiled code.

    `foreign` has arguments for torch.compile, if another compiler does the work. `backend` takes the place of ours.
    Without `raced`, every call goes through Dynamo's guards, even where eager is faster; `recompiles` is then the
    number of variants that a frame may have. `for_proof`: traced for all sizes that a proof is about."""

    def __init__(
        self,
        target: Callable[..., Any],
        options: Options,
        log: CompileLog,
        foreign: dict[str, Any] | None = None,
        *,
        backend: Backend | None = None,
        raced: bool = True,
        recompiles: int = 0,
        for_proof: bool = False,
    ) -> None:
        self._backend = backend
        self._raced = raced
        self._recompiles = recompiles
        self._for_proof = for_proof
        self.target = target
        self.options = options
        self.log = log
        self.foreign = foreign
        self.place = place_of(target)
        self.call: Callable[..., Any] = target
        self._changes = 0  # changes of the original, each followed by a recompile
        self._opened = 0.0  # when, at last
        self.deferred: DeferredFrames | None = None  # with background=True or a budget
        self._compiled: tuple[types.FunctionType, FrameCompiler] | None = None  # the call path of a seal, if we compile
        self._around: Callable[..., Any] | None = None
        self._forget: Callable[[], Any] = lambda: None
        self._lock = threading.RLock()
        self._runs_outside = runs_outside_its_call(target)
        if self._runs_outside:
            self.log.graph_break(GraphBreak(self.place.file, self.place.line, self._runs_outside))
        self.restart()

    def restart(self) -> None:
        with self._lock:
            if self.deferred is not None:
                self.deferred.close()
            self._forget()
            self._compiled = None
            self._race: WholeCallRace | None = None
            self._suspended: Callable[..., Any] | None = None
            self._is_sealed = False
            self._around = None
            self._open_call = self.call = self._open()
            self._opened = time.monotonic()
            self.reconsider()

    def suspend(self) -> None:
        """Run calls in eager without compiling, until `resume`."""
        with self._lock:
            self.stop_compiling()
            if self._suspended is None:
                self._suspended, self.call = self.call, self._eager(self._open_call)

    def resume(self) -> None:
        with self._lock:
            if self._suspended is not None:
                self.call, self._suspended = self._suspended, None
            self.reconsider()

    def reconsider(self) -> None:
        """A verdict on a graph or on the whole call has changed: bypass Dynamo if eager serves all."""
        with self._lock:
            if self._suspended is not None or self._compiled is None or self._is_sealed or not self._raced:
                return
            race = self._race
            outcome = race.outcome() if race is not None else "compiled"
            if self._compiled[1].all_lost():
                self._go_around(self._open_call)
            elif race is None or outcome == "compiled":
                self.call, self._around = self._open_call, None
            elif outcome == "eager":
                self._go_around(race.call)
            else:
                self.call, self._around = race.call, None

    def _go_around(self, through: Callable[..., Any]) -> None:
        if self._around is None or self.call is not self._around:
            if (host := host_if_built()) is None and self.options.gate:
                prepare_host(self.options)
            target = self._eager(self._open_call) if regions_are_recorded() else self.target
            self.call = self._around = bypass(target, through, host, _called_weakly(self._go_around_in_c))

    def _go_around_in_c(self) -> None:
        """The native call counter is built meanwhile."""
        if isinstance(self._around, types.FunctionType) and host_if_built() is not None:
            with self._lock:
                if self.call is self._around:
                    self._around = None
                    self.reconsider()

    def _news(self) -> None:
        """Something was compiled, or a verdict on a graph has changed."""
        with self._lock:
            race = self._race
            if race is not None and self._compiled is not None:
                race.forget() if self._compiled[1].something_else_serves() else race.look_again()
            self.reconsider()

    @property
    def compiled(self) -> tuple[types.FunctionType, FrameCompiler] | None:
        """The frame that Dynamo compiles, and its callback; None if another compiler does the work, or none."""
        return self._compiled

    @property
    def is_racing(self) -> bool:
        return self._race is not None and self.call is self._race.call and self._race.is_undecided

    def whole_calls(self) -> tuple[WholeCall, ...]:
        """The results of the race of whole calls so far."""
        return self._race.stats() if self._race is not None else ()

    def stop_compiling(self) -> None:
        """Cancel this entrance's pending and running background compiles."""
        if self.deferred is not None:
            self.deferred.cancel()

    def seal(self, strict: bool = False) -> int:
        """From now on a call's signature selects the compiled code, and nothing compiles. Returns the number of
        compiled frames; if it is 0, the entrance stays open."""
        with self._lock:
            if self._compiled is None:
                return 0
            frame, compiler = self._compiled
            entries = len(compiler.ready(frame.__code__))
            if entries:
                self.stop_compiling()
                self._is_sealed = True
                lost = self._race.lost if self._race is not None else None
                stance = (eval_frame, "_stance", ORDINARY_STANCE)
                self.call = Seal(
                    self.target, frame, partial(_entries, frame, compiler), stance, self.options, self.log, lost, strict
                ).call
            return entries

    def seal_off(self) -> None:
        """Seal an entrance without compiled code: nothing will be compiled."""
        self._is_sealed = True
        self.call = self.target

    def unseal(self) -> None:
        with self._lock:
            self._is_sealed = False
            self.call = self._open_call
            self.reconsider()

    # -- for calls whose code is selected outside (burnish/bucketed) --------------------------------------------

    def fitting(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The entry of Dynamo's cache whose guards pass for a call; None if there is none, or if the original has been
        changed in a way that guards do not notice. Nothing is run or compiled."""
        compiled = self._compiled
        if compiled is None or self.is_stale():
            return None
        frame, compiler = compiled
        values = locals_of(frame, args, kwargs)
        if values is None:
            return None
        return next((each for each in compiler.entries(frame.__code__) if each.guard_manager.check(values)), None)

    def entry_of(self, code: types.CodeType) -> Any:
        """The entry of Dynamo's cache with this code; None if it has been dropped (`torch._dynamo.reset()`). Entries
        are not to be kept: Dynamo frees them."""
        if self._compiled is None:
            return None
        frame, compiler = self._compiled
        return next((each for each in compiler.entries(frame.__code__) if each.code is code), None)

    def function_of(self, entry: Any) -> Callable[..., Any] | None:
        """The code of an entry as a function of the call's arguments, without its guards; None if it is compiled up to
        a graph break only, so that its parts would look for other code."""
        if self._compiled is None or not is_whole(entry.code):
            return None
        frame = self._compiled[0]
        function = types.FunctionType(
            entry.code, frame.__globals__, frame.__name__, frame.__defaults__, frame.__closure__
        )
        function.__kwdefaults__ = frame.__kwdefaults__
        return function

    def is_stale(self) -> bool:
        """Whether the original has been changed in a way that guards do not notice."""
        return self._definition is not None and self._definition.changed()

    def takes_ordinary_calls(self) -> bool:
        """Whether Dynamo would serve this thread's next call, and nothing else has to see it."""
        if self._compiled is None or len_torch_dispatch_stack() or hooks_are_active():
            return False
        return is_ordinary(self._definition)

    def locals_of(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any] | None:
        """What guards are evaluated on."""
        return None if self._compiled is None else locals_of(self._compiled[0], args, kwargs)

    def sources(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[int | str, str]:
        """Dynamo's name of each argument, by position or keyword."""
        if self._compiled is None:
            return {}
        parameters = list(inspect.signature(self._compiled[0]).parameters.values())
        named = {each.name for each in parameters if each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)}
        plain = [each.name for each in parameters if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)]
        rest = next((each.name for each in parameters if each.kind == each.VAR_POSITIONAL), "args")
        others = next((each.name for each in parameters if each.kind == each.VAR_KEYWORD), "kwargs")
        found: dict[int | str, str] = {}
        for k in range(len(args)):
            found[k] = f"L[{plain[k]!r}]" if k < len(plain) else f"L[{rest!r}][{k - len(plain)}]"
        for name in kwargs:
            found[name] = f"L[{name!r}]" if name in named else f"L[{others!r}][{name!r}]"
        return found

    def surroundings(self) -> EntranceSurroundings | None:
        """For a race of whole calls that is held outside."""
        if self._compiled is None:
            return None
        definition = self._definition
        return EntranceSurroundings(self._compiled[1], self.log, lambda: is_ordinary(definition))

    def _open(self) -> Callable[..., Any]:
        frame = own_frame(self.target)
        definition = self._definition = definition_of(self.target)
        if self.foreign is not None:
            if self.foreign.get("disable"):
                return self.target
            return self._through_torch(torch.compile(frame, **self.foreign), definition)
        if self._runs_outside and not self.options.fullgraph:
            return self.target
        backend = self._backend or remember_sources(make_backend(self.options, self.log))
        context = dynamo.optimize(backend=backend, nopython=self.options.fullgraph)
        inner = getattr(context, "callback", None)
        if inner is None:  # Dynamo is switched off for this process
            return self.target
        callback = context.callback = FrameCompiler(  # type: ignore
            inner,
            self.options,
            self.log,
            self.place,
            wanted_by(self.target),
            self._recompiles,
            guards_hooks=not isinstance(self.target, torch.nn.Module),  # whose definition looks at its hooks
            for_proof=self._for_proof,
        )
        callback.root = frame.__code__
        self.deferred = callback.deferred
        callback.own_code = frame.__code__
        # Dynamo keeps graphs alive, and these must not keep the module alive
        callback.on_verdict = _called_weakly(self._news)
        self._compiled = frame, callback
        # Dynamo keeps references to code objects, and these to their compiled programs and memory.
        self._forget = forget = weakref.finalize(self, reset_code, frame.__code__)
        forget.atexit = False
        call = DirectCall(
            self.target,
            frame,
            callback,
            context(frame),
            definition,
            self._call_afresh,
            self.options,
            self.log,
            self.place,
        ).call
        if self.deferred is not None and self.options.background:
            call = self._while_pending(call, frame, self.deferred, definition)
        if self.options.gate and self._raced:
            around = EntranceSurroundings(callback, self.log, lambda: is_ordinary(definition))
            self._race = WholeCallRace(
                call, self._eager(call), kind_of, around, _called_weakly(self.reconsider), self._told, in_words
            )
        return call

    def _eager(self, through: Callable[..., Any]) -> Callable[..., Any]:
        """The original; a checkpoint's recomputation goes `through` the function that follows the forward's record."""
        return recorded_python(self.target, through, self.log) if self.foreign is None else self.target

    def _told(self, verdict: WholeCall) -> None:
        measured = {"ratio": verdict.ratio, "low": verdict.low, "high": verdict.high, "rounds": verdict.rounds}
        rounded: dict[str, Any] = {name: round(x, 3) for name, x in measured.items() if x is not None}
        self.log.emit("gate", reason=f"the whole call {verdict}", engine=verdict.served, **rounded)

    def _while_pending(
        self,
        call: Callable[..., Any],
        frame: types.FunctionType,
        deferred: DeferredFrames,
        definition: Definition | None,
    ) -> Callable[..., Any]:
        worker_for(urgent=False).expect()

        def ring() -> None:
            if not worker_for(urgent=False).ring(deferred.admit_first):
                deferred.admit_first()  # which says that no compiler is available

        ordinary = lambda: is_ordinary(definition)  # noqa: E731
        return deferred.pending_calls.entrance(self._eager(call), call, frame, ordinary, deferred.pace.calls, ring)

    def _through_torch(self, compiled: Callable[..., Any], definition: Definition | None) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            if definition is not None and definition.changed():
                return self._call_afresh(definition, args, kwargs)
            try:
                return compiled(*args, **kwargs)
            except GRAPH_BREAKS as error:  # under fullgraph=True
                raise graph_break_error(error, self.place) from error.with_traceback(None)

        return call

    def _call_afresh(self, stale: Definition, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        with self._lock:
            if self._definition is stale:  # the first thread to notice
                if self._changes >= _CHANGES_AT_ONCE and self._is_soon():
                    self.log.noticed("call in eager: the original changes too often to be compiled each time")
                    return self.target(*args, **kwargs)
                self._changes += 1
                self.restart()
        return self.call(*args, **kwargs)

    def _is_soon(self) -> bool:
        """Whether the last change was too recent, compared with the compile time since: frequent changes (a hook for
        each step) would make every call compile."""
        spent = self._compiled[1].seconds if self._compiled is not None else 0.0
        return time.monotonic() - self._opened < _PAYS_AFTER * spent


def _entries(frame: types.FunctionType, compiler: FrameCompiler) -> list[DynamoEntry]:
    return [DynamoEntry(entry, frame) for entry in compiler.ready(frame.__code__)]


def _called_weakly(method: Callable[[], None]) -> Callable[[], None]:
    """A bound method that holds its object weakly."""
    reference = weakref.WeakMethod(method)

    def call() -> None:
        if (alive := reference()) is not None:
            alive()

    return call
