"""Verdicts of earlier processes: a program that was compared and raced before is used at once, and says so."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import burnish
from burnish.runtime.cache.store import Cache, CacheKey, open_cache
from burnish.stats import Stats
from burnish.trust.engines import Engines
from burnish.trust.gate import Gate, GraphFacts
from burnish.trust.record import GateStats
from burnish.trust.sampling import comparer
from burnish.trust.stored_verdicts import KEPT_SECONDS, KIND, Verdicts
from burnish.trust.variant import Policy, Variant

X = torch.linspace(-1, 1, 24).reshape(4, 6)
FACTS = GraphFacts("inference")
MEASURED = dataclasses.replace(
    GateStats(20.0, 10.0, 1.0, 0.0, 5, 1e-7, None, 0.25, 2.0, engines_us=(("burnish", 10.0),)),
    ratio_median=0.56, ratio_low=0.5, ratio_high=0.6,
)  # fmt: skip
FEW = dataclasses.replace(MEASURED, rounds=2, ratio_median=None, ratio_low=None, ratio_high=None)


class Block(nn.Module):
    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.first, self.second = nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(torch.tanh(self.first(x)))


@pytest.fixture
def options(tmp_path: Path) -> dict[str, object]:
    return {"cache_dir": tmp_path / "cache", "warm_start": True, "gate": True}


@pytest.fixture
def judged(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Every judging of a graph, and whether it raced; every race is won clearly."""
    seen: list[bool] = []
    ordinary = Gate.judge

    def judge(self: Gate, *arguments: Any) -> Any:
        seen.append(self.race)
        verdict = ordinary(self, *arguments)
        if not self.race:
            return verdict
        stats = dataclasses.replace(
            verdict.stats, eager_us=20.0, compiled_us=10.0, capture_us=0.0, modules_us=0.0, ratio_high=0.6
        )
        return dataclasses.replace(verdict, winner="burnish", stats=stats)

    monkeypatch.setattr(Gate, "judge", judge)
    return seen


def run(model: nn.Module, options: dict[str, object], steps: int = 1, grad: bool = False) -> Stats:
    """What might be a new process: results and gradients are eager's."""
    torch.compiler.reset()
    compiled = burnish.compile(model, options=options)
    for _ in range(steps):
        with torch.set_grad_enabled(grad):
            got, want = compiled(X), model(X)
        torch.testing.assert_close(got, want)
        if grad:
            gradients = (torch.autograd.grad(out.square().sum(), list(model.parameters())) for out in (got, want))
            torch.testing.assert_close(*gradients)
    assert comparer.settle(60)
    stats = burnish.stats(compiled)
    assert not stats.fallbacks and stats.compiles == 1 and stats.variants[0].state in ("on trial", "compiled")
    return stats


def gate_of(stats: Stats) -> GateStats:
    (variant,) = stats.variants
    assert variant.gate is not None
    return variant.gate


@pytest.mark.parametrize("traced", [False, True], ids=["restored", "traced again"])
def test_what_was_judged_is_used_at_once_and_its_first_call_compared_beside(
    options: dict[str, object], judged: list[bool], traced: bool
) -> None:
    first = run(Block(), options)
    assert judged == [True] and gate_of(first).source == "measured" and first.variants[0].samples == 0
    if traced:
        cache = open_cache(burnish.Options.from_arguments(options=options))
        for entry in cache.entries():
            if entry.kind == "frame":
                cache.discard("frame", CacheKey(entry.factors))
    again = run(Block(seed=1), options, steps=3)
    assert judged == [True] and ("aot" in again.seconds) == traced
    gate, (variant,) = gate_of(again), again.variants
    assert gate.source == "remembered" and gate.seconds == 0.0 and gate.ratio == 0.5
    assert variant.state == "compiled" and "earlier process" in variant.reason and variant.samples == 1
    assert any("earlier process" in notice for notice in again.notices) and again.events["gate"] == 1


def test_a_training_step_is_judged_in_three_parts(options: dict[str, object], judged: list[bool]) -> None:
    """The forward and the backward at the first step, the race at the second: each is remembered on its own."""
    first = run(Block(), options, grad=True)
    assert judged == [False] and first.seconds["gate"] > 0
    again = run(Block(), options, grad=True)
    assert judged == [False] and "gate" not in again.seconds  # neither half was compared
    assert gate_of(run(Block(), options, steps=2, grad=True)).source == "measured"
    assert judged == [False, True]
    assert gate_of(run(Block(seed=3), options, steps=2, grad=True)).source == "remembered"
    assert judged == [False, True]


def test_a_backward_that_passed_is_not_judged_again(
    options: dict[str, object], judged: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    from burnish.trust.backward import WatchedBackward

    seen: list[object] = []
    ordinary = WatchedBackward._judge
    monkeypatch.setattr(WatchedBackward, "_judge", lambda self, *a: (seen.append(a), ordinary(self, *a))[1])
    run(Block(), options, grad=True)
    run(Block(), options, grad=True)
    assert len(seen) == 1


def test_it_can_be_asked_for_every_time(options: dict[str, object], judged: list[bool]) -> None:
    for _ in range(2):
        assert gate_of(run(Block(), {**options, "verify": "always"})).source == "measured"
    assert judged == [True, True]


def test_another_program_is_judged(options: dict[str, object], judged: list[bool]) -> None:
    run(Block(), options)
    other = Block()
    other.second = nn.Linear(6, 3, bias=False)
    assert gate_of(run(other, options)).source == "measured" and judged == [True, True]


# -- the parts ----------------------------------------------------------------------------------------------------


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    return Cache(tmp_path / "cache", 1 << 30)


def verdicts(cache: Cache, now: Callable[[], float] = lambda: 0.0) -> Verdicts:
    return Verdicts(cache, (("name", "a model"), ("program", "abc")), now)


def test_weights_for_which_it_is_wrong_are_found_beside_the_first_call(cache: Cache) -> None:
    found = verdicts(cache)
    found.keep("graph", MEASURED)
    engines = Engines(FACTS, lambda x: (x + 1,), {"burnish": lambda x: (x + 2,)})
    wrong = Variant(1, FACTS, engines, Policy(), verdicts=found)
    assert wrong.state == "compiled"
    (served,) = wrong.call(torch.zeros(3))  # nobody waits for the comparison
    assert served.tolist() == [2.0] * 3 and comparer.settle(60)
    assert wrong.state == "rolled back" and wrong.call(torch.zeros(1))[0].item() == 1.0
    assert found.passed("graph", compared=True, raced=True) is None  # and no later process believes it


def test_a_retry_is_not_taken_from_memory(cache: Cache) -> None:
    found = verdicts(cache)
    found.keep("graph", MEASURED)
    engines = Engines(FACTS, lambda x: (x,), {"burnish": lambda x: (x,)})
    variant = Variant(1, FACTS, engines, Policy(), verdicts=found)
    variant.retry()
    assert variant.state == "on trial" and variant.gate is None


@pytest.mark.parametrize(
    ("stored", "compared", "raced", "taken"),
    [
        (MEASURED, True, True, True),
        (dataclasses.replace(MEASURED, compiled_us=18.5), True, True, True),
        (dataclasses.replace(MEASURED, compiled_us=18.5, ratio_high=1.01), True, True, False),  # or lost: raced again
        (FEW, True, True, True),
        (dataclasses.replace(FEW, compiled_us=16.5), True, True, False),  # by little, in few rounds: raced again
        (dataclasses.replace(FEW, compiled_us=18.5, races=3), True, True, True),  # but not for ever
        (dataclasses.replace(MEASURED, compiled_us=19.5), True, True, False),  # with all that a call costs, slower
        (dataclasses.replace(MEASURED, compiled_us=19.5), True, False, True),
        (dataclasses.replace(MEASURED, eager_us=None), True, True, False),
        (dataclasses.replace(MEASURED, compiled_error=None), True, False, False),
        (dataclasses.replace(MEASURED, compiled_error=None), False, True, True),
        (dataclasses.replace(MEASURED, note="used without a trial"), False, False, False),
    ],
)
def test_only_what_was_found_counts(cache: Cache, stored: GateStats, compared: bool, raced: bool, taken: bool) -> None:
    found = verdicts(cache)
    found.keep("graph", stored)
    assert (found.passed("graph", compared=compared, raced=raced) is not None) == taken


def test_processes_that_raced_are_counted(cache: Cache) -> None:
    found, little = verdicts(cache), dataclasses.replace(FEW, compiled_us=18.5)
    asked = []
    for _ in range(3):
        asked.append(found.passed("graph", compared=True, raced=True) is not None)
        found.keep("graph", little)
    assert asked == [False, False, False]
    assert found.passed("graph", compared=True, raced=True).races == 3


def test_it_is_believed_for_a_month(cache: Cache) -> None:
    verdicts(cache, lambda: 1000.0).keep("graph", MEASURED)
    asked = lambda now: verdicts(cache, lambda: now).passed("graph", compared=True, raced=True)  # noqa: E731
    assert asked(1000.0 + KEPT_SECONDS - 1) == dataclasses.replace(
        MEASURED, seconds=0.0, source="remembered", note="judged by an earlier process, on 1970-01-01"
    )
    assert asked(1001.0 + KEPT_SECONDS) is None
    assert asked(1001.0) is None  # it is gone
    verdicts(cache, lambda: 1000.0).keep("graph", MEASURED)
    assert asked(999.0) is None  # from the future: the clock was set back


@pytest.mark.parametrize("data", [b"", b"[]", b'{"gate": {"ratio": 1}, "when": 0}', b'{"gate": {}, "when": "x"}'])
def test_what_cannot_be_read_is_no_verdict(cache: Cache, data: bytes) -> None:
    found = verdicts(cache)
    cache.put(KIND, found._key("graph"), data)
    assert found.passed("graph", compared=False, raced=False) is None
