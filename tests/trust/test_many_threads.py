"""Many threads and shapes at once: each shape compiles once, nobody is stuck in eager, nobody waits for ever."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch
from torch import nn

import burnish
from burnish.capture.background.snapshot import entered
from burnish.capture.entry.frame_compiler import LookAgain
from burnish.trust.faults import Fault
from tests.capture.entry.test_threads import together


def model() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.GELU(), nn.Linear(8, 3)).eval()


class Counted(Fault):
    """Knows how often each variant's program ran, and in which threads."""

    def __init__(self) -> None:
        self.runs: dict[int, list[int]] = {}

    def program(self, variant: int, call: Any) -> Any:
        runs = self.runs[variant] = []

        def run(*args: Any) -> Any:
            runs.append(threading.get_ident())
            return call(*args)

        return run


def test_sixteen_threads_and_six_shapes():
    fault = Counted()
    compiled = burnish.compile(model(), options={"fault": fault}, dynamic=False)
    inputs = [torch.randn(rows, 6) for rows in range(2, 8)]
    with torch.no_grad():
        expected = [compiled.eager(x) for x in inputs]

    def work(number: int) -> None:
        with torch.no_grad():
            for turn in range(18):
                i = (turn + number) % 6
                torch.testing.assert_close(compiled(inputs[i]), expected[i])

    together(16, work)
    stats = burnish.stats(compiled)
    assert stats.compiles == 6 and stats.graphs == {"inference": 6} and stats.fallbacks == ()
    assert [v.state for v in stats.variants] == ["compiled"] * 6
    before = {variant: len(runs) for variant, runs in fault.runs.items()}

    def again(number: int) -> None:
        with torch.no_grad():
            for i in range(6):
                compiled(inputs[i])

    together(16, again)
    served = {variant: len(runs) - before[variant] for variant, runs in fault.runs.items()}
    assert len(served) == 6 and set(served.values()) == {16}, served
    assert burnish.stats(compiled).compiles == 6


def test_a_call_that_dynamo_misses_looks_again() -> None:
    """As if another thread had reordered Dynamo's list just then: what is there is found at the second look."""
    fault = Counted()
    compiled = burnish.compile(model(), options={"fault": fault})
    x = torch.randn(3, 6)
    with torch.no_grad():
        compiled(x)
        frame, compiler = compiled.burnish.entrance._compiled
        (entry,) = compiler.entries(frame.__code__)
        with pytest.raises(LookAgain):  # which the entrance catches
            compiler(entered(frame, (x,), {}), entry, {})
        before, misses = len(fault.runs[1]), iter([False])
        entry.guard_manager.root.add_lambda_guard(lambda _: next(misses, True), ["misses once"], None)
        torch.testing.assert_close(compiled(x), compiled.eager(x))
    assert next(misses, None) is None
    assert len(fault.runs[1]) == before + 1
    assert burnish.stats(compiled).compiles == 1


def test_others_call_while_a_trial_is_under_way():
    """The trial of one thread is held up inside the program; a call of another gets eager's result, at once."""
    inside, go_on = threading.Event(), threading.Event()

    class Held(Fault):
        def program(self, variant: int, call: Any) -> Any:
            def run(*args: Any) -> Any:
                inside.set()
                assert go_on.wait(60)
                return call(*args)

            return run

    compiled = burnish.compile(model(), options={"fault": Held()})
    x = torch.randn(3, 6)
    results: list[torch.Tensor] = []

    def first() -> None:
        with torch.no_grad():
            results.append(compiled(x))

    thread = threading.Thread(target=first)
    thread.start()
    assert inside.wait(60)
    with torch.no_grad():
        assert torch.equal(compiled(x), compiled.eager(x))
    assert burnish.stats(compiled).variants[0].state == "on trial"
    go_on.set()
    thread.join(60)
    torch.testing.assert_close(results[0], compiled.eager(x).detach())
    assert burnish.stats(compiled).variants[0].state == "compiled" and burnish.stats(compiled).compiles == 1


def test_rolling_back_and_retrying_while_threads_call():
    compiled = burnish.compile(model())
    x = torch.randn(3, 6)
    with torch.no_grad():
        expected = compiled.eager(x)
        compiled(x)

    def work(number: int) -> None:
        with torch.no_grad():
            for turn in range(30):
                if number == 0 and turn % 3 == 0:
                    compiled.burnish.rollback("a drill")
                    compiled.burnish.retry()
                torch.testing.assert_close(compiled(x), expected)

    together(6, work)
    with torch.no_grad():
        compiled(x)
    assert burnish.stats(compiled).variants[0].state == "compiled" and burnish.stats(compiled).compiles == 1
