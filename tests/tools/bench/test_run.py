"""The whole bench with children: rows that fail, Ctrl-C, mistakes in the target, and an object of this process."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from burnish.errors import TargetUnusable, UnknownTarget, UsageError
from burnish.tools.bench import bench
from burnish.tools.bench.candidates import Candidate
from burnish.tools.bench.children import Job, Outcome, empty_caches, run_child
from burnish.tools.bench.memory import Timeline
from burnish.tools.bench.result import BenchResult
from burnish.tools.bench.run import _Bench
from burnish.tools.bench.statistics import latency_of, speedup_of
from burnish.tools.bench.worker import Alone, Lane, Raced
from burnish.tools.cli import main
from tests.tools.bench.results import QUIET, rounds_of


class FakePlace:
    """Answers at once, as children would. `interrupt` and `crash` name the task at which something happens."""

    isolated = True
    name = "fake"
    device_type = None

    def __init__(self, interrupt: str = "", crash: str = "", device: str = "cpu") -> None:
        self.asked: list[str] = []
        self._interrupt = interrupt
        self._crash = crash
        self._device = device

    def alone(self, candidate: Candidate, caches: dict[str, str], hear: Any) -> Outcome:
        self.asked.append(candidate.name)
        if candidate.name == self._interrupt:
            return Outcome(None, Timeline(), None, True)
        if candidate.name == self._crash:
            return Outcome(Alone(failure="RuntimeError: no such kernel"), Timeline())
        return Outcome(Alone(device=self._device, cold_seconds=4.0 if candidate.compiles else None), Timeline())

    def race(self, candidates: tuple[Candidate, ...], caches: dict[str, dict[str, str]], hear: Any) -> Outcome:
        self.asked.append("race:" + ",".join(candidate.name for candidate in candidates))
        eager = rounds_of(0.1)
        lanes = {"eager": Lane(latency=latency_of(eager))}
        for candidate in candidates[1:]:
            rounds = rounds_of(0.05, seed=4)
            lanes[candidate.name] = Lane(
                latency=latency_of(rounds), speedup_over={"eager": speedup_of(eager, rounds)}, warm_seconds=1.0
            )
        return Outcome(Raced(lanes, QUIET, interrupted=self._interrupt == "race"), Timeline())

    def checklist(self, candidate: Candidate, caches: dict[str, str], hear: Any, calls: int) -> Outcome:
        raise AssertionError("nobody asked for it")


def run_fake(place: FakePlace, names: str | None = "eager,inductor,burnish") -> BenchResult:
    chosen = None if names is None else tuple(Candidate(name) for name in names.split(","))
    return _Bench(place, chosen, 1.0, None, False, True, False, lambda progress: None).run()  # type: ignore[arg-type]


def test_each_candidate_runs_alone_and_then_all_race() -> None:
    place = FakePlace()
    result = run_fake(place)
    assert place.asked == ["eager", "inductor", "burnish", "race:eager,inductor,burnish"]
    assert result.incomplete is None and result.verdict.kind == "compile"
    cost = result["burnish"].compile
    assert cost is not None and (cost.cold_seconds, cost.warm_seconds) == (4.0, 1.0)
    assert result["burnish"].break_even_calls == pytest.approx(80, rel=0.05)


def test_a_gpu_gets_its_modes_without_being_asked() -> None:
    result = run_fake(FakePlace(device="cuda"), names=None)
    assert [row.name for row in result.candidates][3:] == ["inductor:reduce-overhead", "burnish:reduce-overhead"]


def test_a_failing_candidate_is_a_row_with_its_reason_and_does_not_race() -> None:
    place = FakePlace(crash="inductor")
    result = run_fake(place)
    assert place.asked[-1] == "race:eager,burnish"
    assert result["inductor"].failure == "RuntimeError: no such kernel" and result["inductor"].latency is None
    assert result.verdict.winner == "burnish"
    assert "Inductor failed: RuntimeError: no such kernel" in result.verdict.reasons


def test_ctrl_c_while_compiling_keeps_the_compiles_before_it() -> None:
    place = FakePlace(interrupt="burnish")
    result = run_fake(place)
    assert place.asked == ["eager", "inductor", "burnish"], "nothing is begun after it"
    assert result.incomplete == "stopped by Ctrl-C while burnish was compiling"
    cost = result["inductor"].compile
    assert cost is not None and cost.cold_seconds == 4.0
    assert result.verdict.kind == "unknown"


def test_ctrl_c_in_the_race_keeps_its_rounds() -> None:
    result = run_fake(FakePlace(interrupt="race"))
    assert result.incomplete == "stopped by Ctrl-C during the race"
    assert result["burnish"].latency is not None and result.verdict.kind == "compile"
    assert result.verdict.reasons[0].startswith("Incomplete")


# -- with real processes ------------------------------------------------------------------------------------------

TARGETS = """
import os, signal, sys, time, torch

def build():
    return torch.nn.Linear(4, 4), (torch.ones(2, 4),)

def data_bound():
    def batches():
        while True:
            time.sleep(0.002)
            yield torch.ones(2, 4)
    return {"model": torch.nn.Linear(4, 4), "data": batches}

def interrupted():
    # Ctrl-C for whoever waits for this process, once the race has begun: calls are counted in the model.
    model, count = torch.nn.Linear(4, 4), [0]
    def press(module, inputs):
        count[0] += 1
        if count[0] == 40_000:
            os.kill(os.getppid(), signal.SIGTERM)  # which counts as one
    model.register_forward_pre_hook(press)
    return model, (torch.ones(2, 4),)

def dies():
    os._exit(7)
"""


@pytest.fixture
def targets(tmp_path: Path) -> Path:
    path = tmp_path / "targets.py"
    path.write_text(TARGETS)
    return path


def burnish_command(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "burnish", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, "COLUMNS": "100"})


@pytest.mark.slow
def test_the_command_measures_and_writes_what_it_is_asked_to(targets: Path, tmp_path: Path) -> None:
    html, numbers = tmp_path / "report.html", tmp_path / "result.json"
    done = burnish_command(
        "bench", f"{targets}:data_bound", "--candidates", "burnish", "--seconds", "0.3", "--no-checklist",
        "--html", str(html), "--json", str(numbers),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "\x1b" not in done.stdout and "all take turns …" in done.stdout
    assert f"Report: {html}" in " ".join(done.stdout.split())
    result = BenchResult.from_json(numbers.read_text())
    assert [row.name for row in result.candidates] == ["eager", "burnish"] and result.batch_size == 2
    ours = result["burnish"]
    assert ours.failure is None and ours.latency is not None and ours.speedup is not None
    assert ours.compile is not None and ours.compile.isolated and (ours.compile.cold_seconds or 0) > 0
    assert ours.compile.warm_seconds is not None and ours.compile.stages
    assert ours.memory is not None and (ours.memory.compile_peak or 0) > (ours.memory.before or 0) > 0
    assert ours.warm_up is not None and ours.profile is not None and ours.energy is not None
    assert ours.error is not None and result.eager.error is not None
    assert ours.error <= max(4 * result.eager.error, 1e-6)
    assert ours.timeline is not None and "compile" in [name for _, name in ours.timeline.phases]
    assert result.share is not None and result.share.data > result.share.model
    assert result.verdict.kind == "look elsewhere" and "Speed up the data pipeline first" in result.verdict.headline
    assert result.verdict.headline.split(":")[0] in html.read_text()


def test_a_candidate_that_cannot_compile_is_a_row() -> None:
    def rectify(x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x)

    result = bench(rectify, torch.ones(2, 4), candidates="relu_compile_error_TESTING_ONLY", seconds=0.05)
    (failed,) = (row for row in result.candidates if row.candidate.compiles)
    assert failed.failure is not None and "relu_compile_error_TESTING_ONLY" in failed.failure
    assert result.eager.latency is not None, "eager is measured all the same"
    assert result.verdict.headline == "Leave it in eager: no candidate could compile it."


@pytest.mark.slow
def test_ctrl_c_prints_what_there_is(targets: Path, tmp_path: Path) -> None:
    numbers = tmp_path / "partial.json"
    done = burnish_command(
        "bench", f"{targets}:interrupted", "--candidates", "eager", "--seconds", "600", "--json", str(numbers)
    )
    assert done.returncode == 130, done.stdout + done.stderr
    assert "(incomplete)" in done.stdout and "Traceback" not in done.stderr
    result = BenchResult.from_json(numbers.read_text())
    assert result.incomplete == "stopped by Ctrl-C during the race"
    assert result.eager.latency is not None and result.eager.latency.rounds > 0
    assert not re.findall(r"bench\.children", _running_children_of(done)), "no child is left behind"


def _running_children_of(done: subprocess.CompletedProcess[str]) -> str:
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            found.append(entry.read_bytes().replace(b"\0", b" ").decode(errors="replace"))
        except OSError:
            continue
    return "\n".join(line for line in found if str(done.args[4]) in line)


@pytest.mark.slow
def test_mistakes_in_a_target_are_told_in_one_line(targets: Path) -> None:
    with pytest.raises(TargetUnusable, match=r"has no 'biuld'. Did you mean 'build'\?"):
        bench(f"{targets}:biuld", candidates="eager")
    done = burnish_command("bench", f"{targets}:dies", "--candidates", "eager")
    assert done.returncode == 2 and "its process ended with status 7" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_name_that_does_not_exist_is_known_at_once() -> None:
    with pytest.raises(UnknownTarget, match="Did you mean 'bert-base'"):
        bench("bert-bas")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--seconds", "0"], "--seconds=0.0 is not valid"),
        (["--dtype", "float17"], "--dtype='float17' is not valid"),
        (["--html", "/no/such/folder/x.html"], "a file in a folder that exists"),
        (["--candidates", "burnihs"], "Did you mean 'burnish'?"),
    ],
)
def test_mistakes_are_told_before_minutes_of_work(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "mlp@tiny", *arguments]) == 2
    assert message in capsys.readouterr().err


def test_a_child_that_takes_too_long_is_stopped(targets: Path) -> None:
    with empty_caches() as caches_for:
        job = Job("race", f"{targets}:build", (Candidate("eager"),), {"eager": caches_for("eager")}, 3000.0)
        outcome = run_child(job, limit_seconds=0.5)
    assert outcome.failure is not None and "did not end within 0 s" in outcome.failure.said
    assert outcome.failure.status == -signal.SIGKILL


@pytest.mark.slow
def test_a_candidate_whose_process_is_killed_is_a_row(
    targets: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As by a system that is out of memory: here by the C compiler that it starts."""
    cc = tmp_path / "cc"
    cc.write_text('#!/bin/sh\ncase "$*" in *--version*) echo "fakecc 1.0"; exit 0;; esac\nkill -9 $PPID\n')
    cc.chmod(0o755)
    monkeypatch.setenv("BURNISH_CC", str(cc))
    result = bench(f"{targets}:build", candidates="burnish", seconds=0.05, eager_alone=False)
    assert result["burnish"].failure is not None and f"{-signal.SIGKILL}" in result["burnish"].failure
    assert result.eager.latency is not None and "no candidate could compile it" in result.verdict.headline


def test_an_object_of_this_process_is_measured_in_it() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU())
    seen: list[float] = []
    caches = {name: os.environ.get(name) for name in ("BURNISH_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR")}
    result = bench(
        model, torch.ones(4, 8), candidates="burnish", seconds=0.2, on_progress=lambda now: seen.append(now.fraction)
    )
    assert result.target == "Sequential" and result.batch_size == 4
    cost = result["burnish"].compile
    assert cost is not None and not cost.isolated and cost.cold_seconds is not None
    assert any("Compiled inside the calling process" in note for note in result.notes)
    assert seen == sorted(seen) and seen[-1] <= 1.0
    assert {name: os.environ.get(name) for name in caches} == caches, "the caller's environment is as it was"
    assert json.loads(result.to_json())["machine"]["torch"] == torch.__version__


def test_usage_errors_are_burnishs() -> None:
    assert issubclass(TargetUnusable, UsageError)
