"""The race of whole calls in a compiled object: who serves afterwards, what ends or begins it; with invented times."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import burnish
from burnish.capture.entry import bypass as bypassing
from burnish.capture.entry.bypass import bypass, in_words, kind_of
from burnish.trust import whole_call
from burnish.trust.gate import Gate
from burnish.trust.whole_call import WholeCallRace

X = torch.linspace(-1, 2, 24).reshape(4, 6)
DECIDED = 2 + 2 * 5  # calls: two that are not timed, five pairs
CLOSED = DECIDED + whole_call._LINGERS + 1


class Times:
    """Each call of an object takes what is said here, in 2 ms, by who serves it; every graph wins its own race."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.compiled: Callable[[Any], float] = lambda x: 1.0
        self.eager: Callable[[Any], float] = lambda x: 1.0
        self.served: list[str] = []
        self._clock = threading.local()  # of each thread: what others do meanwhile takes no time of its calls
        monkeypatch.setattr(Gate, "_winner", lambda gate, times, right, rounds: right[0])
        ordinary = WholeCallRace.__init__

        def init(race: WholeCallRace, compiled: Any, eager: Any, *rest: Any, **named: Any) -> None:
            ordinary(race, self._side("compiled", compiled), self._side("eager", eager), *rest, **named)
            race._clock = lambda: self.now

        monkeypatch.setattr(WholeCallRace, "__init__", init)

    @property
    def now(self) -> float:
        return getattr(self._clock, "now", 0.0)

    @now.setter
    def now(self, seconds: float) -> None:
        self._clock.now = seconds

    def _side(self, name: str, run: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            self.served.append(name)
            self.now += 2e-3 * (self.compiled if name == "compiled" else self.eager)(args[0])
            return run(*args, **kwargs)

        return call


@pytest.fixture
def times(monkeypatch: pytest.MonkeyPatch) -> Times:
    return Times(monkeypatch)


@pytest.fixture(autouse=True)
def _without_grad() -> Iterator[None]:
    with torch.no_grad():
        yield


def broken(x: torch.Tensor) -> torch.Tensor:
    y = x.sin()
    if y.sum().item() > 1e9:
        y = y * 2
    return y.cos() + 1


def run(compiled: Any, calls: int, x: torch.Tensor = X) -> None:
    for _ in range(calls):
        torch.testing.assert_close(compiled(x), compiled.burnish.eager(x))


def serves(compiled: Any) -> str:
    """What a call goes to now."""
    entrance = compiled.burnish.entrance
    if entrance.call is entrance._open_call:
        return "open"
    if entrance._race is not None and entrance.call is entrance._race.call:
        return "race"
    if entrance._suspended is not None:
        return "eager"
    return "around" if entrance.call is entrance._around else "sealed"


@pytest.mark.parametrize(("seconds", "way", "served"), [(2.0, "around", "eager"), (0.5, "open", "compiled")])
def test_who_wins_as_a_whole_serves(times, seconds, way, served):
    """Though each of its graphs has won its own race."""
    times.compiled = lambda x: seconds
    compiled = burnish.compile(broken, gate=True)
    run(compiled, 1)
    assert serves(compiled) == "race"
    run(compiled, CLOSED + 4)
    assert serves(compiled) == way
    (found,) = burnish.stats(compiled).whole_call
    assert found.served == served and found.inputs == "(float32[4, 6])" and found.rounds == 5
    assert found.ratio == pytest.approx(seconds) and "whole call (1)" in str(burnish.stats(compiled))
    assert all(variant.engine == "burnish" for variant in burnish.stats(compiled).variants)


def test_nothing_is_raced_without_a_gate():
    compiled = burnish.compile(broken, gate=False)
    run(compiled, 3)
    assert serves(compiled) == "open" and burnish.stats(compiled).whole_call == ()


def test_kinds_of_calls_that_differ_are_told_apart(times):
    times.compiled = lambda x: 2.0 if len(x) == 4 else 0.5
    compiled = burnish.compile(broken, gate=True, dynamic=False)
    for _ in range(CLOSED + 8):
        run(compiled, 1, X), run(compiled, 1, torch.ones(8, 6))
    assert serves(compiled) == "race" and {f.served for f in burnish.stats(compiled).whole_call} == {
        "eager",
        "compiled",
    }
    times.served.clear()
    run(compiled, 1, X), run(compiled, 1, torch.ones(8, 6))
    assert times.served == ["eager", "compiled"]


@pytest.mark.parametrize("seconds", [2.0, 0.5])
def test_new_inputs_that_compile_are_raced_too(times, seconds):
    times.compiled = lambda x: seconds
    compiled = burnish.compile(broken, gate=True, dynamic=False)
    run(compiled, CLOSED + 4)
    way = serves(compiled)
    for _ in range(1 + bypassing._MOST_RARELY):
        if serves(compiled) != "race":
            run(compiled, 1, torch.ones(9, 6))
    assert serves(compiled) == "race"
    run(compiled, CLOSED + 20, torch.ones(9, 6))
    assert serves(compiled) == way and len(burnish.stats(compiled).whole_call) == 2


def test_a_rollback_while_racing_ends_it_and_a_retry_begins_it_again(times):
    compiled = burnish.compile(broken, gate=True)
    run(compiled, DECIDED - 2)
    compiled.burnish.rollback()
    run(compiled, 5)
    assert serves(compiled) == "eager"
    compiled.burnish.retry()
    assert serves(compiled) == "race" and burnish.stats(compiled).whole_call == ()
    times.compiled = lambda x: 2.0
    run(compiled, CLOSED + 6)
    assert serves(compiled) == "around"


def test_a_graph_that_fails_later_has_the_whole_raced_again(times):
    from burnish.trust.gate import Failure

    times.compiled = lambda x: 0.5
    compiled = burnish.compile(broken, gate=True)
    run(compiled, CLOSED + 4)
    assert serves(compiled) == "open"
    compiled.burnish.log.variants()[0].roll_back(Failure("on purpose"))
    assert serves(compiled) == "race" and burnish.stats(compiled).whole_call == ()


@pytest.mark.parametrize("forget", ["reset", "close"])
def test_what_is_compiled_anew_is_raced_anew(times, forget):
    compiled = burnish.compile(broken, gate=True)
    run(compiled, CLOSED + 4)
    getattr(compiled.burnish, forget)()
    assert serves(compiled) == "race" and burnish.stats(compiled).whole_call == ()


def test_a_hook_that_is_registered_begins_it_again(times):
    compiled = burnish.compile(nn.Linear(6, 3), gate=True)
    run(compiled, CLOSED + 2)
    assert serves(compiled) == "open"
    seen: list[int] = []
    compiled.register_forward_hook(lambda *a: seen.append(1))
    compiled(X)
    assert seen == [1] and serves(compiled) == "race"


def plain(x: torch.Tensor) -> torch.Tensor:
    return x.sin().cos() + 1


@pytest.mark.parametrize(("seconds", "runs"), [(2.0, 0), (0.5, 3)])
def test_a_sealed_object_keeps_what_lost_in_eager(times, monkeypatch, seconds, runs):
    times.compiled = lambda x: seconds
    counted: list[int] = []
    compiled = burnish.compile(plain, gate=True)
    run(compiled, CLOSED)
    burnish.seal(compiled)
    compiled(X)
    (variant,) = compiled.burnish.log.variants()
    variant.noting(lambda v: counted.append(1))
    run(compiled, 3)
    assert serves(compiled) == "sealed" and len(counted) == runs
    assert not any("not compiled" in notice for notice in burnish.stats(compiled).notices)
    compiled.burnish.unseal()
    assert serves(compiled) == ("around" if seconds > 1 else "open")


def test_the_race_begins_when_the_background_is_done(times):
    compiled = burnish.compile(broken, gate=True, background=True)
    times.compiled = lambda x: 2.0
    for _ in range(8):
        run(compiled, 1)
        assert compiled.burnish.wait(120)
    assert set(times.served) == {"compiled"} or burnish.stats(compiled).whole_call
    run(compiled, CLOSED + 8)
    assert serves(compiled) == "around"


class Mode(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


def test_calls_in_odd_circumstances_are_not_timed(times):
    compiled = burnish.compile(plain, gate=True)
    run(compiled, 4)
    times.served.clear()
    with Mode():
        run(compiled, 6)
    torch.func.vmap(lambda x: compiled(x))(X)
    assert set(times.served) == {"compiled"}


def test_an_exception_in_a_race_is_eagers_and_the_race_goes_on(times):
    def checked(x: torch.Tensor) -> torch.Tensor:
        if x.sum().item() > 1e6:
            raise ValueError("too much")
        return x * 2

    compiled = burnish.compile(checked, gate=True)
    run(compiled, 5)
    for _ in range(2):
        with pytest.raises(ValueError, match="too much"):
            compiled(torch.full((4, 6), 1e9))
    run(compiled, CLOSED + 2)
    assert burnish.stats(compiled).whole_call[0].served == "compiled"


def test_each_call_has_its_effects_once_while_racing(times):
    effects: list[int] = []

    def counting(x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        out += 1
        torch._dynamo.graph_break()
        return x * 2

    compiled = burnish.compile(counting, gate=True)
    out = torch.zeros(3)
    for i in range(CLOSED + 4):
        compiled(X, out)
        effects.append(i)
    assert out.tolist() == [float(len(effects))] * 3


def test_threads_race_one_object(times):
    times.compiled = lambda x: 2.0
    compiled = burnish.compile(broken, gate=True)
    run(compiled, 3)
    errors: list[BaseException] = []

    def work() -> None:
        try:
            with torch.no_grad():
                run(compiled, 40)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(16)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    run(compiled, CLOSED)
    assert not errors and serves(compiled) == "around" and burnish.stats(compiled).events["gate"] >= 1


def test_training_counts_the_backwards_of_the_graphs(times):
    """Forwards are equal here; the gate has measured backwards."""
    net = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
    compiled = burnish.compile(net, gate=True)
    with torch.enable_grad():
        for _ in range(CLOSED + 4):
            compiled(X).sum().backward()
    (found,) = burnish.stats(compiled).whole_call
    (gate,) = [variant.gate for variant in burnish.stats(compiled).variants]
    assert gate.eager_backward_us is not None and found.eager_us == pytest.approx(2e3 + gate.eager_backward_us)


# --- around Dynamo ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("native", [False, True])
def test_calls_go_around_but_for_a_look_now_and_then(native):
    from burnish.observe.log import CompileLog
    from burnish.options import Options
    from burnish.runtime.host.extension import host_library

    host = host_library(Options.from_arguments(), CompileLog()) if native else None
    if native and host is None:
        pytest.skip("no C compiler")
    seen: list[str] = []
    looks: list[int] = []
    target = lambda x, y=None: (seen.append("target"), y)[1]  # noqa: E731
    through = lambda x, y=None: (seen.append("through"), y)[1]  # noqa: E731
    call = bypass(target, through, host, lambda: looks.append(1))
    assert call(X, y=5) == 5 and seen == ["through"]
    for _ in range(100):
        assert call(X, y=7) == 7
    assert seen[1:] == ["target"] * 100
    assert len(looks) == (0 if native else 3)  # the first, and after 16 and 32 more; in C nobody waits for C
    for _ in range(64):
        call(torch.ones(2), y=7)
    assert seen.count("through") == 2
    seen.clear()
    while "through" not in seen and len(seen) < 200:
        call(torch.ones(3), y=7)
    for _ in range(bypassing._LOOKS_EVERY):  # looks are frequent again
        call(torch.ones(4), y=7)
    assert seen.count("through") == 2
    with pytest.raises(TypeError):
        call()


def test_kinds_are_told_apart_and_said():
    import numpy as np

    kinds = [kind_of(args, {}) for args in ((X,), (X.double(),), (X[:2],), ([X],), ([X, X],), (3,), (np.ones(4),))]
    assert len(set(kinds)) == len(kinds)
    assert kind_of((3,), {}) == kind_of((4,), {}) and kind_of((3,), {}) != kind_of((3.0,), {})
    assert [in_words(kind) for kind in kinds] == [
        "(float32[4, 6])", "(float64[4, 6])", "(float32[2, 6])", "(list of 1)", "(list of 2)", "(int)", "(ndarray[4])",
    ]  # fmt: skip
