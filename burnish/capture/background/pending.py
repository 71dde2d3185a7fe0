"""Calls of an object whose background compile is still pending: they run in eager without entering Dynamo.

Entering Dynamo and copying a frame takes longer than a small model's whole call. So the very first call only stores its
arguments, wakes the compiling thread, and runs in eager. Calls of a kind that is being compiled run in eager, without
Dynamo, until the compile is over.
"""

from __future__ import annotations

import threading
import types
from collections.abc import Callable, Hashable
from typing import Any

from burnish.capture.background.queue import Job
from burnish.capture.background.snapshot import FrameSnapshot, can_wait, entered
from burnish.capture.entry.bypass import kind_of
from burnish.runtime.host.thread_state import CannotSnapshot, ThreadState


class FirstCall:
    """The stored arguments and state of the very first call."""

    __slots__ = ("args", "function", "is_ordinary", "kwargs", "state")

    def __init__(
        self,
        function: types.FunctionType,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        state: ThreadState,
        is_ordinary: Callable[[], bool],
    ) -> None:
        self.function = function
        self.args = args
        self.kwargs = kwargs
        self.state = state
        self.is_ordinary = is_ordinary

    def frame(self) -> FrameSnapshot | None:
        """The frame that the call would have entered; None if a later call must go through Dynamo to request the
        compile."""
        if not (can_wait(self.args) and can_wait(self.kwargs) and self.is_ordinary()):
            return None
        try:
            return entered(self.function, self.args, self.kwargs)
        except TypeError:  # the caller's mistake
            return None


_UNCALLED, _FIRST = "no call yet", "the first call"


class PendingCalls:
    """`waiting` maps kinds of calls to the jobs that they wait for; it is empty most of the time."""

    def __init__(self) -> None:
        self.waiting: dict[Hashable, Any] = {_UNCALLED: None}
        # by thread: the job that Dynamo's callback has assigned to the thread's current call
        self.asked: dict[int, Job] = {}
        self.code: types.CodeType | None = None  # the code of the frame that a call of the object enters
        self._admitting = threading.Lock()

    def entrance(
        self,
        target: Callable[..., Any],
        through: Callable[..., Any],
        function: types.FunctionType,
        is_ordinary: Callable[[], bool],
        in_flight: list[None],
        ring: Callable[[], None],
    ) -> Callable[..., Any]:
        """Calls `through`, or `target` while there is no compiled code. `function` is the frame that `through` enters.
        Calls in flight are counted, so that the compiling thread can pause for them."""
        enter, leave, thread = in_flight.append, in_flight.pop, threading.get_ident
        waiting, asked = self.waiting, self.asked
        self.code = function.__code__

        def first_call(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            try:
                state = ThreadState.here()
            except CannotSnapshot:
                return through(*args, **kwargs)
            result = target(*args, **kwargs)
            waiting[_FIRST] = FirstCall(function, args, kwargs, state, is_ordinary)
            waiting.pop(_UNCALLED, None)
            ring()  # after the call: Python runs one thread at a time
            return result

        def call(*args: Any, **kwargs: Any) -> Any:
            enter(None)
            try:
                if waiting:
                    if _UNCALLED in waiting:
                        return first_call(args, kwargs)
                    if _FIRST in waiting:
                        return target(*args, **kwargs)
                    kind = kind_of(args, kwargs)
                    if (job := waiting.get(kind)) is not None:
                        if not job.done.is_set():
                            return target(*args, **kwargs)
                        waiting.pop(kind, None)
                try:
                    result = through(*args, **kwargs)
                except BaseException:
                    asked.pop(thread(), None)  # so that the next call does not wait for the collection
                    raise
                if asked and (job := asked.pop(thread(), None)) is not None:
                    waiting[kind_of(args, kwargs)] = job
                return result
            finally:
                leave()

        return call

    # -- for those who make jobs -------------------------------------------------------------------------------

    def first_call(self) -> FirstCall | None:
        """Returned once, to the caller that will call `admitted`."""
        with self._admitting:
            first = self.waiting.get(_FIRST)
            if not isinstance(first, FirstCall):
                return None
            self.waiting[_FIRST] = "being looked at"
            return first

    def admitted(self, first: FirstCall, job: Job | None) -> None:
        if job is not None:
            self.waiting[kind_of(first.args, first.kwargs, first.state.grad)] = job
        self.waiting.pop(_FIRST, None)

    def is_over(self, job: Job) -> None:
        """From now on calls that waited for the job go through Dynamo."""
        for kind, awaited in list(self.waiting.items()):
            if awaited is job:
                self.waiting.pop(kind, None)

    def clear(self) -> None:
        self.waiting.clear()
