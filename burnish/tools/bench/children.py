"""Child processes for measurements: each has its own caches, is always ended, and writes its results when
interrupted."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from burnish.errors import BurnishError, TargetUnusable, TrialFailed, in_one_line
from burnish.tools.bench.candidates import Candidate
from burnish.tools.bench.memory import Sampler, Timeline
from burnish.tools.bench.plain import from_plain, to_plain

LIMIT_SECONDS = 900.0
_INTERRUPTED = 130
GRACE_SECONDS = 20.0  # for a child to write down what it has, after Ctrl-C
_PROGRESS = "burnish-progress:"  # the lines of a child's output that are ours; a model may print what it likes
# torch is imported first and burnish's own import is timed: a user of burnish pays for it, a user of Inductor does not.
_CHILD = """
import sys, time, torch
begin = time.perf_counter()
import burnish
took = time.perf_counter() - begin
from burnish.tools.bench.children import child_main
child_main(sys.argv[1], took)
"""


@dataclass(frozen=True)
class Job:
    """What a child is asked to do; travels as JSON."""

    task: Literal["alone", "race", "checklist"]
    target: str
    candidates: tuple[Candidate, ...]
    caches: dict[str, dict[str, str]]  # candidate -> environment variables
    seconds: float
    threads: int | None = None
    device: str | None = None
    dtype: str | None = None
    calls: int = 30  # of the checklist's lines that count something


@dataclass(frozen=True)
class Outcome:
    """`answer` is None where the child left nothing; `failure` is how it ended if not well."""

    answer: Any
    timeline: Timeline
    failure: TrialFailed | None = None
    interrupted: bool = False


@contextlib.contextmanager
def empty_caches() -> Iterator[Callable[[str], dict[str, str]]]:
    """A function from a candidate's name to environment variables that give every compiler an empty cache of its own;
    all deleted afterwards."""
    with tempfile.TemporaryDirectory(prefix="burnish-bench-", ignore_cleanup_errors=True) as root:

        def caches_for(name: str) -> dict[str, str]:
            own = Path(root, name.replace(":", "-"))
            return {
                "BURNISH_CACHE_DIR": str(own / "burnish"),
                "TORCHINDUCTOR_CACHE_DIR": str(own / "inductor"),
                "TRITON_CACHE_DIR": str(own / "triton"),
            }

        yield caches_for


def run_child(
    job: Job,
    on_progress: Callable[[float, str], None] = lambda part, doing: None,
    limit_seconds: float = LIMIT_SECONDS,
) -> Outcome:
    """Do `job` in a fresh process. Ctrl-C is passed on to it, and what it had measured by then comes back."""
    with tempfile.TemporaryDirectory(prefix="burnish-bench-") as folder:
        answer, log = Path(folder, "answer.json"), Path(folder, "stderr.txt")
        text = json.dumps({"job": to_plain(job), "answer": str(answer)})
        environment = {**os.environ, **job.caches.get(job.candidates[0].name, {})}
        with log.open("w") as stderr:
            process = subprocess.Popen(
                [sys.executable, "-c", _CHILD, text],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
                env=environment,
                start_new_session=True,  # a Ctrl-C in the terminal is ours to pass on, and its own children go with it
            )
        sampler = Sampler(process.pid)
        limit = threading.Timer(limit_seconds, _kill, (process,))
        limit.start()
        interrupted = False
        try:
            _listen(process, sampler, on_progress)
        except KeyboardInterrupt:
            interrupted = True
            _interrupt(process)
        finally:
            timed_out = not limit.is_alive()
            limit.cancel()
            _kill(process)  # what it started, if anything is left
            status = process.wait()
            timeline = sampler.stop()
        found = json.loads(answer.read_text(encoding="utf-8")) if answer.exists() else None
        if isinstance(found, dict) and "unusable" in found:
            raise TargetUnusable(found["unusable"])
        failure = None
        interrupted = interrupted or status == _INTERRUPTED
        if status != 0 and not interrupted:
            said = f"it did not end within {limit_seconds:.0f} s and was stopped" if timed_out else _end_of(log)
            failure = TrialFailed(job.target, status, said)
        return Outcome(found, timeline, failure, interrupted)


def _listen(process: subprocess.Popen[str], sampler: Sampler, on_progress: Callable[[float, str], None]) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith(_PROGRESS):
            part, phase, doing = line[len(_PROGRESS) :].strip().split(" ", 2)
            sampler.phase(phase)
            on_progress(float(part), doing)
    process.wait()


def _interrupt(process: subprocess.Popen[str]) -> None:
    """Ask the child to end with what it has; a second Ctrl-C asks no more."""
    with contextlib.suppress(ProcessLookupError):
        process.send_signal(signal.SIGINT)
    with contextlib.suppress(subprocess.TimeoutExpired, KeyboardInterrupt):
        process.communicate(timeout=GRACE_SECONDS)


def _kill(process: subprocess.Popen[str]) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)


def _end_of(log: Path) -> str:
    return log.read_text(errors="replace")[-2000:].strip()


# -- in the child -------------------------------------------------------------------------------------------------


def child_main(text: str, import_seconds: float) -> None:
    _die_with_parent()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job starts with it ignored
    begin = time.perf_counter()
    import torch

    from burnish.tools.bench.worker import Racing, checked, measure_alone
    from burnish.tools.targets import load_target, placed, running

    asked = json.loads(text)
    job = from_plain(Job, asked["job"])
    answer = Path(asked["answer"])
    say(0.0, "load", f"{job.target}: building the model")
    if job.threads:
        torch.set_num_threads(job.threads)
    try:
        target = load_target(job.target)
        if job.device or job.dtype:
            with running(job.target, f"moving it to {job.device or job.dtype}"):
                target = placed(target, job.device, getattr(torch, job.dtype) if job.dtype else None)
    except BurnishError as error:
        _save(answer, {"unusable": str(error)})
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(_INTERRUPTED)
    load_seconds = time.perf_counter() - begin
    try:
        if job.task == "alone":
            _save(answer, measure_alone(target, job.candidates[0], say, load_seconds, import_seconds))
        elif job.task == "checklist":
            _save(answer, checked(target, say, job.calls))
        else:
            Racing(target, job.candidates, job.caches, job.seconds, say).run(lambda raced: _save(answer, raced))
    except KeyboardInterrupt:
        sys.exit(_INTERRUPTED)
    except (Exception, SystemExit) as error:
        print(in_one_line(error), file=sys.stderr)
        sys.exit(1)


def say(part: float, phase: str, doing: str) -> None:
    print(_PROGRESS, f"{part:.3f}", phase, doing, flush=True)


def _save(path: Path, found: Any) -> None:
    """Whole or not at all: the reader may come at any moment."""
    beside = path.with_suffix(".new")
    beside.write_text(json.dumps(to_plain(found), allow_nan=False))
    beside.replace(path)


def _die_with_parent() -> None:
    """A parent that is killed cannot stop us: let Linux do it."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)
