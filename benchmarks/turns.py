"""Processes that get ready at the same time and are timed one after the other, with nothing else going on.

Most of a GPU benchmark is compiling, on one core of many. Children compile side by side; each says when it is ready and
waits, and when all do, each in turn is told to go and runs alone. What searches by measuring (max-autotune) does so
alone, too, after the others are ready. How long a compile took is no figure then: `benchmarks.compile_time` has those.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from burnish.bench.children import empty_caches

READY, _ASKED = "benchmark: ready", "BURNISH_BENCHMARK_TURNS"


def wait_for_turn() -> bool:
    """Called by a child between getting ready and what is timed. Whether it was one of several."""
    if _ASKED not in os.environ:
        return False
    print(READY, flush=True)
    sys.stdin.readline()
    return True


class Child:
    """A process that gets ready as soon as it is made."""

    def __init__(self, command: list[str], out: Path, caches: dict[str, str]) -> None:
        self.out, self.errors = out, out.with_suffix(".err")
        with self.errors.open("w") as errors:
            self.process = subprocess.Popen(
                command, env={**os.environ, **caches, _ASKED: "1"}, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                stderr=errors, text=True,
            )  # fmt: skip

    def until_ready(self) -> None:
        """Or until it has ended."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.strip() == READY:
                return

    def go(self) -> dict[str, Any]:
        if self.process.poll() is None:
            assert self.process.stdin is not None
            self.process.stdin.write("go\n")
            self.process.stdin.flush()
        self.process.communicate()
        if self.process.returncode or not self.out.exists():
            return {"failure": self.errors.read_text().strip()[-1500:] or "it was stopped"}
        found: dict[str, Any] = json.loads(self.out.read_text())
        return found


def in_turns(module: str, workload: str, candidates: list[str], more: list[str], limit: int) -> Iterator[Any]:
    """(candidate, what its child found) for each, as `python -m module --child WORKLOAD CANDIDATE OUT ...` writes it.
    `limit`: seconds for all."""
    alone = [c for c in candidates if c.endswith("max-autotune")]
    waves = [[c for c in candidates if c not in alone], *([c] for c in alone)]
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="burnish-bench-"))
        caches_for = stack.enter_context(empty_caches())
        children: dict[str, Child] = {}
        timer = threading.Timer(limit, lambda: [child.process.kill() for child in children.values()])
        stack.callback(timer.cancel)
        timer.start()
        for wave in waves:
            for candidate in wave:
                out = Path(folder, f"{candidate.replace(':', '-')}.json")
                command = [sys.executable, "-m", module, "--child", workload, candidate, str(out), *more]
                children[candidate] = Child(command, out, caches_for(candidate))
            for candidate in wave:
                children[candidate].until_ready()
        for candidate in candidates:
            yield candidate, children[candidate].go()
