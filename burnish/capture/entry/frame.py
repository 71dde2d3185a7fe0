"""The entrance of a call into TorchDynamo, with as little host work as possible.

`torch.compile` gives back a wrapper that prepares for every circumstance on every call: about 8 us of the 16 that a
compiled call of a tiny module costs. An `Entrance` finds out with four cheap checks that none of them is at hand,
installs Dynamo's frame callback and calls. In any other circumstance it goes through torch's own wrapper.

Each entrance owns the code object it calls, so that Dynamo's caches, its recompile limit and its memory of sizes
seen are the object's own, and its callback, in which everything that only compiling needs is done.
"""

from __future__ import annotations

import contextlib
import inspect
import itertools
import sys
import threading
import time
import types
import weakref
from collections.abc import Callable, Hashable, Iterator
from functools import partial
from typing import Any, NoReturn

import torch
from torch.autograd import forward_ad

from burnish.capture.background.frames import ONCE_IN_EAGER, DeferredFrames
from burnish.capture.background.queue import worker_for
from burnish.capture.background.snapshot import signature
from burnish.capture.dynamo import make_backend
from burnish.capture.entry.bypass import bypass, in_words, kind_of
from burnish.capture.entry.call_context import EntranceSurroundings
from burnish.capture.entry.diagnosis import (
    GRAPH_BREAKS,
    Place,
    Watch,
    graph_break_error,
    is_callers_mistake,
    serve_eager,
    users_line,
)
from burnish.capture.entry.environment_guards import Asked
from burnish.capture.entry.failure_cause import RETURNED, Doubt, Doubts, Ending
from burnish.capture.entry.hooks import Hooks
from burnish.capture.entry.library_preload import awaken_products
from burnish.capture.entry.method_guards import guard_methods, methods_mark
from burnish.capture.entry.overhead import guards_us, module_call_us, way_in_us
from burnish.capture.entry.prefetch import Ahead, begin, wanted_by
from burnish.capture.entry.seal import Seal
from burnish.capture.entry.trace_times import guards_apart
from burnish.capture.entry.unguarded import remember_sources
from burnish.capture.gc_pause import patience
from burnish.capture.restore.frame import WarmFrames
from burnish.capture.restore.serve import server
from burnish.errors import CompileError
from burnish.observe.log import CompileLog, failure_reason
from burnish.options import Options, Regions
from burnish.runtime.build.concurrent import collecting
from burnish.runtime.cache.entry import CacheKey
from burnish.runtime.host.extension import host_if_built, prepare_host
from burnish.runtime.signals import handlers_raise_through
from burnish.stats import GraphBreak
from burnish.torch_private import dynamo
from burnish.torch_private.dispatch import is_fx_symbolic_tracing, is_tracing, len_torch_dispatch_stack
from burnish.torch_private.dynamo import (
    ConvertFrameReturn,
    DynamoStance,
    FailOnRecompileLimitHit,
    FrameAction,
    FrameExecStrategy,
    ResumePrologueTracingError,
    TorchRuntimeError,
    compile_lock,
    debug_get_cache_entry_list,
    eval_frame,
    innermost_backend,
    install_generation_tagging_init,
    reset_code,
    set_code_exec_strategy,
    set_enable_dynamic,
    set_eval_frame,
)
from burnish.torch_private.dynamo import check as is_skipped
from burnish.torch_private.dynamo import config as dynamo_config
from burnish.torch_private.names import NO_REGIONS
from burnish.torch_private.patches import MakesItsWeights, tracing_as_eager_runs
from burnish.torch_private.probe import why
from burnish.torch_private.quiet import without_headlines, without_meta_failures
from burnish.torch_private.shield import without_guard_profiling
from burnish.torch_private.versions import is_at_least
from burnish.trust.record import WholeCall
from burnish.trust.saved_tensor_hooks import checkpoint_here, finishing_checkpoints, has_begun, regions_are_begun
from burnish.trust.variant import Variant
from burnish.trust.whole_call import WholeCallRace
from burnish.version import PACKAGE

_serial = itertools.count(1)
# What torch.compiler.set_stance replaces, and puts back. (None, which no stance is, if it had been replaced already.)
_ORDINARY_STANCE = eval_frame._stance if eval_frame._stance == DynamoStance() else None
_CHANGED_MEANWHILE = "state changed while dynamo tracing"
_EXCUSES = 64  # calls; as many threads may wait for one compile
_EXCUSES_SECONDS = 600.0
_LOOKS = 8  # at Dynamo's list, before a call is served by eager
_LOOK_SECONDS = 0.0005
_BAD_INPUT_LIMIT = 8  # attempts at a frame that fails in the same way, before giving up on more
_MOST_MISTAKES = 64  # kinds of inputs that are known not to fit


class Entrance:
    """One callable, compiled. `call` is what to call; `restart` forgets all that was compiled.

    `foreign` is for other compilers: arguments for torch.compile, which then does the work."""

    def __init__(
        self,
        target: Callable[..., Any],
        options: Options,
        log: CompileLog,
        foreign: dict[str, Any] | None = None,
    ) -> None:
        self.target = target
        self.options = options
        self.log = log
        self.foreign = foreign
        self.place = place_of(target)
        self.call: Callable[..., Any] = target
        self.deferred: DeferredFrames | None = None  # with background=True or a budget
        self._compiled: tuple[types.FunctionType, FrameCompiler] | None = None  # what a seal goes to, if we compile
        self._around: Callable[..., Any] | None = None
        self._forget: Callable[[], Any] = lambda: None
        self._lock = threading.RLock()
        self._runs_outside = _runs_outside_its_call(target)
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
            self._aside: Callable[..., Any] | None = None
            self._is_sealed = False
            self._around = None
            self._open_call = self.call = self._open()
            self.reconsider()

    def stand_aside(self) -> None:
        """Calls run in eager, and nothing compiles, until `come_back`."""
        with self._lock:
            self.stop_compiling()
            if self._aside is None:
                self._aside, self.call = self.call, self._eager(self._open_call)

    def come_back(self) -> None:
        with self._lock:
            if self._aside is not None:
                self.call, self._aside = self._aside, None
            self.reconsider()

    def reconsider(self) -> None:
        """A verdict, on one of the graphs or on the whole call, has changed: go around Dynamo if eager serves all."""
        with self._lock:
            if self._aside is not None or self._compiled is None or self._is_sealed:
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
            target = self._eager(self._open_call) if regions_are_begun() else self.target
            self.call = self._around = bypass(target, through, host, _called_weakly(self._go_around_in_c))

    def _go_around_in_c(self) -> None:
        """What counts the calls in C is built meanwhile."""
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
    def is_racing(self) -> bool:
        return self._race is not None and self.call is self._race.call and self._race.is_undecided

    def whole_calls(self) -> tuple[WholeCall, ...]:
        """What the race of whole calls has found so far."""
        return self._race.stats() if self._race is not None else ()

    def stop_compiling(self) -> None:
        """Cancel what the compiling thread still has to do, or does, for this entrance."""
        if self.deferred is not None:
            self.deferred.cancel()

    def seal(self, strict: bool = False) -> int:
        """From now on calls go to compiled code by their signature, and nothing compiles; how much there is to go to.
        Without any, the entrance stays open: 0."""
        with self._lock:
            if self._compiled is None:
                return 0
            frame, compiler = self._compiled
            entries = len(compiler.ready(frame.__code__))
            if entries:
                self.stop_compiling()
                self._is_sealed = True
                lost = self._race.lost if self._race is not None else None
                self.call = Seal(
                    self.target, frame, compiler.ready, _ORDINARY_STANCE, self.options, self.log, lost, strict
                ).call
            return entries

    def seal_off(self) -> None:
        """Nothing was compiled, and nothing will be."""
        self._is_sealed = True
        self.call = self.target

    def unseal(self) -> None:
        with self._lock:
            self._is_sealed = False
            self.call = self._open_call
            self.reconsider()

    def _open(self) -> Callable[..., Any]:
        frame = own_frame(self.target)
        hooks = self._hooks = Hooks(self.target) if isinstance(self.target, torch.nn.Module) else None
        if self.foreign is not None:
            if self.foreign.get("disable"):
                return self.target
            return self._through_torch(torch.compile(frame, **self.foreign), hooks)
        if self._runs_outside and not self.options.fullgraph:
            return self.target
        backend = remember_sources(make_backend(self.options, self.log))
        context = dynamo.optimize(backend=backend, nopython=self.options.fullgraph)
        inner = getattr(context, "callback", None)
        if inner is None:  # Dynamo is switched off for this process
            return self.target
        callback = context.callback = FrameCompiler(  # type: ignore
            inner, self.options, self.log, self.place, ahead=wanted_by(self.target)
        )
        callback.root = frame.__code__
        self.deferred = callback.deferred
        callback.own_code = frame.__code__
        callback.on_verdict = _called_weakly(self._news)  # Dynamo keeps graphs, which must not keep the module
        self._compiled = frame, callback
        # Dynamo remembers the code it has read, and the code what was compiled for it: programs and their memory.
        self._forget = forget = weakref.finalize(self, reset_code, frame.__code__)
        forget.atexit = False
        call = self._direct(frame, callback, context(frame), hooks)
        if self.deferred is not None and self.options.background:
            call = self._with_lobby(call, frame, self.deferred, hooks)
        if self.options.gate:
            around = EntranceSurroundings(callback, self.log, lambda: _is_ordinary(hooks))
            self._race = WholeCallRace(
                call, self._eager(call), kind_of, around, _called_weakly(self.reconsider), self._told, in_words
            )
        return call

    def _eager(self, through: Callable[..., Any]) -> Callable[..., Any]:
        """The original; `through` finishes what compiled code has begun."""
        return finishing_checkpoints(self.target, through, self.log)

    def _told(self, verdict: WholeCall) -> None:
        measured = {"ratio": verdict.ratio, "low": verdict.low, "high": verdict.high, "rounds": verdict.rounds}
        rounded: dict[str, Any] = {name: round(x, 3) for name, x in measured.items() if x is not None}
        self.log.emit("gate", reason=f"the whole call {verdict}", engine=verdict.served, **rounded)

    def _with_lobby(
        self, call: Callable[..., Any], frame: types.FunctionType, deferred: DeferredFrames, hooks: Hooks | None
    ) -> Callable[..., Any]:
        worker_for(urgent=False).expect()

        def ring() -> None:
            if not worker_for(urgent=False).ring(deferred.admit_first):
                deferred.admit_first()  # which says that nobody is there to compile it

        ordinary = lambda: _is_ordinary(hooks)  # noqa: E731
        return deferred.lobby.entrance(self._eager(call), call, frame, ordinary, deferred.pace.calls, ring)

    def _direct(
        self, frame: types.FunctionType, callback: FrameCompiler, general: Callable[..., Any], hooks: Hooks | None
    ) -> Callable[..., Any]:
        # Every name the call reads is a local of this function: it has a few us in all.
        set_callback, dispatch_modes = set_eval_frame, len_torch_dispatch_stack
        stances, ordinary, target = eval_frame, _ORDINARY_STANCE, self.target
        fx_tracing, jit_tracing, duals = is_fx_symbolic_tracing, is_tracing, forward_ad
        is_ending = sys.is_finalizing
        as_error = GRAPH_BREAKS if self.options.fullgraph else ()
        doubts, settle = callback.doubts.open, callback.doubts.settle

        def entered(*args: Any, **kwargs: Any) -> Any:
            prior = set_callback(callback)
            try:
                return frame(*args, **kwargs)
            finally:
                set_callback(prior)

        def settling(enter: Callable[..., Any]) -> Callable[..., Any]:
            def run(*args: Any, **kwargs: Any) -> Any:
                try:
                    result = enter(*args, **kwargs)
                except LookAgain:
                    return self._look_again(enter, frame.__code__, callback, args, kwargs)
                except as_error as error:
                    return self._refuse(error, callback.doubts, args, kwargs)
                except BaseException as error:
                    settle(error)
                    raise
                settle()
                return result

            return run

        # Circumstances change between the forward of a checkpointed region and what is run again: torch.fx traces in
        # some thread, a stance was set. Who began finishes.
        in_eager = self._eager(settling(entered))
        generally = finishing_checkpoints(settling(general), settling(entered), self.log)

        def call(*args: Any, **kwargs: Any) -> Any:
            if hooks is not None and hooks.changed():
                return self._call_afresh(hooks, args, kwargs)
            if fx_tracing() or jit_tracing():  # somebody takes the model down: as it was written
                return in_eager(*args, **kwargs)
            if duals._current_level >= 0:  # compiled code would lose the tangents
                self.log.noticed("call in eager: forward-mode differentiation is going on")
                return in_eager(*args, **kwargs)
            if stances._stance is not ordinary or dispatch_modes():
                return generally(*args, **kwargs)
            prior, broken = set_callback(callback), None
            try:
                result = frame(*args, **kwargs)
            except LookAgain:
                set_callback(prior)
                return self._look_again(entered, frame.__code__, callback, args, kwargs)
            except as_error as error:
                set_callback(prior)
                broken = error
            except BaseException as error:
                if doubts:
                    set_callback(prior)
                    settle(error)
                if not (isinstance(error, ImportError) and is_ending()):  # a `__del__` then: Dynamo can no longer begin
                    raise
            else:
                if doubts:
                    set_callback(prior)
                    settle()
                return result
            finally:
                set_callback(prior)
            return target(*args, **kwargs) if broken is None else self._refuse(broken, callback.doubts, args, kwargs)

        return call

    def _refuse(self, error: BaseException, doubts: Doubts, args: tuple[Any, ...], kwargs: dict[str, Any]) -> NoReturn:
        """A graph break under fullgraph=True: an error, or the one that eager raises where the call does."""
        noted = doubts.taken()
        if is_callers_mistake(error):
            self.target(*args, **kwargs)
        for doubt in noted:
            doubt.hear(RETURNED)
        raise graph_break_error(error, self.place) from error.with_traceback(None)

    def _look_again(
        self,
        enter: Callable[..., Any],
        code: types.CodeType,
        callback: FrameCompiler,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        """Nothing of the frame has run yet. Whatever another thread is doing to Dynamo's list takes it microseconds."""
        for _ in range(_LOOKS):
            time.sleep(_LOOK_SECONDS)
            try:
                result = enter(*args, **kwargs)
            except LookAgain:
                continue
            except GRAPH_BREAKS as error:  # under fullgraph=True
                raise graph_break_error(error, self.place) from error.with_traceback(None)
            except BaseException as error:
                callback.doubts.settle(error)
                raise
            callback.doubts.settle()
            return result
        callback.excuse(code)
        return self.target(*args, **kwargs)

    def _through_torch(self, compiled: Callable[..., Any], hooks: Hooks | None) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            if hooks is not None and hooks.changed():
                return self._call_afresh(hooks, args, kwargs)
            try:
                return compiled(*args, **kwargs)
            except GRAPH_BREAKS as error:  # under fullgraph=True
                raise graph_break_error(error, self.place) from error.with_traceback(None)

        return call

    def _call_afresh(self, stale: Hooks, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        with self._lock:
            if self._hooks is stale:  # the first thread to notice
                self.restart()
        return self.call(*args, **kwargs)


def _is_ordinary(hooks: Hooks | None) -> bool:
    """The circumstances in which a call is Dynamo's."""
    tracing = is_fx_symbolic_tracing() or is_tracing() or forward_ad._current_level >= 0
    return not tracing and eval_frame._stance is _ORDINARY_STANCE and not (hooks is not None and hooks.changed())


def _called_weakly(method: Callable[[], None]) -> Callable[[], None]:
    """A bound method, as long as its object lives."""
    reference = weakref.WeakMethod(method)

    def call() -> None:
        if (alive := reference()) is not None:
            alive()

    return call


class LookAgain(BaseException):
    """Leaves the frame that an entrance has entered: what was compiled for it is there, and Dynamo has missed it."""


class FrameCompiler:
    """Dynamo's callback for one entrance: called for a frame that has no compiled code for its inputs yet."""

    def __init__(
        self,
        inner: Callable[..., ConvertFrameReturn],
        options: Options,
        log: CompileLog,
        place: Place,
        ahead: Ahead,
    ) -> None:
        self._torchdynamo_orig_backend = inner  # the chain by which Dynamo finds whose code an entry in its cache is
        self.__name__ = getattr(inner, "__name__", "burnish")
        self._inner = inner
        self._backend = innermost_backend(inner)
        self._log = log
        self._place = place
        self._fullgraph = options.fullgraph
        self._dynamic = options.dynamic
        self._failures: dict[str, int] = {}
        self.doubts = Doubts(users_line)
        self._goes_on: set[types.CodeType] = set()  # where Dynamo said that it raises, and eager did not
        self._mistakes: dict[Hashable, None] = {}  # inputs on which eager raised where Dynamo failed
        self._options = options
        self._ahead = ahead
        self.on_verdict: Callable[[], None] = lambda: None
        self._variants: weakref.WeakSet[Variant] = weakref.WeakSet()
        # The guards of what was compiled last. They know the module: whoever keeps them keeps it.
        self._newest: weakref.WeakValueDictionary[types.CodeType, Any] = weakref.WeakValueDictionary()
        self.own_code: types.CodeType | None = None  # of the frame that the entrance enters
        self._excused: dict[types.CodeType, tuple[float, int]] = {}  # since when, and how many calls were
        defers = options.background or options.budget is not None
        self._warm = WarmFrames(options, log, server(options, log))
        self.root: types.CodeType | None = None  # the entrance's own: what comes after a graph break is not stored
        self.deferred = DeferredFrames(self.compile, self.entries, self.doubts, options, log) if defers else None
        self.compiles = 0  # of frames, begun
        self._served: dict[int, str] = {}  # by what each judged variant was served when somebody asked last

    def __call__(self, frame: Any, cache_entry: Any, frame_state: Any) -> ConvertFrameReturn:
        if _is_machinery(frame.f_code) and frame.f_code is not self.own_code:
            return NEVER
        if self._is_there(frame):
            return self._missed(frame.f_code)
        if (known := self._known_to_fail(frame)) is not None:
            return known
        if (here := checkpoint_here()) is not None and here.is_again and not has_begun(here, self._log):
            return ONCE_IN_EAGER  # by whom its forward was served
        if self.deferred is not None:
            return self.deferred(frame, cache_entry, frame_state)
        with handlers_raise_through():
            return self.compile(frame, cache_entry, frame_state)

    def compile(self, frame: Any, cache_entry: Any, frame_state: Any) -> ConvertFrameReturn:
        """In this thread, now."""
        self.compiles += 1
        self.on_verdict()  # this kind of call may be new to the race of whole calls
        self._ahead = begin(self._ahead, self._options, self._log)
        with compile_lock, patience.asked(), self._settings(frame.f_code):
            if self.deferred is None and self._is_there(frame):  # made while this thread waited for the lock
                return self._missed(frame.f_code)
            graphs = self._log.compiles
            install_generation_tagging_init()
            asked = Asked()
            key = self._warm_key(frame) if frame.f_code is self.root else None
            if key is not None and (restored := self._warm.restored(key, frame)) is not None:
                self._made(frame, restored.guarded_code, graphs, asked)
                return restored
            self._awaken()
            watch = Watch()
            try:
                with self._building_beside() as wait, self._warm.storing(key, frame) as store:
                    with (
                        self._log.stage("dynamo"),
                        guards_apart(self._log),
                        without_headlines(),
                        without_meta_failures(),
                        tracing_as_eager_runs(),
                        asked.noticed(),
                        _copying_blocks(frame, self._options.regions, self._log),
                    ):
                        result = self._inner(frame, cache_entry, frame_state)
                    raises = watch.says_it_raises() and frame.f_code not in self._goes_on
                    if not raises and not asked:  # another process has another environment
                        with self._log.stage("store"):
                            store(result)
                    wait()
            except MakesItsWeights:
                return ONCE_IN_EAGER
            except GRAPH_BREAKS:
                raise  # fullgraph=True, and the caller's to translate
            except ResumePrologueTracingError:
                raise  # half a function has run: there is no eager to go back to
            except Exception as error:
                if self.deferred is not None and _CHANGED_MEANWHILE in str(error):
                    raise  # by other threads: a later call asks again
                return self._give_up(error, frame)
            finally:
                failed = watch.report(frame.f_code, self._log, self._place, self.doubts)
            if raises:  # a graph that ends there is of no use to inputs that fit
                goes_on = partial(self._goes_on.add, frame.f_code)
                return self._in_doubt(frame, ONCE_IN_EAGER.frame_exec_strategy, goes_on)
            self._made(frame, result.guarded_code, graphs, asked)
        if result.frame_exec_strategy.cur_action == FrameAction.RUN_ONLY:
            serve_eager(self._log, "recompile limit", _limit_reached(frame.f_code.co_name))
        elif result.guarded_code is None and result.apply_to_code:
            always = partial(set_code_exec_strategy, frame.f_code, result.frame_exec_strategy)
            return self._in_doubt(frame, result.frame_exec_strategy, always, failed)
        return result

    def _warm_key(self, frame: Any) -> Any:
        try:
            key = self._warm.key(frame)
            return key if key is None else CacheKey((*key.factors, ("methods", methods_mark(frame))))
        except Exception as error:  # inputs that cannot be described: a lazy module's weights before its first call
            self._log.noticed(f"frame not stored: {failure_reason(error)[:80]}")
            return None

    def _awaken(self) -> None:
        """What the trial will want, whatever the graph turns out to be."""
        if self._options.awakens:
            awaken_products(self._ahead.products, compared=self._options.verify != "off")

    def _building_beside(self) -> contextlib.AbstractContextManager[Callable[[], None]]:
        """Compiled by another thread, a frame is done when all of it is."""
        return collecting() if self.deferred is None else contextlib.nullcontext(lambda: None)

    def entries(self, code: types.CodeType) -> list[Any]:
        return [entry for entry in debug_get_cache_entry_list(code) if entry.backend is self._backend]

    def ready(self, code: types.CodeType) -> list[Any]:
        """The entries, and what another thread has compiled and no call has come for since."""
        return [*self.entries(code), *(self.deferred.unused(code) if self.deferred is not None else ())]

    def _is_there(self, frame: Any) -> bool:
        """A thread that searches Dynamo's list while another moves what it found to the front may miss what is there.
        And Dynamo files what was compiled only after the compile lock has been let go: so what was made last is looked
        at, too. Should a frame that fits come back all the time, it is compiled after all."""
        code = frame.f_code
        managers = [entry.guard_manager for entry in self.entries(code)]
        newest = self._newest.get(code) if self.deferred is None else None
        managers += [newest] if newest is not None else []
        if not any(each.check(frame.f_locals) for each in managers):
            return False
        since, count = self._excused.get(code, (0.0, 0))
        return count < _EXCUSES or time.monotonic() - since > _EXCUSES_SECONDS

    def _missed(self, code: types.CodeType) -> ConvertFrameReturn:
        if code is self.own_code:
            raise LookAgain
        self.excuse(code)
        return ONCE_IN_EAGER  # in the midst of a call: what was before the frame has run already

    def excuse(self, code: types.CodeType) -> None:
        """A call was served by eager although there is something compiled for it."""
        now = time.monotonic()
        since, count = self._excused.get(code, (now, 0))
        self._excused[code] = (now, 1) if now - since > _EXCUSES_SECONDS else (since, count + 1)

    def _made(self, frame: Any, guarded: Any, graphs_before: int, asked: Asked) -> None:
        if guarded is None:
            return
        asked.guard(guarded.guard_manager)
        try:
            guard_methods(guarded.guard_manager, frame, partial(prepare_host, self._options))
        except Exception as error:  # of classes that cannot be looked at: what they say of themselves is the user's
            self._log.noticed(f"methods not guarded: {failure_reason(error)[:80]}")
        self._excused.pop(frame.f_code, None)
        self._newest[frame.f_code] = guarded.guard_manager
        for variant in self._log.variants():
            if variant.number > graphs_before:
                self._variants.add(variant)
                variant.on_verdict = self.on_verdict
                if self._options.gate:
                    variant.capture_us = way_in_us() + guards_us(guarded.guard_manager, frame.f_locals)
                    variant.modules_us = module_call_us() * variant.facts.modules

    def variants(self) -> list[Variant]:
        return list(self._variants)

    def something_else_serves(self) -> bool:
        """Whether a variant that was judged is served by something else than when this was asked last."""
        served = {each.number: each.engine for each in self.variants() if each.state != "on trial"}
        anew = {each.number for each in self.variants() if each.state == "on trial"} & self._served.keys()
        changed = any(self._served.get(number, engine) != engine for number, engine in served.items())
        self._served = {number: engine for number, engine in {**self._served, **served}.items() if number not in anew}
        return changed or bool(anew)

    def all_lost(self) -> bool:
        """Whether each graph has been judged, and eager serves it better than going through Dynamo to do so."""
        variants = list(self._variants)
        return bool(variants) and all(
            v.engine == "eager" and v.state != "on trial" and v.capture_us >= v.modules_us for v in variants
        )

    @contextlib.contextmanager
    def _settings(self, code: types.CodeType) -> Iterator[None]:
        # Other compiled objects' entries on shared code (a graph break puts a class's forward there) are not ours.
        others = len(debug_get_cache_entry_list(code)) - len(self.entries(code))
        others -= len(self.deferred.unused(code)) if self.deferred is not None else 0
        shapes = set_enable_dynamic(self._dynamic) if self._dynamic is not None else contextlib.nullcontext()
        limit = dynamo_config.patch(recompile_limit=dynamo_config.recompile_limit + others)
        with shapes, limit, _as_eager_traces(), without_guard_profiling():
            yield

    def _give_up(self, error: Exception, frame: Any) -> ConvertFrameReturn:
        """Run this frame in eager: it gives the result, or raises what the user's mistake raises in eager."""
        if isinstance(error, FailOnRecompileLimitHit):
            serve_eager(self._log, "recompile limit", _limit_reached(self._place.name))
            return ConvertFrameReturn(FrameExecStrategy(FrameAction.RUN_ONLY, FrameAction.RUN_ONLY))
        strategy = FrameExecStrategy(FrameAction.SKIP, FrameAction.DEFAULT)
        return self._in_doubt(frame, strategy, partial(self._failed, error.with_traceback(None), frame.f_code))

    def _failed(self, error: Exception, code: types.CodeType) -> None:
        """Eager could do it. What keeps failing stops being tried, but what is compiled already stays in use."""
        tries = self._failures[str(error)] = self._failures.get(str(error), 0) + 1
        if not isinstance(error, TorchRuntimeError) or tries >= _BAD_INPUT_LIMIT:
            set_code_exec_strategy(code, FrameExecStrategy(FrameAction.RUN_ONLY, FrameAction.DEFAULT))
        serve_eager(self._log, "dynamo", error)

    def _in_doubt(
        self, frame: Any, strategy: FrameExecStrategy, ours: Callable[[], object], failed: bool = True
    ) -> ConvertFrameReturn:
        """Nothing compiled, for this call. `ours` is called should eager return where Dynamo gave up."""
        served, code = ConvertFrameReturn(strategy, apply_to_code=False), frame.f_code
        inputs = (code, signature(frame.f_locals)) if failed else None

        def hear(ending: Ending) -> None:
            if code not in ending.codes:
                ours()
            elif inputs is not None and len(self._mistakes) < _MOST_MISTAKES:
                self._mistakes[inputs] = None

        self.doubts.note(Doubt(code, hear, served))
        return served

    def _known_to_fail(self, frame: Any) -> ConvertFrameReturn | None:
        """In this call; or in earlier ones, in eager as in Dynamo: such inputs are not traced over and over."""
        code = frame.f_code
        served: ConvertFrameReturn | None = self.doubts.served(code) if self.doubts.open else None
        if served is not None or not self._mistakes:
            return served
        inputs = (code, signature(frame.f_locals))
        if inputs not in self._mistakes:
            return None

        def hear(ending: Ending) -> None:
            if code not in ending.codes:  # they fit now
                self._mistakes.pop(inputs, None)

        self.doubts.note(Doubt(code, hear))
        return ONCE_IN_EAGER


def _copying_blocks(frame: Any, regions: Regions, log: CompileLog) -> contextlib.AbstractContextManager[None]:
    if regions is not None and (reason := why(NO_REGIONS)):
        log.noticed(f"{NO_REGIONS}: {reason}")
        return contextlib.nullcontext()
    from burnish.capture.regions.replay import copying_blocks  # which needs what may be missing

    return copying_blocks(frame, regions, log)


def _as_eager_traces() -> contextlib.AbstractContextManager[None]:
    """An assertion on values is a line of Python's, which raises Python's exception: no operation of the graph's.
    NumPy draws its random numbers from its own stream, so its draws are Python's, too.

    Where gradients are recorded, every guard on every call. Before 2.13 those of parameters are left out while the dict
    that holds them is as it was, and one that is frozen or thawed is not noticed: it would get no gradient."""
    changes = {"rewrite_assert_with_torch_assert": False, "use_numpy_random_stream": True}
    if not is_at_least(2, 13) and torch.is_grad_enabled():
        changes["skip_tensor_guards_with_matching_dict_tags"] = False
    patched: contextlib.AbstractContextManager[None] = dynamo_config.patch(changes)
    return patched


def _limit_reached(function: str) -> CompileError:
    limit = dynamo_config.recompile_limit
    return CompileError("recompile limit", f"{function} was compiled {limit} times; new inputs run in eager")


_MACHINERY = tuple(str(PACKAGE / name) + "/" for name in ("capture", "observe", "runtime", "trust"))
# Neither this nor what it calls, whenever it runs.
NEVER = ConvertFrameReturn(FrameExecStrategy(FrameAction.SKIP, FrameAction.SKIP), apply_to_code=True)


def _is_machinery(code: types.CodeType) -> bool:
    """What of burnish runs in the midst of a call: a backward that the caller's function starts and that is compiled
    there, finalizers, hooks. Traced, it would be compiled while it compiles, and wait for locks that it holds."""
    return code.co_filename.startswith(_MACHINERY)


# -- the code object that is called ------------------------------------------------------------------------------


def own_frame(target: Callable[..., Any]) -> types.FunctionType:
    """A function that does what `target` does, on a code object that nobody else has."""
    if _is_traceable_function(target):
        return _renamed(_copied(target))

    def call(*args: Any, **kwargs: Any) -> Any:
        return target(*args, **kwargs)

    call.__name__ = type(target).__name__ if isinstance(target, torch.nn.Module) else _name_of(target)
    return _renamed(call)


def _is_traceable_function(target: Callable[..., Any]) -> bool:
    return isinstance(target, types.FunctionType) and not is_skipped(target)


def _copied(function: Any) -> types.FunctionType:
    copy = types.FunctionType(
        function.__code__, function.__globals__, function.__name__, function.__defaults__, function.__closure__
    )
    copy.__kwdefaults__ = function.__kwdefaults__
    return copy


def _renamed(function: Any) -> types.FunctionType:
    # The name is part of the key under which Dynamo remembers the sizes it saw (file, line, name).
    function.__code__ = function.__code__.replace(co_name=f"{function.__name__}__{next(_serial)}")
    renamed: types.FunctionType = function
    return renamed


def _runs_outside_its_call(target: Callable[..., Any]) -> str:
    """Why nothing of a function can be compiled, whatever it is called with."""
    written = target.forward if isinstance(target, torch.nn.Module) else target
    if inspect.isgeneratorfunction(written) or inspect.isasyncgenfunction(written):
        return "a generator function: its body runs when it is iterated, after the call, in eager"
    if inspect.iscoroutinefunction(written):
        return "a coroutine: its body runs when it is awaited, after the call, in eager"
    return ""


def _name_of(target: Callable[..., Any]) -> str:
    return getattr(target, "__name__", type(target).__name__)


def place_of(target: Any) -> Place:
    """Where the user wrote it: a module's forward, or the function."""
    is_module = isinstance(target, torch.nn.Module)
    name = type(target).__name__ if is_module else _name_of(target)
    written = type(target).forward if is_module else inspect.unwrap(target)
    code = getattr(getattr(written, "__func__", written), "__code__", None)
    if code is None:
        return Place("<unknown>", 0, name)
    return Place(code.co_filename, code.co_firstlineno, name, _positional(target.forward if is_module else target))


def _positional(function: Callable[..., Any]) -> tuple[str, ...]:
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return ()
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return tuple(parameter.name for parameter in parameters if parameter.kind in kinds)
