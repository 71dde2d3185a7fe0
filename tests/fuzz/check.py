"""One case, start to end, in this process."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import torch

import burnish
from tests.fuzz.case import Case
from tests.fuzz.execute import Side, run_side
from tests.fuzz.oracle import Find, judged


@dataclass
class Report:
    finds: list[Find] = field(default_factory=list)
    fallbacks: list[str] = field(default_factory=list)  # what the compiler could not do, and left to eager
    calls: int = 0


@contextmanager
def cache_at(folder: Path) -> Iterator[None]:
    held = os.environ.get("BURNISH_CACHE_DIR")
    os.environ["BURNISH_CACHE_DIR"] = str(folder)
    try:
        yield
    finally:
        if held is None:
            del os.environ["BURNISH_CACHE_DIR"]
        else:
            os.environ["BURNISH_CACHE_DIR"] = held


def run_prelude(case: Case, folder: Path, device: str = "cpu") -> None:
    """What an earlier process did with the same cache. What came of it is not looked at."""
    burnish.reset()
    with cache_at(folder / "cache"):
        run_side(case, case.prelude, Side(ours=True, device=device), folder)


def run_calls(case: Case, folder: Path, device: str = "cpu") -> Report:
    burnish.reset()
    with cache_at(folder / "cache"):
        ours, fallbacks = run_side(case, case.calls, Side(ours=True, device=device), folder)
    finds = judged(case, ours, folder, device)
    if device == "cuda":
        torch.cuda.synchronize()  # what an operation asserts on the device is heard of here
    return Report(finds, fallbacks, len(case.calls))


def eager_survives(case: Case, folder: Path, device: str) -> bool:
    """Whether eager's calls, perturbed ones too, leave the device usable: an index out of range ends a process's use of
    a GPU. Where they end the process, there is no answer."""
    try:
        for noise in range(4):
            run_side(case, case.calls, Side(noise=noise, device=device), folder)
        if device == "cuda":
            torch.cuda.synchronize()
    except RuntimeError:
        return False
    return True


def check(case: Case, device: str = "cpu") -> Report:
    """All of it here: a second process is a compiler that has forgotten what it compiled."""
    with tempfile.TemporaryDirectory(prefix="burnish-fuzz-") as name:
        folder = Path(name)
        if case.prelude:
            run_prelude(case, folder, device)
        return run_calls(case, folder, device)


def settled() -> None:
    """Threads and warnings as a run wants them: one thread, so that eager's sums have one order."""
    torch.set_num_threads(1)
