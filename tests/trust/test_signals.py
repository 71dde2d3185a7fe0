"""What the program's own handlers of signals raise reaches the program, and leaves nothing half made."""

from __future__ import annotations

import functools
import os
import signal
import subprocess
import sys
import threading
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import burnish
import burnish.pipeline
from burnish.runtime.signals import handlers_raise_through, is_handlers_own, signals_wait
from burnish.trust.gate import Gate
from tests.against_eager import fallback_warnings

X = torch.linspace(-1, 2, 24).reshape(4, 6)


class OutOfTime(Exception):
    pass


def out_of_time(number: int, frame: types.FrameType | None) -> None:
    raise OutOfTime


@pytest.fixture
def limited() -> Iterator[None]:
    before = signal.signal(signal.SIGUSR1, out_of_time)
    yield
    assert signal.getsignal(signal.SIGUSR1) is out_of_time
    signal.signal(signal.SIGUSR1, before)


def scaled(x: torch.Tensor) -> torch.Tensor:
    return (x * 3 + 1).relu().sum(-1)


def signalled_once(monkeypatch: pytest.MonkeyPatch, where: Any, name: str) -> None:
    """The signal comes when this function is called for the first time."""
    ordinary = getattr(where, name)

    def signalled(*args: Any, **kwargs: Any) -> Any:
        monkeypatch.setattr(where, name, ordinary)
        signal.raise_signal(signal.SIGUSR1)
        return ordinary(*args, **kwargs)

    monkeypatch.setattr(where, name, signalled)


@pytest.mark.parametrize(
    ("where", "name"), [(burnish.pipeline, "compile_graph"), (burnish.pipeline, "lower_graph"), (Gate, "_timed")]
)
def test_a_time_limit_in_a_first_call(limited: None, monkeypatch: pytest.MonkeyPatch, where: Any, name: str) -> None:
    compiled = burnish.compile(scaled, verify="always")
    signalled_once(monkeypatch, where, name)
    with pytest.raises(OutOfTime):
        compiled(X)
    result, warnings = fallback_warnings(lambda: compiled(X))
    torch.testing.assert_close(result, scaled(X))
    assert warnings == [] and burnish.stats(compiled).fallbacks == ()
    assert burnish.stats(compiled).graphs["inference"] > 0


def test_a_time_limit_in_a_later_call_rolls_nothing_back(limited: None) -> None:
    compiled = burnish.compile(scaled, gate=False)
    compiled(X)
    (variant,) = compiled.burnish.log.variants()
    with pytest.raises(OutOfTime) as raised:
        signal.raise_signal(signal.SIGUSR1)
    with pytest.raises(OutOfTime):  # as if it had come while the program ran
        variant.recover(raised.value, (X,))
    assert burnish.stats(compiled).fallbacks == () and variant.engine == "burnish"


def test_a_time_limit_in_the_compile_of_a_backward(limited: None, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled, x = burnish.compile(scaled), X.clone().requires_grad_()
    loss = compiled(x).sum()
    signalled_once(monkeypatch, burnish.pipeline, "lower_graph")
    with pytest.raises(OutOfTime):
        loss.backward()
    (expected,) = torch.autograd.grad(scaled(x).sum(), x)
    torch.testing.assert_close(torch.autograd.grad(compiled(x).sum(), x)[0], expected)
    assert burnish.stats(compiled).fallbacks == ()


_INTERRUPTED = """
import importlib.abc, signal, sys, torch, burnish
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it, and pass that on
class Interrupts(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == "torch._dynamo.convert_frame":
            signal.raise_signal(signal.SIGINT)
sys.meta_path.insert(0, Interrupts())
double = lambda x: 2 * x + 1
try:
    burnish.compile(double)(torch.ones(3))  # which torch is loaded for, by whichever thread
    raise SystemExit("nobody was interrupted")
except KeyboardInterrupt:
    pass
assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
compiled = burnish.compile(double)
assert torch.equal(compiled(torch.ones(3)), torch.full((3,), 3.0))
assert not burnish.stats(compiled).fallbacks, burnish.stats(compiled).fallbacks
"""


def test_an_interrupt_while_torch_is_loaded_leaves_it_whole(tmp_path: Path) -> None:
    environment = {**os.environ, "BURNISH_CACHE_DIR": str(tmp_path)}
    command = [sys.executable, "-c", _INTERRUPTED]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr


def test_signals_that_wait_are_handled_afterwards(limited: None) -> None:
    done: list[str] = []

    def work() -> None:
        with signals_wait():
            signal.raise_signal(signal.SIGUSR1)
            done.append("all of it")

    with pytest.raises(OutOfTime):
        work()
    assert done == ["all of it"]


def test_what_handlers_raise_passes_everybody_who_would_catch_it(limited: None) -> None:
    def work() -> None:
        with handlers_raise_through(), handlers_raise_through():
            try:
                signal.raise_signal(signal.SIGUSR1)
            except Exception:
                pytest.fail("it was taken for a failure")

    with pytest.raises(OutOfTime):
        work()
    with pytest.raises(ZeroDivisionError), handlers_raise_through():
        1 // 0  # noqa: B018


def test_other_threads_handle_no_signals(limited: None) -> None:
    def enter() -> None:
        with signals_wait(), handlers_raise_through():
            seen.append(signal.getsignal(signal.SIGUSR1))

    seen: list[Any] = []
    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    assert seen == [out_of_time]


class Limit:
    def end(self, number: int, frame: types.FrameType | None) -> None:
        raise OutOfTime

    def __call__(self, number: int, frame: types.FrameType | None) -> None:
        raise OutOfTime


@pytest.mark.parametrize("handler", [Limit(), Limit().end, functools.partial(out_of_time), out_of_time])
def test_whose_exception_it_is(limited: None, handler: Any) -> None:
    signal.signal(signal.SIGUSR1, handler)
    try:
        with pytest.raises(OutOfTime) as raised:
            signal.raise_signal(signal.SIGUSR1)
        assert is_handlers_own(raised.value) and not is_handlers_own(OutOfTime())
    finally:
        signal.signal(signal.SIGUSR1, out_of_time)
