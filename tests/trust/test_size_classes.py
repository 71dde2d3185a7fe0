"""A graph with symbolic sizes is judged anew where its work leaves what was judged. Times are invented here."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch

import burnish
from burnish.runtime.cache.store import Cache
from burnish.trust import size_classes, variant
from burnish.trust.engines import Engines
from burnish.trust.gate import Gate, GraphFacts
from burnish.trust.size_classes import SizeClasses
from burnish.trust.stored_verdicts import Verdicts
from burnish.trust.variant import Policy, Variant

FACTS = GraphFacts("inference", sizes=(0,))


class Graph:
    """A variant over `n` and a tensor. Ours takes 1 s; eager takes as long up to `limit`, and half of it above."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, *, limit: int, wrong_from: int = 1 << 60, verdicts: Any = None
    ) -> None:
        self.now = 0.0
        self.served: list[str] = []
        self.raced: list[int] = []
        self.verdicts = 0

        def eager(n: int, x: torch.Tensor) -> tuple[torch.Tensor]:
            self._serves("eager")
            self.now += 2e-3 if n <= limit else 5e-4
            return (x + 1,)

        def ours(n: int, x: torch.Tensor) -> tuple[torch.Tensor]:
            self._serves("burnish")
            self.now += 1e-3
            return (x + 1 + (n >= wrong_from),)

        graph = self

        class Clocked(Gate):
            def __init__(self, *args: Any, **settings: Any) -> None:
                super().__init__(*args, **settings, clock=lambda: graph.now)

            def judge(self, eager: Any, engines: Any, args: Any, *rest: Any) -> Any:
                graph.raced.append(args[0])
                return super().judge(eager, engines, args, *rest)

        monkeypatch.setattr(variant, "Gate", Clocked)
        self.variant = Variant(1, FACTS, Engines(FACTS, eager, {"burnish": ours}), Policy(), verdicts=verdicts)
        self.variant.on_verdict = self._verdict

    def _serves(self, engine: str) -> None:
        if threading.current_thread() is threading.main_thread():  # the one that compares samples runs eager, too
            self.served.append(engine)

    def _verdict(self) -> None:
        self.verdicts += 1

    def call(self, n: int) -> str:
        """Who serves a call of this size; its result is always right."""
        before = len(self.raced)
        result = self.variant.call(n, torch.zeros(2))
        assert result[0].tolist() == [1.0, 1.0]
        return "a race" if len(self.raced) > before else self.served[-1]


def test_a_verdict_holds_for_a_factor_of_four_and_is_found_anew_beyond(monkeypatch):
    graph = Graph(monkeypatch, limit=1000)
    assert [graph.call(n) for n in (4, 4, 5, 2, 15)] == ["a race", "burnish", "burnish", "burnish", "burnish"]
    assert [graph.call(n) for n in (20000, 20000, 4, 40000)] == ["a race", "eager", "burnish", "eager"]
    assert graph.raced == [4, 20000] and graph.verdicts == 2
    found = graph.variant.stats()
    assert found.state == "compiled" and [(each.work, each.engine) for each in found.classes] == [
        (4, "burnish"), (16384, "eager"),
    ]  # fmt: skip
    assert "work of 16,384: eager" in str(found)


def test_what_lost_when_it_was_small_may_win_when_it_is_large(monkeypatch):
    graph = Graph(monkeypatch, limit=1 << 40)
    slow = graph.variant.eager

    def quick_when_small(n: int, x: torch.Tensor) -> Any:
        graph.now -= 1.8e-3 if n < 8 else 0.0
        return slow(n, x)

    graph.variant.eager = quick_when_small
    assert [graph.call(n) for n in (4, 4)] == ["a race", "eager"]
    assert graph.variant.stats().state == "eager"
    assert [graph.call(n) for n in (1000, 1000, 4)] == ["a race", "burnish", "eager"]
    assert graph.variant.stats().state == "compiled" and graph.variant.engine == "burnish"


def test_a_program_that_is_wrong_at_another_size_is_rolled_back(monkeypatch):
    graph = Graph(monkeypatch, limit=1000, wrong_from=100)
    assert [graph.call(n) for n in (4, 500, 4)] == ["a race", "a race", "eager"]
    assert graph.variant.stats().state == "rolled back" and "off by" in graph.variant.stats().reason


def test_there_are_so_many_races_and_no_more(monkeypatch):
    monkeypatch.setattr(size_classes, "MOST", 3)
    graph = Graph(monkeypatch, limit=1000)
    assert [graph.call(1 << bits) for bits in (2, 6, 14)] == 3 * ["a race"]
    assert [graph.call(1 << bits) for bits in (30, 11, 9)] == ["eager", "eager", "burnish"]
    assert len(graph.raced) == 3


def test_calls_of_other_threads_do_not_wait_for_a_race(monkeypatch):
    graph = Graph(monkeypatch, limit=1000)
    graph.call(4)
    others: list[str] = []
    eager = graph.variant.eager

    def eager_beside(n: int, x: torch.Tensor) -> Any:
        other = threading.Thread(target=lambda: others.append(graph.call(20000)))
        if not others:
            others.append("began")
            other.start()
            other.join()
        return eager(n, x)

    graph.variant.eager = eager_beside
    graph.call(20000)
    assert others == ["began", "burnish"] and graph.raced == [4, 20000]


def test_rolling_back_ends_classes_and_a_retry_begins_anew(monkeypatch):
    from burnish.trust.gate import Failure

    graph = Graph(monkeypatch, limit=1000)
    graph.call(4), graph.call(20000)
    graph.variant.roll_back(Failure("asked", asked=True))
    assert [graph.call(n) for n in (4, 1 << 30)] == ["eager", "eager"]
    graph.variant.retry()
    assert [graph.call(n) for n in (20000, 4)] == ["a race", "a race"]


def test_another_process_knows_what_was_raced(monkeypatch, tmp_path):
    cache = Cache(tmp_path / "cache", 1 << 30)
    for expected in (["a race", "a race", "a race"], ["burnish", "burnish", "a race"]):
        graph = Graph(monkeypatch, limit=1000, verdicts=Verdicts(cache, (("program", "abc"),), lambda: 0.0))
        assert [graph.call(n) for n in (4, 100, 20000)] == expected  # what lost is raced again


def test_the_product_of_all_symbols_is_the_work():
    classes = SizeClasses((0, 2), unjudged=lambda boxed: "unjudged")
    classes.put(classes.of((8, "x", 16)), lambda boxed: "known", "burnish", None)
    assert [classes.serve([a, "x", b]) for a, b in ((8, 16), (128, 1), (1, 3), (1 << 40, 1 << 40), (0, 5))] == [
        "known", "known", "unjudged", "unjudged", "unjudged",
    ]  # fmt: skip


def test_sizes_that_are_numbers_have_no_classes():
    x = torch.randn(4, 6)
    compiled = burnish.compile(lambda x: x.sin() * 2, gate=True, dynamic=False)
    compiled(x)
    (found,) = burnish.stats(compiled).variants
    assert found.classes == ()


@pytest.mark.parametrize("seal", [False, True])
def test_a_model_at_another_size_is_raced_again_open_or_sealed(monkeypatch, seal):
    raced: list[int] = []
    ordinary = Gate.judge

    def judge(self: Gate, eager: Any, engines: Any, args: Any, *rest: Any) -> Any:
        raced.append(next(x.shape[0] for x in args if isinstance(x, torch.Tensor)))
        return ordinary(self, eager, engines, args, *rest)

    monkeypatch.setattr(Gate, "judge", judge)
    monkeypatch.setattr(Gate, "_winner", lambda self, *measured: "burnish")
    compiled = burnish.compile(lambda x: (x.sin() * 2).sum(-1), dynamic=True, gate=True)
    with torch.no_grad():
        compiled(torch.randn(4, 6))
        if seal:
            burnish.seal(compiled)
        for rows in (5, 4000, 4, 5000):
            x = torch.randn(rows, 6)
            torch.testing.assert_close(compiled(x), (x.sin() * 2).sum(-1))
    assert raced == [4, 4000]


# --- slow values -----------------------------------------------------------------------------------------------------


def of_static_size(monkeypatch: pytest.MonkeyPatch) -> tuple[Graph, Variant]:
    graph = Graph(monkeypatch, limit=1000)
    facts = GraphFacts("inference")
    engines = Engines(facts, graph.variant.eager, graph.variant._engines.compiled)
    return graph, Variant(1, facts, engines, Policy())


def test_sampled_calls_that_are_slow_have_the_graph_raced_again(monkeypatch):
    """Eager took 2 ms in the race, ours 1 ms; with other values ours takes 3 ms."""
    graph, found = of_static_size(monkeypatch)
    found.call(4, torch.zeros(2))
    for seconds in (3e-3, 3e-3, 3e-3, 1e-3, 3e-3):
        found.took(seconds)
    assert not found.is_provisional
    found.took(3e-3)
    assert found.is_provisional and found.state == "compiled" and graph.raced == [4]
    found.call(5, torch.zeros(2))
    assert graph.raced == [4, 5] and not found.is_provisional and found.engine == "burnish"


def test_slow_samples_do_not_race_for_ever(monkeypatch):
    graph, found = of_static_size(monkeypatch)
    for _ in range(10):
        found.call(4, torch.zeros(2))
        for _ in range(4):
            found.took(3e-3)
    assert len(graph.raced) == 1 + 3


def test_a_variant_that_eager_serves_is_not_raced_for_slow_samples(monkeypatch):
    from burnish.trust.gate import Failure

    _, found = of_static_size(monkeypatch)
    found.call(4, torch.zeros(2))
    found.roll_back(Failure("asked", asked=True))
    for _ in range(8):
        found.took(3e-3)
    assert not found.is_provisional and found.state == "rolled back"
