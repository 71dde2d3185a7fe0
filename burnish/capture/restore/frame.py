"""Stores a frame that Dynamo has compiled in the cache, and rebuilds Dynamo's cache entry from it in another process.

The entry equals the one that Dynamo would have made: its code, over the live globals, and its guards, made from the
live values. So guards, recompiles for other inputs and sealing work as after a trace.
"""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
import hashlib
import itertools
import os
import types
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

from burnish.assumptions import Assumptions, NumberInput, OtherInput, TensorInput
from burnish.capture.autograd.missing_gradients import Behind, Flow
from burnish.capture.entry.hooks import Hooks
from burnish.capture.entry.unguarded import is_broken, note_broken
from burnish.capture.restore import NotWarm, code_identity, guards
from burnish.capture.restore.graph_source import GraphText, Reference
from burnish.capture.restore.training import StoredBackward, TrainingLayout
from burnish.ir.expr import Div, Extreme, Mod, Sym
from burnish.observe.log import CompileLog
from burnish.options import Options
from burnish.runtime.build.shared_library import source_hash
from burnish.runtime.cache import stored_program
from burnish.runtime.cache.data import Codec, NotData
from burnish.runtime.cache.deferred_writes import later
from burnish.runtime.cache.store import CacheKey, open_cache
from burnish.torch_private import dynamo
from burnish.torch_private.aot import config as functorch_config
from burnish.torch_private.dynamo import ConvertFrameReturn, GlobalStateGuard
from burnish.torch_private.dynamo import config as dynamo_config
from burnish.torch_private.guards import (
    CheckFunctionManager,
    CleanupHook,
    CleanupManager,
    CompileId,
    Guard,
    GuardedCode,
    Source,
    TracingContext,
    get_builtins_dict,
    orig_code_map,
    output_codes,
    tracing,
    wrap_guarded_code,
)
from burnish.torch_private.names import NO_WARM_START
from burnish.torch_private.patches.tracing import making_guards_with
from burnish.torch_private.probe import why
from burnish.trust.gate import GraphFacts

KIND = "frame"
_GRAPH = "__compiled_fn_"
_restored = itertools.count(1)


@dataclass(frozen=True)
class StoredGraph:
    """The data needed to serve a captured graph: its eager form, our programs, and the facts for the gate."""

    eager: GraphText
    facts: GraphFacts
    sources: tuple[str, ...] | None  # its inputs' sources in the frame
    device: str
    static: frozenset[int]
    program: bytes
    training: TrainingLayout | None = None
    backwards: tuple[StoredBackward, ...] = ()
    backward: GraphText | None = None  # the whole of it
    coarsest: torch.dtype = torch.float32
    written: tuple[int, ...] = ()  # inputs that an inference program changes


@dataclass(frozen=True)
class StoredFrame:
    code: types.CodeType
    root: str  # the mark of the frame's own code
    graph_name: str
    guards: guards.GuardList
    used: tuple[tuple[str, code_identity.Place], ...]  # other globals that its code reads
    guard_text: bytes
    marks: tuple[tuple[str, str], ...]
    traced: tuple[code_identity.Traced, ...]
    names: tuple[str, ...]  # that the traced code mentions
    graph: StoredGraph
    breaks: bool = False  # calls at its end to functions that are not stored with it


def _codec() -> Codec:
    """A codec for this thread and moment: guards refer to the same places repeatedly."""
    classes = [StoredFrame, StoredGraph, GraphText, Reference, GraphFacts, TrainingLayout, StoredBackward, Flow, Behind]
    classes += [*guards.source_classes(), Assumptions, TensorInput, NumberInput, OtherInput, Sym, Div, Mod, Extreme]
    return Codec(classes, shared=Source)


def _loaded(data: bytes) -> Any:
    """Sources of imported modules install a guard when they are made; it is among the stored ones already."""
    with tracing(TracingContext(None)):
        return _codec().loads(data)


# -- what Dynamo says while it compiles ---------------------------------------------------------------------------


@dataclass
class Parts:
    """The parts of one captured graph, collected while it compiles; those of a training step are complete when its
    backward is compiled."""

    build: Callable[[], StoredGraph] | None = None  # set when the graph is complete; raises NotWarm
    whole: Callable[[], None] = lambda: None  # called then
    problem: str = ""


@dataclass
class _Compiling:
    graphs: list[Parts] = field(default_factory=list)
    output: Any = None  # the kept data of Dynamo's output graph


_compiling: contextvars.ContextVar[_Compiling | None] = contextvars.ContextVar("burnish_compiling", default=None)


def note_graph(parts: Parts) -> None:
    """Called by the backend with every graph."""
    current = _compiling.get()
    if current is not None:
        current.graphs.append(parts)


class _Watched(CheckFunctionManager):
    """Records the constructor's arguments, which are not accessible otherwise."""

    def __init__(self, code: types.CodeType, output_graph: Any, *arguments: Any, **keywords: Any) -> None:
        current = _compiling.get()
        if current is None:
            super().__init__(code, output_graph, *arguments, **keywords)
            return
        with guards.marking_comments():
            super().__init__(code, output_graph, *arguments, **keywords)
        current.output = _kept(output_graph, self.guard_manager)


@dataclass(frozen=True)
class _Output:
    manager: Any
    live: tuple[Guard, ...]  # as Dynamo has them
    guards: guards.GuardList | NotWarm
    builtins: str
    installed: Mapping[str, Any]  # Dynamo's additions to the frame's globals
    traced: tuple[types.CodeType, ...]


def _kept(graph: Any, manager: Any) -> _Output:
    try:
        listed: guards.GuardList | NotWarm = guards.written(graph)
    except NotWarm as why:
        listed = why
    builtins = graph.name_of_builtins_dict_key_in_fglobals or ""
    installed = {name: graph.global_scope.get(name) for name in graph.installed_globals}
    return _Output(manager, tuple(graph.guards), listed, builtins, installed, tuple(graph.tracing_context.traced_code))


@contextlib.contextmanager
def _watching() -> Iterator[_Compiling]:
    """Entered with Dynamo's compile lock held."""
    current = _Compiling()
    token = _compiling.set(current)
    try:
        with making_guards_with(_Watched):
            yield current
    finally:
        _compiling.reset(token)


# -- the key ------------------------------------------------------------------------------------------------------


def frame_key(frame: Any, options: Options, name: str) -> CacheKey:
    """The properties of a call that are known before the trace; its guards and the traced code are compared later."""
    inputs = hashlib.sha256("\n".join(_described(dict(frame.f_locals))).encode()).hexdigest()
    settings = "\n".join(itertools.chain(_settings(dynamo_config), _settings(functorch_config)))
    state = f"{GlobalStateGuard().__getstate__()} {torch.is_inference_mode_enabled()}"
    device = "cuda" if torch.cuda.is_available() else "cpu"
    shapes = f"dynamic={options.dynamic}, fullgraph={options.fullgraph}"
    return CacheKey(
        (
            ("name", name),
            ("model and inputs", inputs),
            ("options", f"{stored_program.option_factor(options)}, {shapes}"),
            ("torch's settings", hashlib.sha256(settings.encode()).hexdigest()),
            ("torch's state", hashlib.sha256(state.encode()).hexdigest()),
            ("burnish", source_hash()),
            *stored_program.machine_factors(torch.device(device)),
        )
    )


def _settings(module: Any) -> Iterator[str]:
    """torch's own hash of these differs between processes. Folders do not change what is compiled: torch's own place,
    and one for reports in the working directory."""
    for name, value in sorted(module.get_config_copy().items()):
        if isinstance(value, str) and os.path.isabs(value):
            continue
        if isinstance(value, set | frozenset):
            value = sorted(map(str, value))
        if not callable(value) and " at 0x" not in (text := repr(value)):
            yield f"{name}={text}"


def _described(value: Any, depth: int = 4) -> Iterator[str]:
    if isinstance(value, torch.Tensor):
        yield f"{type(value).__qualname__} {_tensor(value)}"
    elif isinstance(value, torch.nn.Module):
        yield from _module(value)
    elif isinstance(value, list | tuple | dict) and depth:
        items = value.items() if isinstance(value, dict) else enumerate(value)
        yield f"{type(value).__qualname__} {len(value)}"
        for key, item in items:
            yield str(key) if isinstance(key, str | int) else type(key).__qualname__
            yield from _described(item, depth - 1)
    elif isinstance(value, str | int | float | bool | complex | torch.dtype | torch.device | None):
        yield repr(value)
    else:
        yield f"{type(value).__module__}.{type(value).__qualname__} {getattr(value, '__qualname__', '')}"


def _tensor(value: torch.Tensor) -> str:
    plain = value.layout is torch.strided and not value.is_nested  # a nested tensor has no sizes
    layout = f"{tuple(value.shape)} {value.stride()}" if plain else str(value.layout)
    return f"{value.dtype} {layout} {value.device} {value.requires_grad}"


def _module(module: torch.nn.Module) -> Iterator[str]:
    for name, each in module.named_modules():
        yield f"{name} {type(each).__module__}.{type(each).__qualname__}"
        for held in (each._parameters, each._buffers):
            yield from (f"{key} {_tensor(value)}" for key, value in held.items() if value is not None)
        plain = (str, int, float, bool, type(None))
        yield from (f"{key}={value!r}" for key, value in sorted(vars(each).items()) if type(value) in plain)


# -- one entrance's frames ----------------------------------------------------------------------------------------


class WarmFrames:
    """Looks frames up before they are compiled, and stores them afterwards."""

    def __init__(self, options: Options, log: CompileLog, serve: Callable[[StoredGraph], Callable[..., Any]]) -> None:
        self._options = options
        self._log = log
        self._serve = serve  # a stored graph as the function that Dynamo's code calls

    def key(self, frame: Any) -> CacheKey | None:
        """None if frames are neither looked up nor stored."""
        if not stored_program.is_wanted(self._options, self._log) or self._options.inductor:
            return None
        if reason := why(NO_WARM_START):
            self._log.noticed(f"{NO_WARM_START}: {reason}")
            return None
        return frame_key(frame, self._options, self._log.name)

    def restored(self, key: CacheKey, frame: Any) -> ConvertFrameReturn | None:
        """Dynamo's result for a frame, if it is stored and everything that determined it is the same."""
        cache = open_cache(self._options)
        with self._log.stage("restore"):
            later.finish()  # an entry that this process may be about to store
            data = cache.get(KIND, key)
            if data is None:
                self._log.cache(False, cache.miss_reason(KIND, key))
                return None
            try:
                answer = self._answer(data, frame)
            except Exception as why:  # on any error, Dynamo traces the frame
                reason = str(why) if isinstance(why, NotWarm) else f"{type(why).__name__}: {why}"
                cache.discard(KIND, key)  # so that the result of the new compile is stored
                self._log.cache(False, f"{key.name}: what is stored does not serve: {reason[:500]}")
                return None
        self._log.cache(True)
        self._log.noticed("warm start: restored without Dynamo and AOTAutograd")
        return answer

    def _answer(self, data: bytes, frame: Any) -> ConvertFrameReturn:
        _require_no_hooks(frame.f_locals)
        name = f"{_GRAPH}restored_{next(_restored)}"
        stored = _decoded(data, name)
        if stored.root != _root_mark(frame.f_code):
            raise NotWarm(f"{frame.f_code.co_name} has changed")
        if why := code_identity.changed(stored.traced):
            raise NotWarm(why)
        names = _with_globals(frame.f_globals, stored.guards, stored.used)
        manager, made = guards.made(stored.guards, frame.f_code, frame.f_locals, names)
        prints, ordered = code_identity.Fingerprints(stored.names), stored.guards.key_order
        live = guards.fingerprints(manager, made, frame.f_locals, names, prints, ordered)
        expected = guards.GuardTexts(zlib.decompress(stored.guard_text).decode(), stored.marks)
        if why := guards.difference(expected, live):
            raise NotWarm(why)
        code = stored.code.replace(co_filename=frame.f_code.co_filename, co_name=frame.f_code.co_name)
        run = dynamo.disable(self._serve(stored.graph), reason="compiled by burnish")
        CleanupManager.instance[code] = [CleanupHook.create(names, name, run)]
        output_codes.add(code)
        if stored.breaks:
            note_broken(code)
        orig_code_map[code] = frame.f_code
        entry = GuardedCode(code, manager, CompileId(frame_id=0, frame_compile_id=0), "burnish: restored")
        return wrap_guarded_code(entry)

    @contextlib.contextmanager
    def storing(self, key: CacheKey | None, frame: Any) -> Iterator[Callable[[Any], None]]:
        """Dynamo compiles the frame inside this context; call the yielded function with its result."""
        if key is None:
            yield lambda answer: None
            return
        with _watching() as compiling:
            yield lambda answer: self._store_when_whole(key, frame, answer, compiling)

    def _store_when_whole(self, key: CacheKey, frame: Any, answer: Any, compiling: _Compiling) -> None:
        if answer.guarded_code is None:
            return
        try:
            store = self._prepared(key, frame, answer.guarded_code.code, compiling)
        except Exception as why:  # an error in storing for the next process must not fail the compile
            self._not_stored(why)
            return
        (parts,) = compiling.graphs
        parts.whole = store
        if parts.build is not None:
            store()

    def _prepared(self, key: CacheKey, frame: Any, code: types.CodeType, compiling: _Compiling) -> Callable[[], None]:
        """Everything except the graph, recorded now because the frame's values may change. Raises NotWarm."""
        output: _Output | None = compiling.output
        if output is None or len(compiling.graphs) != 1:
            raise NotWarm(f"it has {len(compiling.graphs)} graphs")
        if compiling.graphs[0].problem:
            raise NotWarm(compiling.graphs[0].problem)
        if isinstance(output.guards, NotWarm):
            raise output.guards
        _require_no_hooks(frame.f_locals)
        graph = next((name for name in code.co_names if name.startswith(_GRAPH)), "")
        known = {graph, output.builtins, *dict(output.guards.imports)}
        others = {name: value for name, value in output.installed.items() if name not in known}
        used = tuple((name, code_identity.place_of(value)) for name, value in sorted(others.items()))
        codes = (frame.f_code, *output.traced)
        marks = code_identity.Fingerprints(code_identity.names_in(codes), codes)
        listed, builtins = output.guards, output.builtins
        live = _fingerprints(output, listed, frame, used, marks)
        traced = code_identity.traced((each for each in output.traced if each is not frame.f_code), marks)
        names = tuple(sorted(marks.names or ()))
        root, own_code = _root_mark(frame.f_code), code.replace(co_filename="", co_name="")
        breaks = is_broken(code)
        parts, options, refuse = compiling.graphs[0], self._options, self._not_stored

        def store() -> None:
            try:
                assert parts.build is not None
                built = parts.build()
            except Exception as why:
                refuse(why)
                return
            later.do(partial(write, built))

        def write(built: StoredGraph) -> None:
            try:
                text = zlib.compress(live.text.encode(), 1)
                whole = StoredFrame(own_code, root, graph, listed, used, text, live.marks, traced, names, built, breaks)
                open_cache(options).put(KIND, key, _renamed(_codec().dumps(whole), builtins, guards.BUILTINS))
            except Exception as why:
                refuse(why)

        return store

    def _not_stored(self, why: Exception) -> None:
        reason = str(why) if isinstance(why, NotWarm) else f"{type(why).__name__}: {why}"
        self._log.noticed(f"frame not stored: {reason.splitlines()[0][:200] if reason else ''}")


def _fingerprints(
    output: _Output,
    listed: guards.GuardList,
    frame: Any,
    used: tuple[tuple[str, code_identity.Place], ...],
    marks: code_identity.Fingerprints,
) -> guards.GuardTexts:
    """Fingerprints of the guards that another process will make from the list. They print like Dynamo's own, except
    guards between sizes, which Dynamo prints in two forms. Those are decoded and rebuilt here as in the other
    process."""
    if not listed.shapes:
        return guards.fingerprints(
            output.manager, output.live, frame.f_locals, frame.f_globals, marks, listed.key_order, output.builtins
        )
    read_back = _loaded(_renamed(_codec().dumps(listed), output.builtins, guards.BUILTINS))
    names = _with_globals(frame.f_globals, read_back, used)
    manager, made = guards.made(read_back, frame.f_code, frame.f_locals, names)
    return guards.fingerprints(manager, made, frame.f_locals, names, marks, read_back.key_order)


def _root_mark(code: types.CodeType) -> str:
    return code_identity.code_mark(code)


def stored_frame(data: bytes) -> StoredFrame:
    """An entry of the cache. Raises NotWarm."""
    try:
        found = _loaded(data)
        if not isinstance(found, StoredFrame):
            raise NotData("not a frame")
    except NotData as error:
        raise NotWarm(f"its entry cannot be read ({error})") from error
    return found


def _decoded(data: bytes, name: str) -> StoredFrame:
    """The decoded frame, with the graph under a name that is unused in this process."""
    found = stored_frame(data)
    names = tuple(name if each == found.graph_name else each for each in found.code.co_names)
    return dataclasses.replace(found, code=found.code.replace(co_names=names), graph_name=name)


def _renamed(data: bytes, before: str, after: str) -> bytes:
    return data.replace(f'"{before}"'.encode(), f'"{after}"'.encode()) if before else data


def _with_globals(
    names: dict[str, Any], listed: guards.GuardList, used: tuple[tuple[str, code_identity.Place], ...]
) -> dict[str, Any]:
    """The frame's globals, with the entries that Dynamo's code and guards need."""
    for alias, place in (*((alias, (module, "", "")) for alias, module in listed.imports), *used):
        found = code_identity.found_at(place)
        if names.setdefault(alias, found) is not found:
            raise NotWarm(f"{alias} is something else here")
    builtins = get_builtins_dict(names)
    if names.setdefault(guards.BUILTINS, builtins) is not builtins:
        raise NotWarm("the builtins are others here")
    return names


def _require_no_hooks(scope: Mapping[str, Any]) -> None:
    """Dynamo traces hooks without guarding them."""
    held: Sequence[Any] = [value for value in scope.values() if isinstance(value, torch.nn.Module)]
    if any(Hooks(module).any() for module in held):
        raise NotWarm("it has hooks")
