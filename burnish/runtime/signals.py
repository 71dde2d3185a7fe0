"""Signal handlers that run while burnish is working. An exception from a handler (a time limit, Ctrl-C) belongs to the
program and is meant for the code around the call. It is not a failure of a compile, and must not leave partial
state."""

from __future__ import annotations

import contextlib
import functools
import signal
import threading
import types
from collections.abc import Callable, Iterator
from typing import Any

Handler = Callable[[int, types.FrameType | None], Any]


class HandlerRaised(BaseException):
    """Carries a handler's exception past code that would mistake it for a failure; therefore not an Exception."""

    def __init__(self, error: Exception) -> None:
        self.error = error


@contextlib.contextmanager
def _handled_by(instead: Callable[[int, types.FrameType | None, Handler], None]) -> Iterator[None]:
    """The program's handlers are passed to `instead`; outside the main thread, where none is called, nothing is."""
    handlers: dict[int, Handler] = {}
    inside = threading.current_thread() is threading.main_thread()

    def handle(number: int, frame: types.FrameType | None) -> None:
        instead(number, frame, handlers[number]) if inside else handlers[number](number, frame)

    try:
        for number in signal.valid_signals() if inside else ():
            if callable(handler := signal.getsignal(number)):
                handlers[number] = handler
                signal.signal(number, handle)
        yield
    finally:
        inside = False
        for handled, handler in handlers.items():
            if signal.getsignal(handled) is handle:  # and nobody has put another there meanwhile
                signal.signal(handled, handler)


@contextlib.contextmanager
def signals_wait() -> Iterator[None]:
    """Signals are delayed until this context ends. An exception in the middle of an import would leave modules
    partially initialised until the process ends."""
    came: list[int] = []
    with _handled_by(lambda number, frame, handler: came.append(number)):
        yield
    for number in came:
        signal.raise_signal(number)


_passing: list[None] = []  # one element while handlers' exceptions are carried: only the main thread has any


@contextlib.contextmanager
def handlers_raise_through() -> Iterator[None]:
    """A handler's exception inside this context is raised by it, past any `except Exception`."""
    if _passing or threading.current_thread() is not threading.main_thread():
        yield
        return

    def carry(number: int, frame: types.FrameType | None, handler: Handler) -> None:
        try:
            handler(number, frame)
        except Exception as error:
            raise HandlerRaised(error) from None

    _passing.append(None)
    try:
        with _handled_by(carry):
            yield
    except HandlerRaised as raised:
        raise raised.error from None
    finally:
        _passing.clear()


def is_handlers_own(error: BaseException) -> bool:
    """Whether one of the program's handlers of signals raised it."""
    codes = {_code(handler) for number in signal.valid_signals() if callable(handler := signal.getsignal(number))}
    at = error.__traceback__
    while at is not None:
        if at.tb_frame.f_code in codes:
            return True
        at = at.tb_next
    return False


def _code(handler: Any) -> types.CodeType | None:
    while isinstance(handler, functools.partial):
        handler = handler.func
    function = handler if hasattr(handler, "__code__") else getattr(handler, "__func__", type(handler).__call__)
    return getattr(function, "__code__", None)
