"""Gate, rollback, background and budget: each is an event, a count in the metrics, and a state in the stats."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest
import torch

import burnish
from burnish.errors import FallbackWarning
from burnish.observe import Event
from burnish.trust.faults import Fault, RaisesAtRun, WrongBy
from tests.observe.exposition_parser import parse


class Watched:
    """A small compiled model, its events and its metrics."""

    def __init__(self, folder: Path, fault: Fault | None = None, **options: Any) -> None:
        self.path = folder / "events.jsonl"
        self.eager = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.GELU()).eval()
        self.compiled = burnish.compile(
            self.eager, name="watched", options={"events": self.path, "fault": fault, "latency": True, **options}
        )

    def call(self, times: int = 1) -> None:
        with torch.no_grad():
            for _ in range(times):
                x = torch.randn(3, 8)
                torch.testing.assert_close(self.compiled(x), self.eager(x))

    def events(self, kind: str) -> list[dict[str, Any]]:
        return [event for line in self.path.read_text().splitlines() if (event := json.loads(line))["kind"] == kind]

    def metric(self, name: str, suffix: str = "", **labels: str) -> float:
        return parse(burnish.metrics())[name].value(suffix, object=self.compiled.burnish.log.label, **labels)


def test_a_gate_decision_is_told(tmp_path: Path) -> None:
    watched = Watched(tmp_path)
    watched.call(5)
    (gate,) = watched.events("gate")
    (variant,) = burnish.stats(watched.compiled).variants
    assert gate["variant"] == "graph 1" and gate["seconds"] > 0
    assert gate["detail"]["engine"] == variant.engine
    state = variant.state.replace(" ", "_")
    assert watched.metric("burnish_variants", state=state, engine=variant.engine) == 1
    assert watched.metric("burnish_call_seconds", "_count", variant="graph 1", engine=variant.engine) >= 3


def test_wrong_numbers_are_a_rollback_with_its_cause(tmp_path: Path) -> None:
    watched = Watched(tmp_path, WrongBy(0.01))
    with pytest.warns(FallbackWarning):
        watched.call(3)
    (rollback,) = watched.events("rollback")
    assert rollback["variant"] == "graph 1" and rollback["reason"] and rollback["detail"] == {"cause": "numbers"}
    assert burnish.stats(watched.compiled).rollbacks == {"numbers": 1}
    assert watched.metric("burnish_rollbacks_total", cause="numbers") == 1
    assert watched.metric("burnish_variants", state="rolled_back", engine="eager") == 1
    assert watched.metric("burnish_call_seconds", "_count", variant="graph 1", engine="eager") >= 1, (
        "trials are not counted"
    )


def test_an_exception_is_a_rollback_with_its_cause(tmp_path: Path) -> None:
    watched = Watched(tmp_path, RaisesAtRun(after=2), verify="off", gate=False)
    with pytest.warns(FallbackWarning, match="injected"):
        watched.call(5)
    (rollback,) = watched.events("rollback")
    assert "injected" in rollback["reason"] and rollback["detail"] == {"cause": "exception"}
    assert watched.metric("burnish_rollbacks_total", cause="exception") == 1


def test_a_slower_variant_is_no_rollback(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("burnish.trust.gate.Gate._winner", lambda self, *measured: "eager")
    watched = Watched(tmp_path)
    watched.call(3)
    (gate,) = watched.events("gate")
    assert gate["detail"]["engine"] == "eager" and "takes longer" in gate["reason"]
    assert watched.events("rollback") == [] and burnish.stats(watched.compiled).rollbacks == {}


def test_a_background_compile_is_told_when_it_begins_and_when_it_serves(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    compiled = burnish.compile(lambda x: x.exp() * 2, name="behind", background=True, options={"events": path})
    x = torch.randn(4)
    torch.testing.assert_close(compiled(x), x.exp() * 2)
    assert compiled.burnish.wait(120)
    torch.testing.assert_close(compiled(x), x.exp() * 2)
    kinds = [json.loads(line)["kind"] for line in path.read_text().splitlines()]
    assert kinds.count("background_queued") == kinds.count("background_ready") == 1
    assert kinds.index("background_queued") < kinds.index("compiled") < kinds.index("background_ready")
    assert parse(burnish.metrics())["burnish_background_pending"].value(object="behind") == 0


@pytest.mark.filterwarnings("ignore::burnish.errors.FallbackWarning")
def test_a_budget_that_is_used_up_is_told() -> None:
    told: list[Event] = []
    done = threading.Event()  # the compiling thread may be the one that notices, after the call has returned

    def sink(event: Event) -> None:
        told.append(event)
        if event.kind == "budget_exceeded":
            done.set()

    compiled = burnish.compile(lambda x: x.exp() * 3, name="hurried", budget=0.001)
    compiled.burnish.log.sinks = (sink,)
    x = torch.randn(4)
    torch.testing.assert_close(compiled(x), x.exp() * 3)
    assert done.wait(60)
    (exceeded,) = (event for event in told if event.kind == "budget_exceeded")
    assert exceeded.seconds == 0.001 and exceeded.detail == {"tier": "eager"}
    assert parse(burnish.metrics())["burnish_events_total"].value(object="hurried", kind="budget_exceeded") == 1
