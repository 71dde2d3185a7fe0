"""No full garbage collection in a compile: not while it lasts, and none that is overdue when it ends."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import burnish
from burnish import pipeline
from burnish.capture.gc_pause import Patience

USUAL = (700, 10, 10)


@pytest.fixture(autouse=True)
def usual_thresholds() -> Iterator[None]:
    before = gc.get_threshold()
    gc.set_threshold(*USUAL)
    yield
    gc.set_threshold(*before)


def test_it_lasts_until_the_last_lets_go_and_then_nothing_is_due() -> None:
    patience = Patience()
    with patience.asked():
        with patience.asked():
            gc.collect(1)
        assert gc.get_threshold()[2] > 1000 * USUAL[2]
        assert gc.get_count()[2] > 0
    assert gc.get_threshold() == USUAL
    assert gc.get_count()[2] == 0


def test_what_somebody_sets_or_freezes_meanwhile_stays() -> None:
    patience = Patience()
    with patience.asked():
        gc.set_threshold(500, 5, 5)
    assert gc.get_threshold() == (500, 5, 5)
    gc.freeze()
    try:
        with patience.asked():
            pass
        assert gc.get_freeze_count() > 0
    finally:
        gc.unfreeze()


def test_a_forked_child_waits_for_nobody() -> None:
    patience = Patience()
    patience.ask()
    patience.begin_again()
    assert gc.get_threshold() == USUAL
    patience.let_go()  # by a thread that compiles on, in the child
    assert gc.get_threshold() == USUAL


def test_a_compile_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    import_graph = pipeline.import_graph

    def watched(graph: Any, **named: Any) -> Any:
        seen.append(gc.get_threshold()[2])
        return import_graph(graph, **named)

    monkeypatch.setattr(pipeline, "import_graph", watched)
    burnish.compile(lambda x: (x * 2).exp())(torch.ones(3))
    assert len(seen) == 1 and seen[0] > 1000 * USUAL[2]
    assert gc.get_threshold() == USUAL
