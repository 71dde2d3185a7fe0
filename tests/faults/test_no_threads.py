"""A system that lets the process start no more threads (a container's pids limit): calls go on, with a reason."""

from __future__ import annotations

import subprocess
import sys
import threading
from typing import Any

import pytest
import torch

import burnish
from burnish.capture.background import queue as compile_queue
from burnish.capture.entry.library_preload import LibraryPreload
from burnish.runtime.build import shared_library
from burnish.runtime.build.concurrent import BuildFuture
from burnish.runtime.cache.deferred_writes import Later
from burnish.runtime.host import extension as host_extension
from burnish.trust import sampling
from tests.against_eager import fallback_warnings

X = torch.linspace(-1, 2, 24).reshape(4, 6)


def scaled(x: torch.Tensor) -> torch.Tensor:
    return (x * 3 + 1).relu().sum(-1)


@pytest.fixture
def no_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    shared_library.forget_loaded()
    monkeypatch.setattr(host_extension, "_found", [])
    monkeypatch.setattr(compile_queue, "_workers", {})
    monkeypatch.setattr(sampling, "comparer", sampling.Comparer())
    monkeypatch.setattr(threading.Thread, "start", refuse)


@pytest.mark.parametrize(
    "settings", [{}, {"background": True}, {"budget": 60.0}, {"sample": 1.0}], ids=lambda each: "".join(each)
)
def test_every_call_returns_eagers_result(no_threads: None, settings: dict[str, Any]) -> None:
    said: list[str] = []
    compiled, more = fallback_warnings(lambda: burnish.compile(scaled, **settings))
    said += more
    for _ in range(6):
        result, more = fallback_warnings(lambda: compiled(X))
        said += more
        torch.testing.assert_close(result, scaled(X))
    assert compiled.burnish.wait(60)
    # None where an earlier test of this process has left what a thread would have been started for.
    assert len(said) <= 1 and all("runs in eager" in warning and "thread" in warning for warning in said)


def test_a_thread_that_could_not_be_had_is_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(compile_queue, "has_started", lambda thread: False)
        worker = compile_queue.Worker()
        assert not worker.ring()
    over = threading.Event()
    assert worker.ring(over.set) and over.wait(60)
    worker.stop(60)


def test_what_threads_would_have_done_is_done_or_left(no_threads: None, monkeypatch: pytest.MonkeyPatch) -> None:
    assert BuildFuture(lambda: 3)() == 3
    later, done = Later(), list[int]()
    later.do(lambda: done.append(1))
    assert done == []
    later.finish()
    assert done == [1]
    LibraryPreload([], []).end()


@pytest.mark.parametrize("settings", [{"background": True}, {"budget": 3600.0}], ids=lambda each: "".join(each))
def test_a_call_of_a_process_that_ends_waits_for_nobody(
    monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any]
) -> None:
    monkeypatch.setattr(compile_queue, "_workers", {})
    compiled = burnish.compile(scaled, **settings)
    compile_queue._at_exit()  # atexit's functions, and the user's, are called after it
    result, (warning,) = fallback_warnings(lambda: (compiled(X), compiled.burnish.wait(60))[0])
    torch.testing.assert_close(result, scaled(X))
    assert "the process ends" in warning


_LAST_WORDS = """
import os, torch, burnish
compiled, x = burnish.compile(lambda x: x.sin() + 1), torch.ones(5)
class Holder:
    def __init__(self):
        self.call, self.x, self.write = compiled, x, os.write
    def __del__(self):
        self.write(1, b"%.4f" % self.call(self.x).sum().item())
holder = Holder()
"""


def test_a_first_call_while_the_interpreter_goes() -> None:
    """Nothing can be imported any more, and Dynamo would."""
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", _LAST_WORDS], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, f"{5 * (torch.ones(()).sin() + 1):.4f}")
