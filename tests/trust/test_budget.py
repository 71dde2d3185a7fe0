"""`budget=`: a call waits no longer than that for its compile, which ends then, with all its processes."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest
import torch

import burnish
from burnish import pipeline
from burnish.errors import BadOptionValue
from burnish.observe.log import CompileLog
from burnish.options import Options
from burnish.runtime.build.compiler import run
from burnish.runtime.deadline import UNLIMITED, Cancelled, Deadline, current_deadline
from tests.against_eager import fallback_warnings
from tests.capture.entry.test_threads import together
from tests.trust.held import LONG, Held, has_ended, in_background, states


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Iterator[Held]:
    compiler = Held(monkeypatch)
    yield compiler
    compiler.go.set()


def scaled(x: torch.Tensor) -> torch.Tensor:
    return (x * 3 + 1).relu().sum(-1)


def within(seconds: float, **options: Any) -> Any:
    return burnish.compile(scaled, options={"budget": seconds, **options})


def test_in_time_the_first_call_is_compiled(held: Held) -> None:
    held.go.set()
    compiled = within(LONG)
    x = torch.randn(4, 8)
    torch.testing.assert_close(compiled(x), scaled(x))
    assert held.runs > 0
    assert states(compiled) == ["ready"]
    assert burnish.stats(compiled).compiles == 1
    assert burnish.stats(compiled).fallbacks == ()


def test_out_of_time_eager_serves_and_the_stage_is_named(held: Held) -> None:
    compiled = within(0.01)
    x = torch.randn(4, 8)
    result, warned = fallback_warnings(lambda: compiled(x))  # though the compile never goes on by itself
    torch.testing.assert_close(result, scaled(x))
    (job,) = burnish.stats(compiled).jobs
    assert job.state == "cancelled"
    assert "0.01 s" in job.reason and "at stage '" in job.reason and "eager" in job.reason
    assert len(warned) == 1 and "budget=" in warned[0]
    held.go.set()
    for _ in range(4):
        torch.testing.assert_close(compiled(x), scaled(x))
    assert len(burnish.stats(compiled).fallbacks) <= 2, "not every call spends the budget again"
    assert held.runs == 0


def test_a_cancelled_compile_stops_at_the_next_stage(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock of the deadline is the test's: it strikes between two stages."""
    now = [0.0]
    deadline = Deadline(5.0, clock=lambda: now[0])
    begun: list[str] = []
    check = deadline.check

    def checked(stage: str | None = None) -> None:
        begun.append(str(stage))
        if stage == "schedule":
            now[0] = 6.0
        check(stage)

    monkeypatch.setattr(deadline, "check", checked)
    gm = torch.fx.symbolic_trace(lambda x: x)
    monkeypatch.setattr(pipeline, "import_graph", lambda gm, **named: MagicMock())
    monkeypatch.setattr(pipeline, "run_passes", lambda *args: None)
    log = CompileLog()
    with deadline.governing(), pytest.raises(Cancelled, match="5 s at stage 'schedule'"):
        pipeline.compile_graph(gm, [], kind="inference", options=Options(), log=log)
    assert begun == ["import", "passes", "schedule"]


def test_many_threads_wait_for_one_compile(held: Held) -> None:
    compiled = within(LONG)
    x = torch.randn(4, 8)
    threading.Thread(target=lambda: held.reached.wait(LONG) and held.go.set()).start()
    together(8, lambda _: torch.testing.assert_close(compiled(x), scaled(x)))
    assert held.compiles == 1
    assert states(compiled) == ["ready"]


def test_with_background_no_call_waits_for_the_budget(held: Held) -> None:
    compiled = in_background(scaled, budget=0.01)
    x = torch.randn(4, 8)

    def calls() -> None:
        torch.testing.assert_close(compiled(x), scaled(x))
        held.go.set()
        assert compiled.burnish.wait(LONG)
        assert states(compiled) == ["cancelled"]
        torch.testing.assert_close(compiled(x), scaled(x))
        assert compiled.burnish.wait(LONG)

    fallback_warnings(calls)
    assert burnish.stats(compiled).fallbacks[0].stage == "budget"


@pytest.mark.parametrize("value", [0, -1, True, "30", float("inf")])
def test_a_budget_is_a_number_of_seconds(value: object) -> None:
    with pytest.raises(BadOptionValue, match="seconds"):
        burnish.compile(scaled, options={"budget": value})


# -- processes -----------------------------------------------------------------------------------------------------


def sleeper(tmp_path: Path) -> tuple[list[str], Path]:
    """A command that starts a child of its own, says its number, and ends with it, which is never."""
    pid = tmp_path / "pid"
    os.mkfifo(pid)
    return ["/bin/sh", "-c", f"sleep 1000 & echo $! > {pid}; wait"], pid


def test_a_process_ends_at_the_deadline(tmp_path: Path) -> None:
    command, pid = sleeper(tmp_path)
    numbers: list[int] = []
    reader = threading.Thread(target=lambda: numbers.append(int(pid.read_text())))
    reader.start()
    now = [0.0]
    deadline = Deadline(0.5, clock=lambda: now[0])
    # The limit is what is left when the command starts; after it, the clock says that it is over.
    threading.Thread(target=lambda: (reader.join(), now.__setitem__(0, 1.0))).start()
    with pytest.raises(Cancelled, match="budget"):
        run(command, deadline=deadline)
    reader.join()
    assert has_ended(numbers[0])


def test_a_process_ends_when_its_compile_is_cancelled(tmp_path: Path) -> None:
    command, pid = sleeper(tmp_path)
    numbers: list[int] = []
    deadline = Deadline()

    def cancel() -> None:
        numbers.append(int(pid.read_text()))  # it runs
        deadline.cancel("no longer wanted")

    threading.Thread(target=cancel).start()
    with pytest.raises(Cancelled, match="no longer wanted"):
        run(command, deadline=deadline)
    assert has_ended(numbers[0])


def test_nothing_starts_once_cancelled() -> None:
    deadline = Deadline()
    deadline.cancel("too late")
    with pytest.raises(Cancelled, match="too late"):
        run(["/bin/sh", "-c", "exit 0"], deadline=deadline)


def test_a_deadline_governs_its_own_thread_only() -> None:
    deadline = Deadline(1.0)
    seen: list[Deadline] = []
    with deadline.governing():
        assert current_deadline() is deadline
        thread = threading.Thread(target=lambda: seen.append(current_deadline()))
        thread.start()
        thread.join()
    assert seen == [UNLIMITED]
    assert current_deadline() is UNLIMITED


def test_a_budget_that_is_over_before_its_turn_is_told_as_well(held: Held) -> None:
    first, second = within(LONG), within(0.01)
    x = torch.randn(4, 8)
    waiting = threading.Thread(target=lambda: first(x))
    waiting.start()
    assert held.reached.wait(LONG)
    _, warned = fallback_warnings(lambda: second(x))  # while the only compiling thread stands still
    assert len(warned) == 1 and "waiting for other compiles" in warned[0]
    held.go.set()
    waiting.join()
    assert states(first) == ["ready"]
    assert [entry.stage for entry in burnish.stats(second).fallbacks] == ["budget"]
