"""The instruments: turns on a device that returns early, Ctrl-C between rounds, memory, operators, batch sizes."""

from __future__ import annotations

import os
import threading

import pytest
import torch

from burnish.tools.bench.memory import Sampler, Timeline, call_rise, tree_resident_bytes
from burnish.tools.bench.operators import profile_call
from burnish.tools.bench.worker import evident_batch_size
from burnish.tools.measure import MIN_ROUNDS, interleave
from burnish.tools.targets import Target, load_target


def test_a_call_that_returns_early_is_timed_until_it_is_done() -> None:
    order: list[str] = []
    race = interleave(
        {"a": lambda: order.append("call")}, seconds=0.0, synchronize=lambda: order.append("done") or sum(range(2000))
    )
    assert "call,done" in ",".join(order), "each call is waited for"
    for whole, until_return in zip(race.rounds["a"], race.host["a"], strict=True):
        assert len(whole) == len(until_return)
        assert all(until < full for until, full in zip(until_return, whole, strict=True))
    assert not interleave({"a": lambda: None}, seconds=0.0).host, "a CPU's calls are done when they return"


def test_ctrl_c_ends_the_race_with_its_complete_rounds() -> None:
    def after(part: float) -> None:
        rounds.append(part)
        if len(rounds) == 3:
            raise KeyboardInterrupt

    rounds: list[float] = []
    calls = {"a": lambda: None, "b": lambda: None}
    race = interleave(calls, seconds=1e6, on_round=after, keep_on_interrupt=True)
    assert race.interrupted and {len(blocks) for blocks in race.rounds.values()} == {3}
    rounds.clear()
    with pytest.raises(KeyboardInterrupt):
        interleave(calls, seconds=1e6, on_round=after)


def test_a_race_without_a_round_is_no_race() -> None:
    def press() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interleave({"a": press}, seconds=1.0, keep_on_interrupt=True)
    assert len(interleave({"a": lambda: None}, seconds=0.0).rounds["a"]) == MIN_ROUNDS


def test_the_peak_of_a_phase_is_that_of_its_stretch() -> None:
    points = ((0.0, 10), (1.0, 50), (2.0, 90), (3.0, 70), (4.0, 20))
    timeline = Timeline(points, ((0.0, "load"), (1.5, "compile"), (3.5, "steady")))
    assert [timeline.peak(phase) for phase in ("load", "compile", "steady", "other")] == [50, 90, 20, None]


def test_a_sampler_notes_memory_and_phases() -> None:
    values = iter([100, 300, 0])
    seen = threading.Event()

    def resident(pid: int) -> int | None:
        value = next(values, None)
        if value is None:
            seen.set()
        return value

    sampler = Sampler(os.getpid(), resident=resident)
    for phase in ("load", "load", "compile"):
        sampler.phase(phase)
    assert seen.wait(60)
    timeline = sampler.stop()
    assert [value for _, value in timeline.points] == [100, 300], "an ended process has no memory to show"
    assert [name for _, name in timeline.phases] == ["load", "compile"]


@pytest.mark.skipif(not os.path.exists("/proc/self/clear_refs"), reason="only Linux tells")
def test_what_a_call_adds_is_seen() -> None:
    rise = call_rise(lambda: torch.ones(16 << 20))
    if rise is None:
        pytest.skip("this system does not let a process reset its peak")
    assert 60 << 20 < rise < 90 << 20
    assert (tree_resident_bytes(os.getpid()) or 0) > 50 << 20
    assert tree_resident_bytes(2**22 + 1) is None


def test_operators_of_a_call_are_counted(capfd: pytest.CaptureFixture[str]) -> None:
    target = load_target("mlp@tiny")
    with target.grad_mode():
        found = profile_call(target.step(), on_cuda=False)
    assert found.aten_calls == 5, "three linear layers and two tanh"
    counted = {operator.name: operator.calls for operator in found.top}
    assert counted["aten::addmm"] == 3 and counted["aten::tanh"] == 2
    assert 0 < sum(operator.seconds for operator in found.top) <= found.operator_seconds
    assert capfd.readouterr().err == "", "the profiler's announcements are not the user's business"


def test_a_batch_size_is_taken_where_it_is_evident() -> None:
    def of(*inputs: object, told: int | None = None) -> int | None:
        return evident_batch_size(Target("t", lambda: None, inputs, batch_size=told))

    assert of(torch.ones(8, 3), torch.ones(8)) == 8
    assert of(torch.ones(8, 3), torch.ones(4)) is None
    assert of(torch.ones(()), 3) is None
    assert of(torch.ones(8), told=2) == 2
