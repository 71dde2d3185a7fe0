"""`background=True`: no call waits, code changes hands between calls, and whatever goes wrong leaves eager."""

from __future__ import annotations

import copy
import gc
import os
import signal
import subprocess
import sys
import textwrap
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional as F

import burnish
from burnish.capture.background import queue as compile_queue
from burnish.capture.background.frames import DeferredFrames
from burnish.capture.background.queue import (
    LONGEST_REST_SECONDS,
    REST_SECONDS,
    TURN_SECONDS,
    GoodManners,
    Pace,
    Worker,
    worker_for,
)
from burnish.capture.background.snapshot import FrameSnapshot, signature
from burnish.errors import BadOptionValue, GraphBreakError
from burnish.runtime.host.thread_state import CannotSnapshot
from burnish.torch_private.shield import beside_calls
from burnish.trust.background_trial import try_in_background
from burnish.trust.faults import WrongBy
from burnish.trust.gate import GraphFacts
from tests.against_eager import fallback_warnings, loss_of
from tests.capture.entry.test_threads import together
from tests.trust.held import LONG, Held, has_ended, in_background, states


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Iterator[Held]:
    compiler = Held(monkeypatch)
    yield compiler
    compiler.go.set()


def scaled(x: torch.Tensor) -> torch.Tensor:
    return (x * 3 + 1).relu().sum(-1)


# -- calls go on ---------------------------------------------------------------------------------------------------


def test_no_call_waits_and_a_later_one_changes_over(held: Held) -> None:
    compiled = in_background(scaled)
    x = torch.randn(4, 8)
    torch.testing.assert_close(compiled(x), scaled(x))
    assert held.reached.wait(LONG)
    for _ in range(3):  # while the compile stands still
        torch.testing.assert_close(compiled(x), scaled(x))
    assert states(compiled) == ["compiling"]
    assert not compiled.burnish.wait(0)
    assert held.runs == 0
    held.go.set()
    assert compiled.burnish.wait(LONG)
    assert states(compiled) == ["ready"]
    for _ in range(3):
        torch.testing.assert_close(compiled(x), scaled(x))
    assert held.runs >= 3
    assert (held.compiles, burnish.stats(compiled).compiles) == (1, 1)
    assert burnish.stats(compiled).fallbacks == ()


def test_calls_that_could_only_wait_do_not_ask(held: Held, monkeypatch: pytest.MonkeyPatch) -> None:
    """To ask costs more than a small model's call. The first one leaves its arguments behind; the others know."""
    asked: list[str] = []
    ask = DeferredFrames.__call__

    def asking(self: DeferredFrames, frame: Any, *rest: Any) -> Any:
        asked.append(frame.f_code.co_name)
        return ask(self, frame, *rest)

    monkeypatch.setattr(DeferredFrames, "__call__", asking)
    compiled = in_background(scaled, dynamic=False)
    x, other = torch.randn(4, 8), torch.randn(5, 8)
    for _ in range(3):
        torch.testing.assert_close(compiled(x), scaled(x))
    assert held.reached.wait(LONG)
    compiled(x)
    assert asked == []
    for _ in range(3):
        torch.testing.assert_close(compiled(other), scaled(other))
    assert len(asked) == 1, "the first of another size"
    held.go.set()
    assert compiled.burnish.wait(LONG)
    for _ in range(2):
        torch.testing.assert_close(compiled(x), scaled(x))
        torch.testing.assert_close(compiled(other), scaled(other))
    assert sum(name.startswith("scaled") for name in asked) == 3, f"once for each, to change over: {asked}"
    assert held.compiles == 2 and held.runs >= 4


def test_a_first_call_whose_arguments_change_leaves_it_to_the_next(held: Held) -> None:
    """They are looked at after the call: what it has done to a list is not what the next call will find."""
    held.go.set()

    def appends(x: torch.Tensor, seen: list[torch.Tensor]) -> torch.Tensor:
        seen.append(x + 1)
        return seen[-1] * len(seen)

    compiled = in_background(appends)
    x = torch.randn(3)
    for _ in range(3):
        seen: list[torch.Tensor] = []
        torch.testing.assert_close(compiled(x, seen), (x + 1) * 1)
        assert len(seen) == 1
        assert compiled.burnish.wait(LONG)
    assert held.runs > 0 and held.compiles == 1


def test_python_is_as_it_was_when_the_work_is_done(held: Held) -> None:
    worker_for(urgent=False).stop(LONG)  # it may still be at what an earlier test left it
    compile_queue._workers.pop(False)
    interval, thresholds = sys.getswitchinterval(), gc.get_threshold()
    compiled = in_background(scaled)
    compiled(torch.randn(4, 8))
    assert held.reached.wait(LONG)
    assert sys.getswitchinterval() < interval, "whoever wants its turn gets it sooner"
    assert gc.get_threshold()[:2] == thresholds[:2] and gc.get_threshold()[2] > thresholds[2], "no full collections"
    held.go.set()
    assert compiled.burnish.wait(LONG)
    worker_for(urgent=False).stop(LONG)  # the only way to know that it has nothing left to do
    compile_queue._workers.pop(False)
    assert (sys.getswitchinterval(), gc.get_threshold()) == (interval, thresholds)


def test_a_thread_that_looks_out_for_a_first_call_finds_it_and_can_be_stopped() -> None:
    """So that the call need not wake it, which takes longer than much of a small model's call."""
    worker, answered = Worker(urgent=False), threading.Event()
    worker.expect()
    worker.ring(answered.set)
    assert answered.wait(LONG)
    worker.expect()
    worker.stop(LONG)
    assert not worker._thread.is_alive()


def test_what_somebody_sets_meanwhile_stays() -> None:
    interval, thresholds = sys.getswitchinterval(), gc.get_threshold()
    manners = GoodManners()
    try:
        manners.assume()
        sys.setswitchinterval(0.02)
        gc.set_threshold(500, 5, 5)
        manners.drop()
        assert sys.getswitchinterval() == pytest.approx(0.02) and gc.get_threshold() == (500, 5, 5)
    finally:
        sys.setswitchinterval(interval)
        gc.set_threshold(*thresholds)


def test_new_sizes_come_the_same_way(held: Held) -> None:
    held.go.set()
    compiled = in_background(scaled, dynamic=False)
    for rows in (2, 3, 4):
        x = torch.randn(rows, 5)
        before = held.runs
        torch.testing.assert_close(compiled(x), scaled(x))
        assert held.runs == before, "the first call with a size is eager's"
        assert compiled.burnish.wait(LONG)
        torch.testing.assert_close(compiled(x), scaled(x))
        assert held.runs > before
    assert burnish.stats(compiled).compiles == 3


def test_a_size_that_dynamic_code_covers_is_not_compiled_again(held: Held) -> None:
    held.go.set()
    compiled = in_background(scaled)
    for rows in (2, 3, 4, 5, 6):
        x = torch.randn(rows, 5)
        for _ in range(2):
            torch.testing.assert_close(compiled(x), scaled(x))
            assert compiled.burnish.wait(LONG)
    assert burnish.stats(compiled).compiles == 2


def broken(x: torch.Tensor) -> torch.Tensor:
    y = x.exp() + 1
    torch._dynamo.graph_break()
    return (y * y).sum(-1)


def test_after_a_graph_break_the_rest_follows(held: Held) -> None:
    held.go.set()
    compiled = in_background(broken)
    x = torch.randn(3, 4)
    for _ in range(4):
        torch.testing.assert_close(compiled(x), broken(x))
        assert compiled.burnish.wait(LONG)
    before = held.runs
    torch.testing.assert_close(compiled(x), broken(x))
    assert held.runs - before == 2, "both parts are compiled"
    assert burnish.stats(compiled).compiles == 2


def test_a_graph_break_under_fullgraph_is_raised_by_a_later_call() -> None:
    compiled = in_background(broken, fullgraph=True)
    x = torch.randn(3, 4)
    torch.testing.assert_close(compiled(x), broken(x))
    assert compiled.burnish.wait(LONG)
    with pytest.raises(GraphBreakError, match="test_background"):
        compiled(x)


def test_two_objects_at_once(held: Held) -> None:
    first, second = in_background(scaled), in_background(lambda x: (x.sin() * 2).cumsum(-1))
    x = torch.randn(4, 8)
    first(x), second(x)
    assert held.reached.wait(LONG)
    assert sorted(states(first) + states(second)) == ["compiling", "pending"]
    held.go.set()
    assert first.burnish.wait(LONG)
    assert second.burnish.wait(LONG)
    torch.testing.assert_close(first(x), scaled(x))
    torch.testing.assert_close(second(x), (x.sin() * 2).cumsum(-1))
    assert (burnish.stats(first).compiles, burnish.stats(second).compiles) == (1, 1)


def test_sixteen_threads_and_six_sizes(held: Held) -> None:
    held.go.set()
    compiled = in_background(scaled, dynamic=False, gate=False)
    inputs = [torch.randn(rows, 7) for rows in range(2, 8)]

    def work(number: int) -> None:
        for turn in range(30):
            x = inputs[(turn + number) % len(inputs)]
            torch.testing.assert_close(compiled(x), scaled(x))

    together(16, work)
    for x in inputs:  # those that no call had asked for yet, if any
        compiled(x)
        assert compiled.burnish.wait(LONG)
        compiled(x)
    before = held.runs
    together(16, work)
    stats = burnish.stats(compiled)
    assert stats.compiles == 6
    assert [job.state for job in stats.jobs] == ["ready"] * len(stats.jobs)
    assert stats.fallbacks == ()
    # Each pair of a thread and a size makes five calls. Dynamo itself may miss an entry once, while others look, too:
    # that call is eager's (`FrameCompiler.excuse`).
    assert 16 * 30 - 5 < held.runs - before <= 16 * 30, "nobody is stuck in eager"


# -- what changes while it compiles --------------------------------------------------------------------------------


class Mutating(nn.Module):
    """A buffer that is written, running statistics, and a Python counter that the result depends on."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(4)
        self.register_buffer("cache", torch.zeros(64, 4))
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        position = self.calls
        self.calls = (self.calls + 1) % 2
        self.cache[position : position + len(x)] = x
        return self.norm(x + position) + self.cache.sum()


@pytest.mark.parametrize("calls_while_compiling", [0, 1, 2])
def test_state_is_exact_across_the_change_over(held: Held, calls_while_compiling: int) -> None:
    eager = Mutating()
    compiled = in_background(copy.deepcopy(eager))
    inputs = iter([torch.randn(3, 4) for _ in range(20)])

    def both() -> None:
        x = next(inputs)
        torch.testing.assert_close(compiled(x), eager(x))
        assert compiled.calls == eager.calls
        for ours, theirs in zip(compiled.buffers(), eager.buffers(), strict=True):
            torch.testing.assert_close(ours, theirs)

    both()
    assert held.reached.wait(LONG)
    for _ in range(calls_while_compiling):
        both()
    held.go.set()
    for _ in range(8):
        assert compiled.burnish.wait(LONG)
        both()
    assert held.runs >= 5, "both states of the counter are compiled"
    assert burnish.stats(compiled).compiles == 2


class Switched(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.exp() if self.training else x.cos()


def test_a_switch_to_eval_while_the_training_code_compiles(held: Held) -> None:
    """Between tracing and making the guards: code for training must not end up under guards that want eval."""
    model = Switched().train()
    compiled = in_background(model)
    x = torch.randn(4)
    compiled(x)
    assert held.reached.wait(LONG)
    compiled.eval()
    held.go.set()
    assert compiled.burnish.wait(LONG)
    for _ in range(3):
        torch.testing.assert_close(compiled(x), x.cos())
        assert compiled.burnish.wait(LONG)
    compiled.train()
    before = held.runs
    torch.testing.assert_close(compiled(x), x.exp())
    assert held.runs > before, "what was compiled for training serves training"


def test_random_numbers_are_drawn_once(held: Held) -> None:
    """Tracing puts the generator back to where it was when it began, which must not reach the calls made since."""
    compiled = in_background(lambda x: F.dropout(x, 0.5) + 1)
    x = torch.ones(64)

    def sequence(call: object) -> list[torch.Tensor]:
        torch.manual_seed(3)
        held.go.clear()
        first = [call(x) for _ in range(3)]  # type: ignore[operator]
        if call is compiled:
            assert held.reached.wait(LONG)
            first.append(call(x))  # type: ignore[operator]
            held.go.set()
            assert compiled.burnish.wait(LONG)
        else:
            first.append(call(x))  # type: ignore[operator]
        return [*first, torch.rand(4)]

    got, want = sequence(compiled), sequence(compiled.burnish.eager)
    for ours, theirs in zip(got, want, strict=True):
        torch.testing.assert_close(ours, theirs)


def test_the_default_type_set_meanwhile_stays(held: Held) -> None:
    compiled = in_background(scaled)
    compiled(torch.randn(4, 8))
    assert held.reached.wait(LONG)
    torch.set_default_dtype(torch.float64)
    try:
        held.go.set()
        compiled.burnish.wait(LONG)
        assert torch.get_default_dtype() is torch.float64
        assert states(compiled) == ["failed"]
    finally:
        torch.set_default_dtype(torch.float32)
    for _ in range(2):  # it is tried again
        compiled(torch.randn(4, 8))
        assert compiled.burnish.wait(LONG)
    assert held.runs > 0
    assert burnish.stats(compiled).fallbacks == ()


def test_gradients_across_the_change_over(held: Held) -> None:
    eager = nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.Linear(8, 3))
    compiled = in_background(copy.deepcopy(eager))
    optimisers = [torch.optim.SGD(net.parameters(), lr=0.1) for net in (compiled, eager)]

    def step(x: torch.Tensor) -> None:
        for net, optimiser in zip((compiled, eager), optimisers, strict=True):
            optimiser.zero_grad()
            loss_of(net(x)).backward()
            optimiser.step()
        for ours, theirs in zip(compiled.parameters(), eager.parameters(), strict=True):
            torch.testing.assert_close(ours, theirs)
            torch.testing.assert_close(ours.grad, theirs.grad)

    step(torch.randn(5, 6))
    assert held.reached.wait(LONG)
    step(torch.randn(5, 6))  # the weights change while their graph compiles
    held.go.set()
    assert compiled.burnish.wait(LONG)
    for _ in range(3):
        step(torch.randn(5, 6))
    assert held.runs > 0
    assert burnish.stats(compiled).graphs["forward"] == 1


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode, lambda: torch.autocast("cpu", torch.bfloat16)])
def test_the_state_of_the_calling_thread_goes_with_it(held: Held, mode: object) -> None:
    held.go.set()
    eager = nn.Linear(4, 4)
    compiled = in_background(eager)
    x = torch.randn(2, 4)
    with mode():  # type: ignore[operator]
        for _ in range(2):
            got, want = compiled(x), eager(x)
            assert (got.dtype, got.requires_grad) == (want.dtype, want.requires_grad)
            torch.testing.assert_close(got, want)
            assert compiled.burnish.wait(LONG)
    assert held.runs > 0
    assert burnish.stats(compiled).compiles == 1


# -- failures ------------------------------------------------------------------------------------------------------


def test_a_failure_leaves_eager_with_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*args: object, **options: object) -> None:
        raise RuntimeError("out of ideas")

    monkeypatch.setattr(burnish.pipeline, "compile_graph", fails)
    compiled = in_background(scaled)
    x = torch.randn(4, 8)

    def calls() -> None:
        for _ in range(3):
            torch.testing.assert_close(compiled(x), scaled(x))
            assert compiled.burnish.wait(LONG)

    _, warned = fallback_warnings(calls)
    (job,) = burnish.stats(compiled).jobs
    assert (job.state, "out of ideas" in job.reason) == ("failed", True)
    assert len(warned) == 1


def test_a_killed_compiler_is_a_failure_with_a_reason(tmp_path: Path) -> None:
    cc = tmp_path / "cc"
    cc.write_text('#!/bin/sh\ncase "$*" in *--version*) echo "fakecc 1.0"; exit 0;; esac\nkill -9 $$\n')
    cc.chmod(0o755)
    compiled = in_background(scaled, cc=str(cc), cache_dir=tmp_path / "cache")
    x = torch.randn(4, 8)

    def calls() -> None:
        for _ in range(2):
            torch.testing.assert_close(compiled(x), scaled(x))
            assert compiled.burnish.wait(LONG)

    fallback_warnings(calls)
    (job,) = burnish.stats(compiled).jobs
    assert job.state == "failed"
    assert f"signal {signal.SIGKILL.value}" in job.reason


def test_state_that_never_repeats_is_given_up_on(held: Held) -> None:
    class Counting(nn.Module):
        calls = 0

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.calls += 1
            return x * self.calls

    held.go.set()
    compiled = in_background(Counting(), dynamic=False)

    def calls() -> None:
        for turn in range(1, 30):
            torch.testing.assert_close(compiled(torch.ones(3)), torch.full((3,), float(turn)))
            assert compiled.burnish.wait(LONG)

    fallback_warnings(calls)
    assert held.compiles < 10


def test_reset_while_it_compiles(held: Held) -> None:
    compiled = in_background(scaled)
    x = torch.randn(4, 8)
    compiled(x)
    assert held.reached.wait(LONG)
    release = threading.Timer(0, held.go.set)  # reset waits for Dynamo's lock, which the compile holds
    release.start()
    burnish.reset()
    release.join()
    assert burnish.stats(compiled).jobs == ()
    compiled(x)
    assert compiled.burnish.wait(LONG)
    torch.testing.assert_close(compiled(x), scaled(x))
    assert burnish.stats(compiled).compiles == 1


def test_what_is_gone_is_not_kept_alive(held: Held) -> None:
    model = nn.Linear(3, 3)
    compiled = in_background(model)
    compiled(torch.randn(2, 3))
    held.go.set()
    compiled.burnish.wait(LONG)
    kept = weakref.ref(model.weight)
    del model, compiled
    torch._dynamo.reset()
    gc.collect()
    assert kept() is None


# -- processes -----------------------------------------------------------------------------------------------------


def run_script(text: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    script = "import burnish, os, sys, torch\n" + textwrap.dedent(text)
    return subprocess.run([sys.executable, "-c", script, *arguments], capture_output=True, text=True, timeout=LONG)


def test_exit_while_the_c_compiler_runs(tmp_path: Path) -> None:
    cc, pid = tmp_path / "cc", tmp_path / "pid"
    os.mkfifo(pid)
    cc.write_text(
        f'#!/bin/sh\ncase "$*" in *--version*) echo "fakecc 1.0"; exit 0;; esac\nsleep 1000 &\necho $! > {pid}\nwait\n'
    )
    cc.chmod(0o755)
    done = run_script(
        """
        cc, cache, pid = sys.argv[1:]
        c = burnish.compile(lambda x: x.exp() + 1, options={"background": True, "cc": cc, "cache_dir": cache})
        c(torch.randn(3))
        print(open(pid).read().strip(), flush=True)  # until the compiler runs
        """,
        str(cc),
        str(tmp_path / "cache"),
        str(pid),
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert has_ended(int(done.stdout))


def test_exit_while_dynamo_traces(tmp_path: Path) -> None:
    done = run_script(
        """
        from burnish.capture.background import frames as deferred
        import threading
        tracing = threading.Event()
        shield = deferred.beside_calls
        def beside_calls(check):
            def checkpoint():
                tracing.set()
                check()
            return shield(checkpoint)
        deferred.beside_calls = beside_calls
        layers = [torch.nn.TransformerEncoderLayer(8, 2, 8) for _ in range(8)]
        c = burnish.compile(torch.nn.Sequential(*layers), options={"background": True, "cache_dir": sys.argv[1]})
        c(torch.randn(3, 1, 8))
        tracing.wait()
        """,
        str(tmp_path),
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_a_forked_child_compiles_for_itself(tmp_path: Path) -> None:
    done = run_script(
        """
        import threading
        import burnish.pipeline as pipeline
        reached = threading.Event()
        original = pipeline.compile_graph
        def announced(*args, **options):
            reached.set()
            return original(*args, **options)
        pipeline.compile_graph = announced
        f = lambda x: (x.exp() + 1).sum(-1)
        c = burnish.compile(f, options={"background": True, "cache_dir": sys.argv[1]})
        x = torch.randn(3, 4)
        c(x)
        reached.wait()
        child = os.fork()
        for _ in range(2):
            torch.testing.assert_close(c(x), f(x))
            assert c.burnish.wait(60)
        assert burnish.stats(c).jobs[-1].state == "ready", burnish.stats(c).jobs
        if child == 0:
            os._exit(0)
        sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        """,
        str(tmp_path),
    )
    assert done.returncode == 0, done.stderr


# -- parts ---------------------------------------------------------------------------------------------------------


def test_pace_rests_only_while_calls_are_in_flight() -> None:
    now, slept = [0.0], []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        now[0] += seconds

    pace = Pace(clock=lambda: now[0], worked=lambda: now[0], others_worked=lambda: now[0], sleep=sleep)
    now[0] += 10
    pace.check()
    assert slept == []
    pace.calls.append(None)
    pace.check()
    rested = sum(slept)
    assert rested > 0
    pace.check()
    assert sum(slept) == rested, "no further rest before any work"
    now[0] += 10
    pace.calls.pop()
    pace.check()
    assert sum(slept) == rested


def test_pace_gives_others_their_turn_on_a_busy_machine() -> None:
    now, share = [10.0], 0.25  # of a processor, for the calls

    def sleep(seconds: float) -> None:
        now[0] += seconds

    def rest(share: float) -> float:
        pace = Pace(clock=lambda: now[0], worked=lambda: now[0], others_worked=lambda: now[0] * share, sleep=sleep)
        pace.calls.append(None)
        start = now[0]
        pace.check()
        return now[0] - start

    assert rest(1.0) == pytest.approx(REST_SECONDS, rel=0.3)
    assert rest(share) == pytest.approx(TURN_SECONDS / share, rel=0.1)
    assert rest(0.0) == pytest.approx(LONGEST_REST_SECONDS, rel=0.1)


class _Frame:
    f_code = f_globals = f_builtins = None
    f_lasti, closure = 0, ()

    def __init__(self, **values: object) -> None:
        self.f_locals = values


def test_a_snapshot_is_of_its_moment() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Dropout())
    shared = [model, {"step": 1}]
    taken = FrameSnapshot.of(_Frame(model=model, first=shared, second=shared, method=model.forward)).f_locals
    model.eval()
    model[0].step = 7
    shared[1]["step"] = 2
    copied = taken["model"]
    assert copied is not model and type(copied) is nn.Sequential
    assert copied.training and copied[1].training and not hasattr(copied[0], "step")
    assert copied[0].weight is model[0].weight
    assert taken["first"] is taken["second"] and taken["first"][0] is copied and taken["first"][1] == {"step": 1}
    assert taken["method"].__self__ is copied


def test_a_snapshot_of_too_much_is_refused() -> None:
    with pytest.raises(CannotSnapshot, match="Python objects"):
        FrameSnapshot.of(_Frame(values=[0] * 200_000))


def test_signatures_tell_sizes_and_constants_apart() -> None:
    x = torch.zeros(2, 3)
    assert signature({"x": x, "n": 1}) == signature({"x": torch.ones(2, 3), "n": 1})
    different = [{"x": torch.zeros(3, 2), "n": 1}, {"x": x.double(), "n": 1}, {"x": x, "n": 2}, {"x": x, "n": 1.0}]
    assert all(signature(values) != signature({"x": x, "n": 1}) for values in different)
    assert signature({"x": float("nan")}) == signature({"x": float("nan")})


# -- the gate ------------------------------------------------------------------------------------------------------


def test_a_graph_is_judged_before_any_call_gets_it(held: Held) -> None:
    held.go.set()
    compiled = in_background(scaled, gate=False)
    x = torch.randn(4, 8)
    compiled(x)
    assert compiled.burnish.wait(LONG)
    assert [variant.state for variant in burnish.stats(compiled).variants] == ["compiled"]
    assert held.runs > 0, "on copies"
    before = held.runs
    compiled(x)
    assert held.runs == before + 1


def test_wrong_numbers_never_reach_a_call() -> None:
    compiled = in_background(scaled, fault=WrongBy(0.01))
    x = torch.randn(4, 8)

    def calls() -> None:
        for _ in range(3):
            torch.testing.assert_close(compiled(x), scaled(x))
            assert compiled.burnish.wait(LONG)

    _, warned = fallback_warnings(calls)
    assert [variant.state for variant in burnish.stats(compiled).variants] == ["rolled back"]
    assert len(warned) == 1


def test_judging_changes_nothing_of_the_models(held: Held) -> None:
    held.go.set()
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    compiled = in_background(model, gate=False)
    x = torch.randn(6, 4, requires_grad=True)
    compiled(x)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    assert compiled.burnish.wait(LONG)
    (variant,) = burnish.stats(compiled).variants
    assert variant.state == "compiled"
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name]), name
    assert x.grad is None
    assert all(parameter.grad is None for parameter in model.parameters())
    assert burnish.stats(compiled).graphs == {"forward": 1, "backward": 1}, "no call waits for a backward, either"


def test_a_trial_disturbed_by_an_optimiser_counts_for_nothing() -> None:
    weight = torch.ones(3)

    class Disturbed:
        state, retried, is_provisional = "on trial", 0, False
        facts = GraphFacts("inference", static=frozenset({1}))

        def call(self, x: torch.Tensor, shared: torch.Tensor) -> None:
            assert shared is weight
            weight.add_(1)
            x.zero_()

        def retry(self) -> None:
            self.retried += 1

    variant, x = Disturbed(), torch.ones(3)
    try_in_background(variant, [x, weight])
    assert variant.retried == 1
    assert torch.equal(x, torch.ones(3)), "the arguments are copies"


def test_a_dropped_object_stops_compiling(held: Held) -> None:
    model = nn.Linear(3, 3)
    compiled = in_background(model)
    compiled(torch.randn(2, 3))
    assert held.reached.wait(LONG)
    (job,) = compiled.burnish.entrance.deferred.jobs()
    del compiled
    gc.collect()
    assert job.state == "cancelled"


def test_generation_with_a_growing_cache() -> None:
    """The cache is filled by the call that is still going on while its frame compiles."""
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "vocab_size": 50}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "bos_token_id": 0, "eos_token_id": None}
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes, **heads)).eval()
    compiled = in_background(model, gate=False)
    prompt = torch.randint(0, 50, (1, 5))
    want = model.generate(prompt, max_new_tokens=6, do_sample=False)
    for _ in range(3):
        assert torch.equal(compiled.generate(prompt, max_new_tokens=6, do_sample=False), want)
        assert compiled.burnish.wait(LONG)
    assert burnish.stats(compiled).compiles == 3, "the prompt, one token, and one token after any number of others"
    assert burnish.stats(compiled).fallbacks == ()


@pytest.mark.parametrize("setting", [{"background": True}, {"budget": 3}])
def test_other_backends_refuse(setting: dict[str, object]) -> None:
    with pytest.raises(BadOptionValue, match="backend='eager'"):
        burnish.compile(scaled, backend="eager", **setting)


def test_it_is_an_argument() -> None:
    compiled = burnish.compile(scaled, background=True, budget=60)
    x = torch.randn(4, 8)
    compiled(x)
    assert compiled.burnish.wait(LONG)
    assert states(compiled) == ["ready"]


def test_a_compile_is_cancelled_where_c_code_may_throw() -> None:
    """C++ asks a fake tensor for its device in functions that may not: an exception there ends the process."""
    checks = []
    with FakeTensorMode() as fake, beside_calls(lambda: checks.append(1)):
        x = torch.ones(3)
        made = len(checks)
        fake.dispatch(torch.ops.prim.device.default, (), (x,))
        asked = len(checks)
        x + 1
    assert made > 0
    assert asked == made
    assert len(checks) > asked


def test_what_is_ready_is_sealed_though_no_call_has_come_for_it():
    model = nn.Sequential(nn.Linear(6, 8), nn.GELU()).eval()
    compiled: Any = burnish.compile(model, background=True, gate=False)
    x = torch.randn(3, 6)
    with torch.no_grad():
        compiled(x)
        compiled.burnish.wait()
        burnish.seal(compiled, strict=True)
        for _ in range(3):
            torch.testing.assert_close(compiled(x), model(x))
    assert burnish.stats(compiled).compiles == 1
