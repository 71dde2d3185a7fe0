"""A compiler that waits until a test says so: the only way to see what calls do meanwhile without guessing at times."""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Callable
from typing import Any

import pytest

import burnish
import burnish.pipeline

LONG = 120.0  # seconds after which a test that waits has failed


class Held:
    """While `held`, each graph's compile stops before it begins; `runs` counts calls of compiled programs."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.reached = threading.Event()  # a compile has come so far
        self.go = threading.Event()
        self.compiles = 0
        self._runs: list[None] = []  # adding 1 to a number is not one step for many threads; appending is
        self._compile = burnish.pipeline.compile_graph
        monkeypatch.setattr(burnish.pipeline, "compile_graph", self._held)

    @property
    def runs(self) -> int:
        return len(self._runs)

    def _held(self, *args: Any, **options: Any) -> Callable[[list[Any]], Any]:
        self.compiles += 1
        self.reached.set()
        assert self.go.wait(LONG), "nobody let the compile go on"
        program = self._compile(*args, **options)

        def run(inputs: list[Any]) -> Any:
            self._runs.append(None)
            return program(inputs)

        return run


def in_background(model: Any, *, dynamic: bool | None = None, fullgraph: bool = False, **options: Any) -> Any:
    return burnish.compile(model, dynamic=dynamic, fullgraph=fullgraph, options={"background": True, **options})


def states(compiled: Any) -> list[str]:
    return [job.state for job in burnish.stats(compiled).jobs]


def has_ended(pid: int) -> bool:
    """Whether a process, that was told to, ends."""
    try:
        process = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([process], [], [], LONG)[0])
    finally:
        os.close(process)
