"""Buckets that follow the traffic."""

from __future__ import annotations

import threading

import pytest

from burnish.bucketed.planner import Planner
from burnish.shapes.strategy import Axis, parse


def planner(shapes: dict[str, object]) -> tuple[Planner, list[int]]:
    strategy = parse(shapes)
    assert strategy is not None
    changes: list[int] = []
    return Planner(strategy, strategy.axes, lambda: changes.append(1)), changes


def test_given_buckets_are_there_at_once() -> None:
    made, changes = planner({"batch": [2, 4], "sequence": [8]})
    made.add((3, 5))
    assert made.is_ready and not made.learns and not changes
    assert made.bucket((3, 5), {}) == (4, 8)
    assert made.bucket((3, 9), {}) is None
    assert made.bucket((3, 700), {1: 700}) == (4, 700)  # the traced graph has a constant there


def test_learnt_buckets_are_planned_after_some_calls() -> None:
    made, changes = planner({"sequence": "auto", "variants": 2, "after": 10})
    for k in range(9):
        made.add((8 if k % 2 else 100,))
    assert not made.is_ready and made.bucket((8,), {}) is None
    made.add((8,))
    assert made.is_ready and changes == [1] and made.plan is not None
    assert made.plan.boundaries == ((8, 100),)
    assert str(made) == "sequence [8, 100]" and made.waste() == 0.0


def test_given_and_learnt_dimensions_share_the_cap() -> None:
    made, _ = planner({"batch": [1, 2, 4, 8], "sequence": "auto", "variants": 8, "after": 40})
    for k in range(40):
        made.add((1 + k % 8, 5 + (k * 7) % 60))
    assert made.plan is not None and made.plan.boundaries[0] == (1, 2, 4, 8)
    assert made.plan.cells <= 8


def test_a_drift_makes_a_new_plan_and_steady_traffic_does_not() -> None:
    made, changes = planner({"sequence": "auto", "variants": 2, "after": 20})
    for k in range(200):
        made.add((10 + k % 3,))
    made._look()
    assert changes == [1] and made.plans == 1
    for k in range(3000):
        made.add((200 + k % 5,))
    made._look()
    assert len(changes) == 2 and made.plan is not None and made.plan.bucket((204,)) is not None


def test_traffic_that_is_known_is_planned_before_any_call() -> None:
    made, _ = planner({"sequence": "auto", "variants": 3})
    made.learn({(5,): 10.0, (9,): 3.0, (70,): 1.0})
    assert made.plan is not None and made.plan.boundaries == ((5, 9, 70),)


def test_a_limit_of_one_dimension() -> None:
    strategy = parse("pad")
    assert strategy is not None
    made = Planner(strategy, (Axis("batch", 0, most=1), Axis("sequence", 1, most=1)), lambda: None)
    made.learn({(3, 5): 1.0, (2, 90): 1.0})
    assert made.plan is not None and made.plan.boundaries == ((3,), (90,))


def test_a_thread_that_cannot_start_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    tries: list[int] = []

    def start(thread: threading.Thread) -> None:
        tries.append(1)
        raise RuntimeError("can't start new thread")

    made, _ = planner({"sequence": "auto", "after": 4})
    monkeypatch.setattr(threading.Thread, "start", start)
    for k in range(600):
        made.add((5 + k % 7,))
    assert len(tries) == 2
