"""Kernels that are built while the compile that asked for them goes on.

The C compiler is a process of its own. The call that compiles has other things to do meanwhile (Dynamo's guards, what
the next process will want to know), so while it `collects`, a program is handed over before its kernels are there, and
they are waited for last of all. Nothing runs the program before that.
"""

from __future__ import annotations

import contextlib
import contextvars
import threading
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

from burnish.runtime.deadline import current_deadline
from burnish.runtime.process import has_started

Wait = Callable[[], None]
Made = TypeVar("Made")

_waits: contextvars.ContextVar[list[Wait] | None] = contextvars.ContextVar("burnish_waits", default=None)


@contextlib.contextmanager
def collecting() -> Iterator[Wait]:
    """Gives what waits for all that was begun inside; each handles its own failure."""
    waits: list[Wait] = []
    token = _waits.set(waits)

    def wait_for_all() -> None:
        while waits:
            waits.pop(0)()

    try:
        yield wait_for_all
    finally:
        _waits.reset(token)


def can_wait() -> bool:
    """Whether somebody will."""
    return _waits.get() is not None


def wait_last(wait: Wait) -> None:
    waits = _waits.get()
    if waits is None:
        wait()
    else:
        waits.append(wait)


class Coming(Generic[Made]):
    """What another thread is making, in the name of this one; call it to have it. Raises what making it raised. Where
    no other thread can be had, it is made at once."""

    def __init__(self, make: Callable[[], Made]) -> None:
        self._made: list[Made] = []
        self._error: BaseException | None = None
        deadline = current_deadline()

        def run() -> None:
            try:
                with deadline.governing():
                    self._made.append(make())
            except BaseException as error:  # for whoever waits
                self._error = error

        thread = threading.Thread(target=run, name="burnish-build", daemon=True)
        self._thread = thread if has_started(thread) else None
        if self._thread is None:
            run()

    def __call__(self) -> Made:
        if self._thread is not None:
            self._thread.join()
        if self._error is not None:
            raise self._error
        return self._made[0]
