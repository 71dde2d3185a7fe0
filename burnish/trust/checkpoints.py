"""Activation checkpointing around compiled objects: whoever served a region's forward serves what is run again of it.

torch.utils.checkpoint counts what is saved, and eager and compiled code save different tensors. "Eager" is two things
besides: the user's Python, and a graph's own operations one by one, which save otherwise where the user has custom
functions or checkpoints of his own. So each call of an object within a region is recorded, with the engines that served
its graphs; a call that reached no graph was Python's. What is run again follows the record, call by call and graph by
graph, whatever has been compiled, judged or rolled back in between.
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
    """A part of a model that torch.utils.checkpoint runs again in the backward. `region` is one object for its forward
    and for what is run again, and goes with them. `time` is one for each time that it is run again; None in the
    forward."""

    region: Any
    time: Any = None

    @property
    def is_again(self) -> bool:
        return self.time is not None


def checkpoint_here() -> Checkpoint | None:
    """The innermost one that this thread is in, of those that keep no graph of their own (use_reentrant=False)."""
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

Call = list[Engine]  # what served each graph that a call reached


@dataclass
class _Time:
    """How far a region has been run again."""

    calls: int = 0
    graphs: int = 0  # of the call after those, where graphs come without a call that is known of


@dataclass
class _Record:
    """Of one object's calls within one region."""

    owner: object
    calls: list[Call] = field(default_factory=list)
    times: weakref.WeakKeyDictionary[Any, _Time] = field(default_factory=weakref.WeakKeyDictionary)

    def time(self, here: Checkpoint) -> _Time:
        return self.times.setdefault(here.time, _Time())


_records: dict[int, tuple[weakref.ref[Any], list[_Record]]] = {}  # by the region, as long as it lasts


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
    """Whether graphs of `owner` have had a part in the region's forward."""
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
    """Whether this thread is in a call of `owner` that belongs to this very region, and to none within the call."""
    entered = _thread.entered
    return entered is not None and entered.region is here.region and entered.owner is owner


def region_of_call(owner: object) -> Checkpoint | None:
    """The region that a call of `owner` is to be recorded in, or to follow the record of."""
    here = checkpoint_here()
    return here if here is not None and not is_entered(here, owner) else None


def _without_modes() -> contextlib.AbstractContextManager[Any]:
    return disable_current_modes() if len_torch_dispatch_stack() else contextlib.nullcontext()


class RegionCalls:
    """How calls of an object go that a checkpoint is around: `python` runs the original, `compiled` what was compiled,
    whatever the circumstances."""

    def __init__(self, owner: object, python: Callable[..., Any], compiled: Callable[..., Any]) -> None:
        self._owner = owner
        self._python = python
        self._compiled = compiled

    def run(self, here: Checkpoint, ordinary: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """`ordinary` is what a call does in the forward."""
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
        # No mode was active when graphs served the forward: one that is by now (it counts what the backward does) would
        # keep them away.
        with _within(_Entered(here.region, self._owner, call)), _without_modes():
            return self._compiled(*args, **kwargs)


def recorded_python(target: Callable[..., Any], through: Callable[..., Any], owner: object) -> Callable[..., Any]:
    """`target`, where something has decided for it; what is run again goes `through` what knows the record."""

    def call(*args: Any, **kwargs: Any) -> Any:
        if innermost_hooks(True) is not None and (here := region_of_call(owner)) is not None:
            if here.is_again:
                return through(*args, **kwargs)
            _record(here.region, owner).calls.append([])
        return target(*args, **kwargs)

    return call


# -- graphs -----------------------------------------------------------------------------------------------------------


class RegionGraphs:
    """How a variant's graph is served within a region. `owner` stands for the compiled object that it is a part of;
    `alone` is what an engine does, whoever serves."""

    def __init__(self, owner: object, alone: Callable[[Engine], Boxed]) -> None:
        self._owner = owner
        self._alone = alone
        self._last = threading.local()  # `engine`: what served this thread's last call, if that was chosen in the call

    def serves(self, engine: Engine | None) -> None:
        """Serves this thread's call, whatever was to serve when it began."""
        self._last.engine = engine

    def run(self, here: Checkpoint, boxed: list[Any], serve: Boxed, expected: Callable[[], Engine]) -> Any:
        """`expected` has served where `serve` did not choose. What is run again is never judged."""
        entered = _thread.entered
        if entered is not None and entered.owner is self._owner and entered.region is not here.region:
            return self._alone("eager")(boxed)  # a checkpoint within the call: nobody follows a record there
        if here.is_again:
            return self._alone(self._recorded_engine(here, entered))(boxed)
        if entered is None or entered.owner is not self._owner:  # a sealed object's, which goes straight to its graphs
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
