"""First runs say little of later ones: who wins only there serves until the second call, which races again."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from burnish.trust import gate
from burnish.trust.background_trial import try_in_background
from burnish.trust.engines import Engines
from burnish.trust.gate import GraphFacts
from burnish.trust.record import GateStats
from burnish.trust.variant import Policy, Variant

X = torch.ones(3)
_BIG = torch.ones(192, 192)


class Doubling:
    """`work` says how much more there is to do, call by call; the last holds for all that follow."""

    def __init__(self, *work: int) -> None:
        self.work = work
        self.calls = 0

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(self.work[min(self.calls, len(self.work) - 1)]):
            torch.mm(_BIG, _BIG)
        self.calls += 1
        return 2 * x


class Kept:
    """Verdicts of no earlier process."""

    def __init__(self) -> None:
        self.kept: list[GateStats] = []
        self.forgotten = 0

    def passed(self, part: str, *, compared: bool, raced: bool) -> None:
        return None

    def keep(self, part: str, stats: GateStats) -> None:
        self.kept.append(stats)

    def forget(self) -> None:
        self.forgotten += 1


@pytest.fixture(autouse=True)
def no_time_for_a_second_round(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_LONG_CALLS", "_SHARE_OF_COMPILE", "_SMALL_CHANGE"):
        monkeypatch.setattr(gate, name, 0.0)


def variant_of(eager: Doubling, ours: Doubling, verdicts: Any = None) -> Variant:
    facts = GraphFacts("inference")
    return Variant(1, facts, Engines(facts, eager, {"burnish": ours}), Policy(), verdicts=verdicts)


def test_who_wins_cold_and_loses_warm_serves_one_call():
    eager, ours, verdicts = Doubling(400, 0), Doubling(0, 100), Kept()
    variant = variant_of(eager, ours, verdicts)
    assert torch.equal(variant.call(X), 2 * X)
    assert (variant.state, variant.engine, variant.is_provisional) == ("compiled", "burnish", True)
    assert verdicts.kept == []
    assert torch.equal(variant.call(X), 2 * X)
    assert (variant.state, variant.engine, variant.is_provisional) == ("eager", "eager", False)
    assert variant.failure is not None and "takes longer" in variant.failure.reason and verdicts.forgotten == 1
    done = ours.calls
    variant.call(X)
    assert ours.calls == done, "eager's from now on"


def test_who_wins_again_stays_and_is_raced_no_more():
    eager, ours, verdicts = Doubling(400, 200), Doubling(0), Kept()
    variant = variant_of(eager, ours, verdicts)
    for _ in range(2):
        assert torch.equal(variant.call(X), 2 * X)
    assert (variant.state, variant.engine, variant.is_provisional) == ("compiled", "burnish", False)
    (kept,) = verdicts.kept
    assert kept.compiled_error == 0.0 and variant.gate == kept, "compared in the first, timed in the second"
    done = eager.calls
    variant.call(X)
    assert eager.calls == done


def test_what_raises_in_the_second_is_rolled_back_and_eager_returns():
    class Failing(Doubling):
        def __call__(self, x: torch.Tensor) -> torch.Tensor:
            if self.calls:
                raise RuntimeError("out of luck")
            return super().__call__(x)

    variant = variant_of(Doubling(400, 0), Failing(0))
    for _ in range(2):
        assert torch.equal(variant.call(X), 2 * X)
    assert variant.state == "rolled back" and variant.counts.rollbacks == 1


def test_rolled_back_meanwhile_it_does_not_come_back():
    variant = variant_of(Doubling(400, 0), Doubling(0))
    variant.call(X)
    variant.roll_back(gate.Failure("asked", asked=True))
    assert torch.equal(variant.call(X), 2 * X)
    assert variant.state == "rolled back" and not variant.is_provisional


def test_a_rehearsal_leaves_nothing_to_race_for():
    variant = variant_of(Doubling(400, 200), Doubling(0))
    try_in_background(variant, [X])
    assert variant.state == "compiled" and not variant.is_provisional
