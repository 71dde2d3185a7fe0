"""A sealed entrance: a call's signature selects the compiled code, and nothing compiles any more.

The first call with a signature evaluates Dynamo's guards to find the compiled code that fits. Later calls check only
the signature. If no code fits, eager serves all calls with that signature, and they are counted.

The last few signatures are compared in C, argument by argument (`burnish.runtime.host.extension`); an unknown call, and
every call without a C compiler, makes a key in Python and looks it up.
"""

from __future__ import annotations

import threading
import types
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, Protocol

import torch
from torch.autograd import forward_ad

from burnish.assumptions import AssumptionUnmet
from burnish.capture.entry.definition import Attribute, Definition, definition_of
from burnish.capture.entry.frame_values import locals_of
from burnish.capture.entry.hooks import without_new_hooks
from burnish.capture.entry.known_calls import KnownCalls
from burnish.errors import SealedError
from burnish.observe.log import CompileLog
from burnish.options import Options
from burnish.runtime.host.extension import Host, host_library
from burnish.runtime.host.function_modes import users_modes_are_active
from burnish.runtime.host.signature import Key, KeyMaker, key_maker
from burnish.torch_private.dispatch import (
    is_fx_symbolic_tracing,
    is_tracing,
    len_torch_dispatch_stack,
    len_torch_function_stack,
)
from burnish.torch_private.dynamo import GlobalStateGuard, set_eval_frame
from burnish.trust.checkpoints import checkpoint_here, has_graphs

_REMEMBERED = 1024  # signatures: sizes that never recur must not fill the memory


class Unguarded(Protocol):
    """Compiled code as a function of its frame's arguments. `first` makes the first call."""

    call: Callable[..., Any]
    held: Callable[[], bool] | None  # whether the tensors that it keeps still belong to the module

    @property
    def is_whole(self) -> bool:
        """Whether the whole frame is compiled."""

    def first(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any: ...


class Guarded(Protocol):
    """Compiled code of the frame with its guards: an entry of Dynamo's cache, or a variant of a pack."""

    @property
    def key(self) -> Hashable:
        """Equal for the same code."""

    def fits(self, values: Mapping[str, Any]) -> bool:
        """Whether its guards pass for these values of the frame's variables."""

    def unguarded(self) -> Unguarded: ...

    def as_compiled(self, held: Callable[[], bool] | None) -> Callable[[], bool]:
        """The check that replaces the guards in later calls: first `held`, then that methods are unchanged."""


Entries = Callable[[], Sequence[Guarded]]
# Checks that the state of the process is the same; checks that the kept tensors still belong to the module and that
# methods are unchanged; the function to call.
Route = tuple[Callable[[], bool], Callable[[], bool], Callable[..., Any]]


def _nothing_to_hold() -> bool:
    return True


class Seal:
    """`call` takes the place of an entrance's own. `frame` is the function whose code Dynamo has compiled."""

    def __init__(
        self,
        target: Callable[..., Any],
        frame: types.FunctionType,
        entries: Entries,
        stance: Attribute,
        options: Options,
        log: CompileLog,
        lost: Callable[[tuple[Any, ...], dict[str, Any]], bool] | None = None,
        strict: bool = False,
    ) -> None:
        """`stance` is Dynamo's, while calls may run compiled code. `lost` tells whether eager was faster at a call's
        kind. `strict`: a call without compiled code raises SealedError."""
        self._lost = lost
        self._strict = strict
        self._target = target
        self._frame = frame
        self._entries = entries
        self._log = log
        self._lock = threading.Lock()
        self._codes: dict[Hashable, Unguarded] = {}
        self._routes: dict[Key, Route] = {}
        self._makers: dict[Any, KeyMaker] = {}
        definition = definition_of(target)
        self.call = self._make_call(definition, stance)
        host: Host | None = host_library(options, log)
        for variant in log.variants():
            variant.without_guards(host)
        self._known: KnownCalls | None = None
        if host is not None:
            self._known = KnownCalls(host, definition, stance, self.call, self._refused)
            self.call = self._known.call

    def _make_call(self, definition: Definition | None, stance: Attribute) -> Callable[..., Any]:
        # Every name that a call reads is a local of this function, because a call has a budget of a few us.
        makers, routes, target, first = self._makers, self._routes, self._target, self._first
        introduce, refused = self._introduce, self._refused
        set_callback, dispatch_modes = set_eval_frame, len_torch_dispatch_stack
        stances, stance_name, ordinary = stance
        fx_tracing, jit_tracing, duals = is_fx_symbolic_tracing, is_tracing, forward_ad
        function_modes = len_torch_function_stack
        changed = definition.changed if definition is not None else lambda: False

        def call(*args: Any, **kwargs: Any) -> Any:
            if dispatch_modes() or fx_tracing() or jit_tracing() or changed():
                return in_eager(*args, **kwargs)
            if getattr(stances, stance_name) is not ordinary:
                return in_eager(*args, **kwargs)
            if duals._current_level >= 0:  # compiled code would lose the tangents
                return in_eager(*args, **kwargs)
            if function_modes() and users_modes_are_active():
                return in_eager(*args, **kwargs)
            return routed(*args, **kwargs)

        def routed(*args: Any, **kwargs: Any) -> Any:
            prior = set_callback(None)  # an outer compiler must not use this cache entry
            try:
                pattern = (len(args), *kwargs) if kwargs else len(args)
                maker = makers.get(pattern)
                if maker is None:
                    maker = makers[pattern] = key_maker(target, len(args), tuple(kwargs))
                key = maker(args, kwargs)
                route = routes.get(key)
                if route is None or not route[0]() or not route[1]():
                    return first(key, args, kwargs)
                introduce(key, route, args, kwargs)
                return route[2](*args, **kwargs)
            except AssumptionUnmet as why:
                return refused(*args, why=why, **kwargs)
            finally:
                set_callback(prior)

        def in_eager(*args: Any, **kwargs: Any) -> Any:
            here = checkpoint_here()
            finishes = here is not None and here.is_again and has_graphs(here, self._log)
            return routed(*args, **kwargs) if finishes else target(*args, **kwargs)

        return call

    def _first(self, key: Key, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The first call with a signature, or the first in another state of the process (threads, determinism)."""
        if self._lost is not None and self._lost(args, kwargs):
            self._remember(key, self._target)
            return self._target(*args, **kwargs)
        entry = self._fitting(args, kwargs)
        if entry is None:
            self._log.emit("unsealed_call", reason=str(key[4:]))
            self._remember(key, self._eager)
            return self._eager(*args, **kwargs)
        code = self._unguarded(entry)
        if not code.is_whole:
            self._log.noticed("sealed with guards: a graph break leaves parts that look for their own code")
            self._remember(key, self._guarded)
            return self._guarded(*args, **kwargs)
        result = code.first(args, kwargs)
        held = code.held
        if not isinstance(self._target, torch.nn.Module):  # whose definition looks at its hooks
            held = without_new_hooks(held, self._frame)
        self._remember(key, code.call, entry.as_compiled(held))
        return result

    def _unguarded(self, entry: Guarded) -> Unguarded:
        with self._lock:
            known = self._codes.get(entry.key)
            if known is None or (known.held is not None and not known.held()):  # a parameter was replaced
                known = self._codes[entry.key] = entry.unguarded()
            return known

    def _fitting(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Guarded | None:
        """The compiled code whose guards pass."""
        values = locals_of(self._frame, args, kwargs)
        if values is None:
            return None  # eager raises its own exception
        return next((entry for entry in self._entries() if entry.fits(values)), None)

    def _remember(self, key: Key, run: Callable[..., Any], held: Callable[[], bool] = _nothing_to_hold) -> None:
        with self._lock:
            if len(self._routes) >= _REMEMBERED:
                self._routes.clear()
            if self._known is not None:
                self._known.forget(key)
            self._routes[key] = GlobalStateGuard().check, held, run

    def _introduce(self, key: Key, route: Route, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Register this call for the comparison in C. Calls that eager serves are counted in Python; the overhead does
        not matter there."""
        if self._known is not None and route[2] != self._eager:
            with self._lock:
                self._known.add(key, route, args, kwargs)

    def _eager(self, *args: Any, **kwargs: Any) -> Any:
        self._log.noticed("sealed call in eager: not compiled for its inputs")
        if self._strict:
            raise SealedError(self._log.name, "nothing was compiled for inputs like these")
        return self._target(*args, **kwargs)

    def _refused(self, *args: Any, why: AssumptionUnmet | None = None, **kwargs: Any) -> Any:
        """A program's assumptions do not hold for the arguments' tensors, or for the module's current tensors. Nothing
        has run."""
        reason = str(why) if why is not None else "an assumption does not hold"
        self._log.noticed(f"sealed call in eager: {reason}")
        if self._strict:
            raise SealedError(self._log.name, reason)
        return self._target(*args, **kwargs)

    def _guarded(self, *args: Any, **kwargs: Any) -> Any:
        prior = set_eval_frame(False)  # run compiled code if its guards pass, without compiling
        try:
            return self._frame(*args, **kwargs)
        finally:
            set_eval_frame(prior)
