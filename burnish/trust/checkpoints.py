"""Activation checkpointing around compiled objects: the recomputation of a region uses the engines of its forward.

torch.utils.checkpoint checks the number of saved tensors, and eager and compiled code save different tensors. "Eager"
also means two things: the user's Python, or the graph's operations one by one. These save different tensors where the
user has custom autograd functions or checkpoints of his own. So each call of an object within a region is recorded,
with the engines that served its graphs; a call that reached no graph was served by Python. The recomputation follows
the record, call by call and graph by graph, whatever has been compiled, judged or rolled back in between.
"""

from __future__ import annotations

import contextlib
import threading
import types
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from burnish.runtime.host.checks import Boxed
from burnish.torch_private.dispatch import disable_current_modes, len_torch_dispatch_stack
from burnish.trust.record import Engine
from burnish.trust.saved_tensor_hooks import hooks_are_active, innermost_hooks


@dataclass(frozen=True)
class Checkpoint:
    """A part of a model that torch.utils.checkpoint recomputes in the backward. `region` is the same object in the
    forward and in its recomputations, and lives as long as they do. `time` is a new object for each recomputation; None
    in the forward."""

    region: Any
    time: Any = None

    @property
    def is_again(self) -> bool:
        return self.time is not None


def checkpoint_here() -> Checkpoint | None:
    """The innermost non-reentrant checkpoint (use_reentrant=False) that this thread is in."""
    if not hooks_are_active():
        return None
    hooks = innermost_hooks(True)
    pack = hooks[0] if hooks is not None else None
    pack = getattr(pack, "_torchdynamo_orig_callable", pack)
    if not isinstance(pack, types.FunctionType):
        return None
    held = dict(zip(pack.__code__.co_freevars, pack.__closure__ or (), strict=True))
    if "frame" in held and pack.__qualname__.startswith("_checkpoint_hook"):
        return Checkpoint(held["frame"].cell_contents)
    if "target_frame_ref" in held and pack.__qualname__.startswith("_recomputation_hook"):
        region = held["target_frame_ref"].cell_contents()
        return Checkpoint(region, pack) if region is not None else None
    return None


# -- what is recorded -------------------------------------------------------------------------------------------------

Call = list[Engine]  # the engine of each graph that a call reached


@dataclass
class _Time:
    """How far the recomputation of a region has come."""

    calls: int = 0
    graphs: int = 0  # of the next call, for graphs that run outside a recorded call


@dataclass
class _Record:
    """The record of one object's calls within one region."""

    owner: object
    calls: list[Call] = field(default_factory=list)
    times: weakref.WeakKeyDictionary[Any, _Time] = field(default_factory=weakref.WeakKeyDictionary)

    def time(self, here: Checkpoint) -> _Time:
        return self.times.setdefault(here.time, _Time())


_records: dict[int, tuple[weakref.ref[Any], list[_Record]]] = {}  # keyed by the region, for its lifetime


def _recorded(region: Any, owner: object) -> _Record | None:
    _, records = _records.get(id(region), (None, ()))
    return next((each for each in records if each.owner is owner), None)


def _record(region: Any, owner: object) -> _Record:
    if (known := _recorded(region, owner)) is not None:
        return known
    key = id(region)
    if key not in _records:
        _records[key] = weakref.ref(region, lambda _: _records.pop(key, None)), []
    made = _Record(owner)
    _records[key][1].append(made)
    return made


def regions_are_recorded() -> bool:
    return bool(_records)


def has_graphs(here: Checkpoint, owner: object) -> bool:
    """Whether graphs of `owner` ran in the region's forward."""
    record = _recorded(here.region, owner)
    return record is not None and any(record.calls)


# -- calls of an object -----------------------------------------------------------------------------------------------


@dataclass
class _Entered:
    """The call that this thread is in."""

    region: Any
    owner: object
    call: Call
    graphs: int = 0


class _Thread(threading.local):
    entered: _Entered | None = None


_thread = _Thread()


@contextlib.contextmanager
def _within(entered: _Entered | None) -> Iterator[None]:
    before, _thread.entered = _thread.entered, entered
    try:
        yield
    finally:
        _thread.entered = before


def is_entered(here: Checkpoint, owner: object) -> bool:
    """Whether this thread is in a call of `owner` whose innermost region is this one."""
    entered = _thread.entered
    return entered is not None and entered.region is here.region and entered.owner is owner


def region_of_call(owner: object) -> Checkpoint | None:
    """The region in which a call of `owner` is recorded, or whose record it follows."""
    here = checkpoint_here()
    return here if here is not None and not is_entered(here, owner) else None


def _without_modes() -> contextlib.AbstractContextManager[Any]:
    return disable_current_modes() if len_torch_dispatch_stack() else contextlib.nullcontext()


class RegionCalls:
    """Serves calls of an object inside a checkpointed region: `python` always runs the original, `compiled` always runs
    the compiled code."""

    def __init__(self, owner: object, python: Callable[..., Any], compiled: Callable[..., Any]) -> None:
        self._owner = owner
        self._python = python
        self._compiled = compiled

    def run(self, here: Checkpoint, ordinary: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """`ordinary` serves a call in the forward."""
        record = _record(here.region, self._owner)
        if not here.is_again:
            call: Call = []
            record.calls.append(call)
            with _within(_Entered(here.region, self._owner, call)):
                return ordinary(*args, **kwargs)
        time = record.time(here)
        call = record.calls[time.calls] if time.calls < len(record.calls) else []
        time.calls, time.graphs = time.calls + 1, 0
        if not call:
            with _within(None):
                return self._python(*args, **kwargs)
        # No dispatch mode was active when graphs served the forward. A mode that is active now (one that counts the
        # backward's operations) would prevent the graphs from serving.
        with _within(_Entered(here.region, self._owner, call)), _without_modes():
            return self._compiled(*args, **kwargs)


def recorded_python(target: Callable[..., Any], through: Callable[..., Any], owner: object) -> Callable[..., Any]:
    """`target`, if it was selected for the call; a recomputation goes `through` the function that follows the
    record."""

    def call(*args: Any, **kwargs: Any) -> Any:
        if innermost_hooks(True) is not None and (here := region_of_call(owner)) is not None:
            if here.is_again:
                return through(*args, **kwargs)
            _record(here.region, owner).calls.append([])
        return target(*args, **kwargs)

    return call


# -- graphs -----------------------------------------------------------------------------------------------------------


class RegionGraphs:
    """Serves a variant's graph within a region. `owner` identifies the compiled object of the graph; `alone` runs a
    given engine, regardless of the current one."""

    def __init__(self, owner: object, alone: Callable[[Engine], Boxed]) -> None:
        self._owner = owner
        self._alone = alone
        self._last = threading.local()  # `engine`: that of this thread's last call, if selected in the call

    def serves(self, engine: Engine | None) -> None:
        """Serves this thread's call, whatever engine was current when the call began."""
        self._last.engine = engine

    def run(self, here: Checkpoint, boxed: list[Any], serve: Boxed, expected: Callable[[], Engine]) -> Any:
        """`expected` is the engine if `serve` did not select one. A recomputation is never judged."""
        entered = _thread.entered
        if entered is not None and entered.owner is self._owner and entered.region is not here.region:
            return self._alone("eager")(boxed)  # a checkpoint within the call: it has no record to follow
        if here.is_again:
            return self._alone(self._recorded_engine(here, entered))(boxed)
        if entered is None or entered.owner is not self._owner:  # a sealed object's, which goes directly to its graphs
            _record(here.region, self._owner).calls.append(call := [])
        else:
            call = entered.call
        at = len(call)
        call.append("eager")  # which also serves what fails
        self._last.engine = None
        result = serve(boxed)
        call[at] = self._last.engine or expected()
        return result

    def _recorded_engine(self, here: Checkpoint, entered: _Entered | None) -> Engine:
        if entered is not None and entered.owner is self._owner:
            at = entered.graphs
            entered.graphs += 1
            return entered.call[at] if at < len(entered.call) else "eager"
        if (record := _recorded(here.region, self._owner)) is None:
            return "eager"
        time = record.time(here)
        while time.calls < len(record.calls) and time.graphs >= len(record.calls[time.calls]):
            time.calls, time.graphs = time.calls + 1, 0
        if time.calls >= len(record.calls):
            return "eager"
        time.graphs += 1
        return record.calls[time.calls][time.graphs - 1]
