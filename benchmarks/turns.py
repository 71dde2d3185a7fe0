"""Processes that get ready at the same time and are timed one after the other, with nothing else going on.

Most of a GPU benchmark is compiling, on one core of many. Children compile side by side; each says when it is ready and
waits, and when all do, each in turn is told to go and runs alone. What searches by measuring (max-autotune) does so
alone, too, after the others are ready. How long a compile took is no figure then: `benchmarks.compile_time` has those.
"""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from benchmarks.nursery import Child
from burnish.tools.bench.children import empty_caches

READY, _ASKED = "benchmark: ready", "BURNISH_BENCHMARK_TURNS"


def wait_for_turn() -> bool:
    """Called by a child between getting ready and what is timed. Whether it was one of several."""
    if _ASKED not in os.environ:
        return False
    print(READY, flush=True)
    sys.stdin.readline()
    return True


def in_turns(module: str, workload: str, candidates: list[str], more: list[str], limit: int) -> Iterator[Any]:
    """(candidate, what its child found) for each, as `python -m module --child WORKLOAD CANDIDATE OUT ...` writes it.
    `limit`: seconds for all."""
    alone = [c for c in candidates if c.endswith("max-autotune")]
    waves = [[c for c in candidates if c not in alone], *([c] for c in alone)]
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="burnish-bench-"))
        caches_for = stack.enter_context(empty_caches())
        children: dict[str, Child] = {}
        timer = threading.Timer(limit, lambda: [child.kill() for child in children.values()])
        stack.callback(timer.cancel)
        timer.start()
        for wave in waves:
            for candidate in wave:
                out = Path(folder, f"{candidate.replace(':', '-')}.json")
                variables = {**caches_for(candidate), _ASKED: "1"}
                children[candidate] = Child(module, ["--child", workload, candidate, str(out), *more], out, variables)
            for candidate in wave:
                _until_ready(children[candidate])
        for candidate in candidates:
            yield candidate, _go(children[candidate])


def _until_ready(child: Child) -> None:
    """Or until it has ended."""
    for line in child.lines:
        if line.strip() == READY:
            return


def _go(child: Child) -> dict[str, Any]:
    with contextlib.suppress(BrokenPipeError):  # it has ended, and why is in what it left
        child.tell.write("go\n")
        child.tell.flush()
    return child.result()
