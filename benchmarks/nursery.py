"""Processes that begin with torch imported: forked from one that has done that, and has touched no device.

Figures are taken in fresh processes, and importing takes longer than most of what is measured. What a child imports
beyond that, compiles or caches, no other child sees. All of them end with who started them.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import json
import multiprocessing
import os
import runpy
import signal
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import Any

_IMPORTED = ["torch", "transformers"]


class Child:
    """`python -m MODULE ARGUMENTS`, which writes JSON to `out`. `tell` and `lines` are its input and output."""

    def __init__(self, module: str, arguments: Sequence[str], out: Path, variables: Mapping[str, str]) -> None:
        self.out, self._errors = out, out.with_suffix(".err")
        out.unlink(missing_ok=True)
        context = _nursery()
        given, told = context.Pipe(duplex=False)
        heard, said = context.Pipe(duplex=False)
        ours, self._life = context.Pipe(duplex=False)
        begun = (module, tuple(arguments), dict(variables), given, said, str(self._errors), ours)
        self._process = context.Process(target=_live, args=begun)
        self._process.start()
        for end in (given, said, ours):  # or we would wait for ourselves to say more
            end.close()
        self.tell, self.lines = (os.fdopen(os.dup(end.fileno()), mode) for end, mode in ((told, "w"), (heard, "r")))

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    def has_ended(self) -> bool:
        return self._process.exitcode is not None

    def kill(self) -> None:
        """And all that it started."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        self._process.kill()

    def result(self, limit: float | None = None, hear: Callable[[str], object] = lambda line: None) -> dict[str, Any]:
        """What it wrote, once it has ended; or its `failure`. It is heard out, `limit` seconds at most."""
        late = threading.Event()
        timer = threading.Timer(limit or 0.0, lambda: (late.set(), self.kill()))
        if limit is not None:
            timer.start()
        for line in self.lines:
            hear(line)
        self._process.join()
        timer.cancel()
        if late.is_set():
            return {"failure": f"not done in {limit:.0f} s"}
        if self._process.exitcode or not self.out.exists():
            errors = self._errors.read_text().strip() if self._errors.exists() else ""
            return {"failure": errors[-1500:] or "it was stopped"}
        found: dict[str, Any] = json.loads(self.out.read_text())
        return found


@functools.cache
def _nursery() -> ForkServerContext:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_IMPORTED)
    return context


def _live(
    module: str,
    arguments: tuple[str, ...],
    variables: dict[str, str],
    given: Connection,
    said: Connection,
    errors: str,
    theirs: Connection,
) -> None:
    os.setsid()
    threading.Thread(target=_end_with, args=(theirs,), daemon=True).start()
    os.environ.update(variables)
    with open(errors, "w") as file:
        for descriptor, end in enumerate((given, said, file)):
            os.dup2(end.fileno(), descriptor)
    sys.stdin = os.fdopen(0)
    sys.argv = [module, *arguments]
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    finally:
        atexit._run_exitfuncs()  # which a forked child leaves out: some write down what the next process finds
        sys.stdout.flush()


def _end_with(starter: Connection) -> None:
    """Its end of the pipe closes when it is gone, however it went; the process we are forked from would stay."""
    with contextlib.suppress(EOFError, OSError):
        starter.recv_bytes()
    os.killpg(0, signal.SIGKILL)
