"""Processes that run cases, one at a time: what kills one, or holds it, is a find like any other."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import signal
import tempfile
import traceback
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from tests.fuzz.case import Case, loads
from tests.fuzz.check import Report, eager_survives, run_calls, run_prelude, settled
from tests.fuzz.oracle import Find

_LOST = ("device-side assert", "illegal memory access", "misaligned address", "unspecified launch failure")
CASES = 150  # of one process: what compilers keep is let go with it


def _serve(pipe: Connection, device: str) -> None:
    settled()
    _silence()
    while True:
        try:
            phase, text, folder = pipe.recv()
        except EOFError:  # whoever started us has gone
            return
        try:
            report = _done(phase, loads(text), Path(folder), device)
        except Exception as error:  # the fuzzer's own mistake, or an interpreter's that is on its way out
            kind = "device" if device == "cuda" and is_lost(error) else "fuzzer"
            report = Report([Find(kind, 0, phase, traceback.format_exc())])
        pipe.send(report)
        if lost(report):
            return


def is_lost(error: Exception) -> bool:
    """Whether a kernel failed on the device: every later use of it in this process fails alike."""
    return isinstance(error, RuntimeError) and any(text in str(error) for text in _LOST)


def lost(report: Report) -> bool:
    """Whether a case took the device from its process: what it says of itself is then no matter."""
    told = [f for f in report.finds if f.kind == "device" or any(text in f.detail for text in _LOST)]
    return bool(told)


def _ended(report: Report) -> bool:
    """Whether a case took the device, or its life, from its process."""
    return lost(report) or any(f.kind == "crash" for f in report.finds)


def _done(phase: str, case: Case, folder: Path, device: str) -> Report:
    if phase == "triton":
        from tests.fuzz.interpreted import run_interpreted

        return run_interpreted(case)
    if phase.startswith("stage "):
        from tests.fuzz.stages import blamed

        return Report(fallbacks=[blamed(case, int(phase.split()[1]))])
    if phase == "eager":
        survives = eager_survives(case, folder, device)
        return Report([] if survives else [Find("device", 0, phase, "eager itself loses the device")])
    if phase == "prelude":
        run_prelude(case, folder, device)
        return Report()
    return run_calls(case, folder, device)


def _silence() -> None:
    """Compilers and libraries print; so do programs."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)


class Worker:
    """A process of our own, started when it is needed and again when it has died."""

    def __init__(self, device: str = "cpu", limit: float = 120.0) -> None:
        self.device, self.limit = device, limit
        self.process: Any = None
        self.pipe: Any = None
        self.cases = 0

    def run(self, phase: str, case: Case, folder: Path) -> Report:
        if self.process is None or self.cases >= CASES:
            self._start()
        self.cases += 1
        self.pipe.send((phase, case.dumps(), str(folder)))
        if not self.pipe.poll(self.limit):
            self.stop()
            return Report([Find("hang", 0, phase, f"no answer within {self.limit:.0f} s")])
        try:
            report: Report = self.pipe.recv()
            if lost(report):
                self.stop()
            return report
        except (EOFError, ConnectionResetError):
            return self._died(phase)

    def _died(self, phase: str) -> Report:
        self.process.join(10)
        code = self.process.exitcode
        self.stop()
        name = signal.Signals(-code).name if code is not None and code < 0 else f"exit status {code}"
        return Report([Find("crash", 0, phase, name)])

    def _start(self) -> None:
        self.stop()
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(theirs, self.device))
        self.process.start()
        theirs.close()
        self.cases = 0

    def stop(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.join(10)
            self.pipe.close()
        self.process = self.pipe = None


class Bench:
    """Runs whole cases: the prelude in one process, the calls in another, over a cache of their own."""

    def __init__(self, device: str = "cpu", limit: float = 120.0, phase: str = "calls") -> None:
        self.worker, self.elder, self.phase = Worker(device, limit), Worker(device, limit), phase

    def run(self, case: Case) -> Report:
        folder = Path(tempfile.mkdtemp(prefix="burnish-fuzz-"))
        try:
            if case.prelude and self.phase == "calls":
                report = self.elder.run("prelude", case, folder)
                if report.finds:
                    return report
            report = self.worker.run(self.phase, case, folder)
            if _ended(report) and _ended(self.worker.run("eager", case, folder)):
                return Report()  # there is nothing to compare with
            return report
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def stage(self, case: Case, call: int) -> str:
        """Which form of the compiler's is wrong; see stages.py."""
        report = self.worker.run(f"stage {call}", case, Path())
        return report.fallbacks[0] if report.fallbacks else "unknown"

    def stop(self) -> None:
        self.worker.stop()
        self.elder.stop()
