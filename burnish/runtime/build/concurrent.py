"""Builds kernels while the compile that requested them continues.

The C compiler is a separate process. The compiling call has other work meanwhile (Dynamo's guards, data for warm
starts). So inside `collecting`, a program is returned before its kernels are built, and the call waits for them at the
end. The program does not run before that.
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
    """Yields a function that waits for all builds begun inside; each handles its own failure."""
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
    """Whether a caller of `collecting` will wait for builds that are left running."""
    return _waits.get() is not None


def wait_last(wait: Wait) -> None:
    waits = _waits.get()
    if waits is None:
        wait()
    else:
        waits.append(wait)


class BuildFuture(Generic[Made]):
    """The result of `make`, which runs in another thread. A call waits for the result, and raises the exception of
    `make`. If no thread can be started, `make` runs at once."""

    def __init__(self, make: Callable[[], Made]) -> None:
        self._made: list[Made] = []
        self._error: BaseException | None = None
        deadline = current_deadline()

        def run() -> None:
            try:
                with deadline.governing():
                    self._made.append(make())
            except BaseException as error:  # raised where the result is awaited
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
