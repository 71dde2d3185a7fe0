"""Dynamo's callback for one entrance: handles a frame that has no compiled code for its inputs yet."""

from __future__ import annotations

import contextlib
import time
import types
import weakref
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from burnish.capture.autograd.called_from_python import breaking_graphs
from burnish.capture.background.frames import ONCE_IN_EAGER, DeferredFrames
from burnish.capture.background.snapshot import signature
from burnish.capture.entry.diagnosis import GRAPH_BREAKS, Place, Watch, serve_eager, users_line
from burnish.capture.entry.environment_guards import Asked
from burnish.capture.entry.failure_cause import Doubt, Doubts, Ending
from burnish.capture.entry.library_preload import preload_for_products
from burnish.capture.entry.method_guards import guard_methods, methods_mark
from burnish.capture.entry.overhead import guards_us, module_call_us, way_in_us
from burnish.capture.entry.prefetch import Ahead, begin
from burnish.capture.entry.trace_times import guards_apart
from burnish.capture.entry.unguarded import note_broken
from burnish.capture.gc_pause import patience
from burnish.capture.restore.frame import WarmFrames
from burnish.capture.restore.serve import server
from burnish.errors import CompileError
from burnish.observe.log import CompileLog, failure_reason
from burnish.options import Options, Regions
from burnish.runtime.build.concurrent import collecting
from burnish.runtime.cache.entry import CacheKey
from burnish.runtime.host.extension import prepare_host
from burnish.runtime.host.function_modes import users_modes_are_active
from burnish.runtime.signals import handlers_raise_through
from burnish.torch_private import symbolic_sizes
from burnish.torch_private.dynamo import (
    ConvertFrameReturn,
    FailOnRecompileLimitHit,
    FrameAction,
    FrameExecStrategy,
    ResumePrologueTracingError,
    TorchRuntimeError,
    compile_lock,
    debug_get_cache_entry_list,
    innermost_backend,
    install_generation_tagging_init,
    set_code_exec_strategy,
    set_enable_dynamic,
)
from burnish.torch_private.dynamo import config as dynamo_config
from burnish.torch_private.names import NO_REGIONS
from burnish.torch_private.patches.corrections import tracing_as_eager_runs
from burnish.torch_private.patches.left_to_eager import MakesItsWeights
from burnish.torch_private.patches.tracing import noticing_breaks
from burnish.torch_private.probe import why
from burnish.torch_private.quiet import without_headlines, without_meta_failures
from burnish.torch_private.shield import without_guard_profiling
from burnish.torch_private.versions import is_at_least
from burnish.trust.checkpoints import checkpoint_here, is_entered
from burnish.trust.variant import Variant
from burnish.version import PACKAGE

_CHANGED_MEANWHILE = "state changed while dynamo tracing"
_EXCUSES = 64  # calls; this many threads may wait for one compile
_EXCUSES_SECONDS = 600.0
_BAD_INPUT_LIMIT = 8  # attempts at a frame that fails in the same way, before giving up on more
# a profiler's switch: adds two function calls to every call
_RECORDS = "record_runtime_overhead"
_LETS_GO = "invalidate_compile_context_weakrefs"
_DUCK = "use_duck_shape"  # whether sizes that are equal in the traced call are one symbol
_MOST_MISTAKES = 64  # kinds of inputs that are known to raise


@dataclass(frozen=True)
class StoredUnder:
    """Where the cache has a frame, and the part of the process's state that its guards do not tell."""

    key: CacheKey
    inference: bool


class LookAgain(BaseException):
    """Leaves an entered frame: its compiled code exists, but Dynamo has missed it."""


class FrameCompiler:
    """Dynamo's callback for one entrance: called for a frame that has no compiled code for its inputs yet."""

    def __init__(
        self,
        inner: Callable[..., ConvertFrameReturn],
        options: Options,
        log: CompileLog,
        place: Place,
        ahead: Ahead,
        recompiles: int = 0,
        guards_hooks: bool = False,
        for_proof: bool = False,
    ) -> None:
        """`guards_hooks`: Dynamo guards the hooks of modules, because nothing else asks for them. `for_proof`: each
        symbolic size of an input gets a symbol of its own, unless the traced code requires equal sizes, and floats are
        constants: of a symbolic one nothing is known, not that an epsilon is above 0."""
        self._torchdynamo_orig_backend = inner  # the chain by which Dynamo finds the backend of a cache entry
        self.__name__ = getattr(inner, "__name__", "burnish")
        self._inner = inner
        self._backend = innermost_backend(inner)
        self._log = log
        self._place = place
        self._recompiles = recompiles  # allowed, if more than Dynamo's own limit
        self._guards_hooks = guards_hooks
        self._for_proof = for_proof
        self._fullgraph = options.fullgraph
        self._dynamic = options.dynamic
        self._failures: dict[str, int] = {}
        self.doubts = Doubts(users_line)
        self._goes_on: set[types.CodeType] = set()  # where Dynamo reported an exception, and eager did not raise
        self._mistakes: dict[Hashable, None] = {}  # inputs on which eager raised where Dynamo failed
        self._options = options
        self._ahead = ahead
        self.on_verdict: Callable[[], None] = lambda: None
        self._variants: weakref.WeakSet[Variant] = weakref.WeakSet()
        # The guards of the last compile. They refer to the module, and keep it alive.
        self._newest: weakref.WeakValueDictionary[types.CodeType, Any] = weakref.WeakValueDictionary()
        self.own_code: types.CodeType | None = None  # the code of the frame that the entrance enters
        self._excused: dict[types.CodeType, tuple[float, int]] = {}  # since when, and how many calls were
        defers = options.background or options.budget is not None
        self._warm = WarmFrames(options, log, server(options, log))
        # only the entrance's own frame is stored, not resume functions after a graph break
        self.root: types.CodeType | None = None
        self.deferred = DeferredFrames(self.compile, self.entries, self.doubts, options, log) if defers else None
        self.compiles = 0  # of frames, begun
        self.seconds = 0.0  # that they took
        self._stored: dict[int, tuple[Callable[[], types.CodeType | None], StoredUnder]] = {}  # by the code's id
        self._served: dict[int, str] = {}  # the engine of each judged variant at the last check

    def __call__(self, frame: Any, cache_entry: Any, frame_state: Any) -> ConvertFrameReturn:
        if _is_machinery(frame.f_code) and frame.f_code is not self.own_code:
            return NEVER
        if self._is_there(frame):
            return self._missed(frame.f_code)
        if (known := self._known_to_fail(frame)) is not None:
            return known
        if (here := checkpoint_here()) is not None and not is_entered(here, self._log):
            return ONCE_IN_EAGER  # a checkpoint within the call: its recomputation does not pass through here
        if users_modes_are_active():  # entered by the function itself, before a graph break
            return ONCE_IN_EAGER
        if self.deferred is not None:
            return self.deferred(frame, cache_entry, frame_state)
        with handlers_raise_through():
            return self.compile(frame, cache_entry, frame_state)

    def compile(self, frame: Any, cache_entry: Any, frame_state: Any) -> ConvertFrameReturn:
        """In this thread, now."""
        begin = time.monotonic()
        try:
            return self._compile(frame, cache_entry, frame_state)
        finally:
            self.seconds += time.monotonic() - begin

    def _compile(self, frame: Any, cache_entry: Any, frame_state: Any) -> ConvertFrameReturn:
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
                self._note_stored(restored, key)
                return restored
            self._preload_libraries()
            watch = Watch()
            try:
                with self._building_beside() as wait, self._warm.storing(key, frame) as store:
                    result, differs = self._traced(frame, cache_entry, frame_state, asked)
                    raises = watch.says_it_raises() and frame.f_code not in self._goes_on
                    if not raises and not asked and not differs:  # another process has another environment
                        with self._log.stage("store"):
                            store(result)
                        self._note_stored(result, key)
                    wait()
            except MakesItsWeights:
                return ONCE_IN_EAGER
            except GRAPH_BREAKS:
                raise  # fullgraph=True: the caller translates the exception
            except ResumePrologueTracingError:
                raise  # half of the function has run: a fallback to eager is not possible
            except Exception as error:
                if self.deferred is not None and _CHANGED_MEANWHILE in str(error):
                    raise  # by other threads: a later call tries again
                return self._give_up(error, frame)
            finally:
                failed = watch.report(frame.f_code, self._log, self._place, self.doubts)
            if raises:  # a graph that ends there is useless for inputs that do not raise
                goes_on = partial(self._goes_on.add, frame.f_code)
                return self._in_doubt(frame, ONCE_IN_EAGER.frame_exec_strategy, goes_on)
            self._made(frame, result.guarded_code, graphs, asked)
        if result.frame_exec_strategy.cur_action == FrameAction.RUN_ONLY:
            serve_eager(self._log, "recompile limit", _limit_reached(frame.f_code.co_name))
        elif result.guarded_code is None and result.apply_to_code:
            always = partial(set_code_exec_strategy, frame.f_code, result.frame_exec_strategy)
            return self._in_doubt(frame, result.frame_exec_strategy, always, failed)
        return result

    def _traced(self, frame: Any, cache_entry: Any, frame_state: Any, asked: Asked) -> tuple[ConvertFrameReturn, bool]:
        """Dynamo's answer, and whether its code differs from what another process would get."""
        breaks: list[bool] = []
        with (
            self._log.stage("dynamo"),
            guards_apart(self._log),
            without_headlines(),
            without_meta_failures(),
            tracing_as_eager_runs() as differs,
            breaking_graphs(),
            asked.noticed(),
            noticing_breaks(breaks.append),
            _copying_blocks(frame, self._options.regions, self._log),
        ):
            result = self._inner(frame, cache_entry, frame_state)
        if breaks and breaks[-1] and result.guarded_code is not None:
            note_broken(result.guarded_code.code)
        return result, bool(differs)

    def _warm_key(self, frame: Any) -> Any:
        try:
            key = self._warm.key(frame)
            return key if key is None else CacheKey((*key.factors, ("methods", methods_mark(frame))))
        except Exception as error:  # inputs that cannot be described: a lazy module's weights before its first call
            self._log.noticed(f"frame not stored: {failure_reason(error)[:80]}")
            return None

    def _note_stored(self, result: ConvertFrameReturn, key: CacheKey | None) -> None:
        if key is None or result.guarded_code is None:
            return
        code = result.guarded_code.code
        # a key has no guards in it: what was stored before under the same one has been overwritten
        self._stored = {n: each for n, each in self._stored.items() if each[1].key != key}
        self._stored[id(code)] = weakref.ref(code), StoredUnder(key, torch.is_inference_mode_enabled())

    def stored_under(self, code: types.CodeType) -> StoredUnder | None:
        """Where the cache has the frame of this code, unless it could not be stored."""
        alive, found = self._stored.get(id(code), (lambda: None, None))
        return found if alive() is code else None

    def _preload_libraries(self) -> None:
        """Preload the libraries that the trial will need for any graph."""
        if self._options.preloads_libraries:
            preload_for_products(self._ahead.products, compared=self._options.verify != "off")

    def _building_beside(self) -> contextlib.AbstractContextManager[Callable[[], None]]:
        """A frame that another thread compiles is done only when all its builds are."""
        return collecting() if self.deferred is None else contextlib.nullcontext(lambda: None)

    def entries(self, code: types.CodeType) -> list[Any]:
        return [entry for entry in debug_get_cache_entry_list(code) if entry.backend is self._backend]

    def ready(self, code: types.CodeType) -> list[Any]:
        """The cache entries, and code that another thread has compiled and no call has used yet."""
        return [*self.entries(code), *(self.deferred.unused(code) if self.deferred is not None else ())]

    def _is_there(self, frame: Any) -> bool:
        """A thread that searches Dynamo's list while another thread moves an entry to the front may miss an entry.
        Also, Dynamo adds a new entry only after it has released the compile lock, so the last compiled code is checked,
        too. If a frame with a fitting entry keeps coming back, it is compiled anyway."""
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
        return ONCE_IN_EAGER  # in the middle of a call: code before the frame has already run

    def excuse(self, code: types.CodeType) -> None:
        """Eager served a call although there is compiled code for it."""
        now = time.monotonic()
        since, count = self._excused.get(code, (now, 0))
        self._excused[code] = (now, 1) if now - since > _EXCUSES_SECONDS else (since, count + 1)

    def _made(self, frame: Any, guarded: Any, graphs_before: int, asked: Asked) -> None:
        if guarded is None:
            return
        asked.guard(guarded.guard_manager)
        try:
            guard_methods(guarded.guard_manager, frame, partial(prepare_host, self._options))
        except Exception as error:  # an exception from user code that describes its class
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
        """Whether the engine of any judged variant has changed since the last call of this method."""
        served = {each.number: each.engine for each in self.variants() if each.state != "on trial"}
        anew = {each.number for each in self.variants() if each.state == "on trial"} & self._served.keys()
        changed = any(self._served.get(number, engine) != engine for number, engine in served.items())
        self._served = {number: engine for number, engine in {**self._served, **served}.items() if number not in anew}
        return changed or bool(anew)

    def all_lost(self) -> bool:
        """Whether every graph has been judged and lost, so that a bypass of Dynamo is faster."""
        variants = list(self._variants)
        return bool(variants) and all(
            v.engine == "eager" and v.state != "on trial" and v.capture_us >= v.modules_us for v in variants
        )

    @contextlib.contextmanager
    def _settings(self, code: types.CodeType) -> Iterator[None]:
        # Until torch 2.12 all threads share these: Dynamo's lock is held.
        # Other compiled objects' entries on shared code (after a graph break, a class's forward is such code) do not
        # belong to this entrance.
        others = len(debug_get_cache_entry_list(code)) - len(self.entries(code))
        others -= len(self.deferred.unused(code)) if self.deferred is not None else 0
        shapes = set_enable_dynamic(self._dynamic) if self._dynamic is not None else contextlib.nullcontext()
        own = max(dynamo_config.recompile_limit, self._recompiles)
        limit = dynamo_config.patch(recompile_limit=own + others)
        proof = _traced_for_proof() if self._for_proof else contextlib.nullcontext()
        with shapes, limit, proof, _as_eager_traces(self._guards_hooks), without_guard_profiling():
            yield

    def _give_up(self, error: Exception, frame: Any) -> ConvertFrameReturn:
        """Run this frame in eager: it returns the result, or raises eager's exception for a caller error."""
        if isinstance(error, FailOnRecompileLimitHit):
            serve_eager(self._log, "recompile limit", _limit_reached(self._place.name))
            return ConvertFrameReturn(FrameExecStrategy(FrameAction.RUN_ONLY, FrameAction.RUN_ONLY))
        strategy = FrameExecStrategy(FrameAction.SKIP, FrameAction.DEFAULT)
        return self._in_doubt(frame, strategy, partial(self._failed, error.with_traceback(None), frame.f_code))

    def _failed(self, error: Exception, code: types.CodeType) -> None:
        """Eager did not raise, so the failure is ours. A frame that keeps failing is no longer tried, but existing
        compiled code stays in use."""
        tries = self._failures[str(error)] = self._failures.get(str(error), 0) + 1
        if not isinstance(error, TorchRuntimeError) or tries >= _BAD_INPUT_LIMIT:
            set_code_exec_strategy(code, FrameExecStrategy(FrameAction.RUN_ONLY, FrameAction.DEFAULT))
        serve_eager(self._log, "dynamo", error)

    def _in_doubt(
        self, frame: Any, strategy: FrameExecStrategy, ours: Callable[[], object], failed: bool = True
    ) -> ConvertFrameReturn:
        """Run this call without compiled code. `ours` is called if eager returns where Dynamo failed."""
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
        """Known to raise in this call, or in earlier ones both in eager and in Dynamo: such inputs are not traced
        again."""
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
    from burnish.capture.regions.replay import copying_blocks  # which needs a private name that may be missing

    return copying_blocks(frame, regions, log)


def _as_eager_traces(guards_hooks: bool) -> contextlib.AbstractContextManager[None]:
    """Settings so that tracing follows eager. An assertion on values stays Python code with Python's exception, and is
    not traced as an operation. NumPy code also stays in Python: torch's translation of NumPy gives other types, shapes
    and values.

    Where gradients are recorded, every call evaluates all guards. Before torch 2.13, Dynamo skips the guards of
    parameters while the dict that holds them is unchanged, so a change of `requires_grad` would not be noticed, and the
    parameter would get no gradient."""
    changes = {"rewrite_assert_with_torch_assert": False, "trace_numpy": False}
    if guards_hooks:
        changes["skip_nnmodule_hook_guards"] = False
    if not is_at_least(2, 13) and torch.is_grad_enabled():
        changes["skip_tensor_guards_with_matching_dict_tags"] = False
    if hasattr(dynamo_config, _LETS_GO):  # weak references to traced parameters, so that torch can swap them
        changes[_LETS_GO] = True
    if hasattr(dynamo_config, _RECORDS):
        changes[_RECORDS] = False
    patched: contextlib.AbstractContextManager[None] = dynamo_config.patch(changes)
    return patched


@contextlib.contextmanager
def _traced_for_proof() -> Iterator[None]:
    config: Any = symbolic_sizes.config
    apart = config.patch({_DUCK: False}) if hasattr(config, _DUCK) else contextlib.nullcontext()
    with apart, dynamo_config.patch(specialize_float=True):
        yield


def _limit_reached(function: str) -> CompileError:
    limit = dynamo_config.recompile_limit
    return CompileError("recompile limit", f"{function} was compiled {limit} times; new inputs run in eager")


_MACHINERY = tuple(str(PACKAGE / name) + "/" for name in ("capture", "observe", "runtime", "trust"))
# Dynamo must trace neither this function nor its callees.
NEVER = ConvertFrameReturn(FrameExecStrategy(FrameAction.SKIP, FrameAction.SKIP), apply_to_code=True)


def _is_machinery(code: types.CodeType) -> bool:
    """Whether a frame is burnish code that runs inside a user's call: a backward that the caller's function starts and
    that is compiled there, finalizers, hooks. Tracing it would compile the compiler while it runs, and wait for locks
    that it holds."""
    return code.co_filename.startswith(_MACHINERY)
