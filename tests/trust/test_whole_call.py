"""The race of the user's whole call: each is made once, and who loses serves no more. Times are invented here."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch

from burnish.trust import whole_call
from burnish.trust.interval import Interval
from burnish.trust.whole_call import LAST_PAIR, MOST_PAIRS, Graphs, Surroundings, WholeCallRace

WARM = 2  # calls of a kind before the first one that is timed


class Around(Surroundings):
    def __init__(self) -> None:
        self.timeable = True
        self.news = 0
        self.allowed = 1e9
        self.graphs = Graphs()

    def can_time(self) -> bool:
        return self.timeable

    def activity(self) -> int:
        return self.news

    def watching(self) -> Callable[[], Graphs]:
        return lambda: self.graphs

    def allowance(self) -> float:
        return self.allowed


class Track:
    """A race in which a call of kind `k` takes `compiled(k)` or `eager(k)` seconds, and returns who served it."""

    def __init__(self, compiled: Callable[[Any], float], eager: Callable[[Any], float]) -> None:
        self.now = 0.0
        self.around = Around()
        self.served: list[str] = []
        self.changes = 0
        self.told: list[str] = []
        self.race = WholeCallRace(
            self._side("compiled", compiled),
            self._side("eager", eager),
            lambda args, kwargs: args[0],
            self.around,
            self._changed,
            lambda verdict: self.told.append(str(verdict)),
            clock=lambda: self.now,
        )

    def _side(self, name: str, seconds: Callable[[Any], float]) -> Callable[..., str]:
        def run(kind: Any) -> str:
            self.served.append(name)
            self.now += seconds(kind)
            return name

        return run

    def _changed(self) -> None:
        self.changes += 1

    def calls(self, count: int, *kinds: Any) -> list[str]:
        """How many of each kind, in turns; who served them."""
        return [self.race.call(kind) for _ in range(count) for kind in kinds or ("k",)]

    def settle(self) -> None:
        """Calls of kinds that are known, until nobody looks for others."""
        self.calls(whole_call._LINGERS + 1, *list(self.race._verdicts)[:1])


def constant(seconds: float) -> Callable[[Any], float]:
    return lambda kind: seconds


def test_a_loser_is_served_by_eager_after_five_pairs():
    track = Track(constant(1.5), constant(1.0))
    track.calls(WARM + 10)
    assert track.calls(3) == 3 * ["eager"]
    track.settle()
    assert track.race.outcome() == "eager" and track.changes
    (found,) = track.race.stats()
    assert found.served == "eager" and found.rounds == 5
    assert (found.low, found.ratio, found.high) == pytest.approx((1.5, 1.5, 1.5))
    assert str(found) == "k: served by eager, 0.67 x eager's speed (0.67 to 0.67, 5 rounds)" == track.told[0]


def test_a_winner_is_left_alone_after_five_pairs():
    track = Track(constant(0.9), constant(1.0))
    first = track.calls(WARM + 10)
    assert first[:WARM] == 2 * ["compiled"] and first.count("eager") == 5
    assert track.race.outcome() == "racing"
    track.settle()
    assert track.race.outcome() == "compiled" and track.served.count("eager") == 5


def test_each_call_is_made_once():
    track = Track(constant(0.9), constant(1.0))
    track.calls(200)
    assert len(track.served) == 200


def test_what_is_the_same_within_two_percent_is_no_loss():
    track = Track(constant(1.01), constant(1.0))
    track.calls(100)
    assert track.race.outcome() == "compiled"


@pytest.mark.parametrize("ratios", [(1.5, 0.7, 1.5, 0.7, 1.5), (1.0, 1.3, 1.0, 1.3, 1.0)])
def test_what_stays_unclear_without_a_gain_is_eagers(ratios):
    """Two pairs in five say the opposite: no interval is on one side."""
    noise = itertools.cycle(ratios)
    track = Track(lambda kind: next(noise), constant(1.0))
    track.calls(WARM + 2 * MOST_PAIRS)
    (found,) = track.race.stats()
    assert found.rounds == MOST_PAIRS and found.served == "eager" and found.low < 1.02 < found.high


def test_an_unclear_race_goes_on_where_there_is_something_to_gain():
    noise = itertools.cycle((0.7, 1.2, 0.7, 1.2, 0.7))
    track = Track(lambda kind: next(noise), constant(1.0))
    track.calls(WARM + 2 * LAST_PAIR)
    (found,) = track.race.stats()
    assert found.rounds > MOST_PAIRS and found.served == "compiled"


def test_kinds_that_are_raced_together_go_to_eager_where_it_is_unclear():
    """Their calls are of unlike sizes: a pair's ratio says as much of those as of who was faster."""
    noise = itertools.cycle((0.7, 1.2, 0.7, 1.2, 0.7))
    track = Track(lambda kind: next(noise), constant(1.0))
    track.calls(1, *range(whole_call._MOST_KINDS))
    track.calls(2 * MOST_PAIRS + 2, *range(whole_call._MOST_KINDS, 10 * whole_call._MOST_KINDS))
    assert track.race.stats()[-1].served == "eager"


def test_data_that_alternates_favours_nobody():
    """Every second call is ten times as long, for both; ours is a little faster."""
    lengths = itertools.cycle([1.0, 10.0])
    length = 0.0

    class Alternating(Track):
        def calls(self, count: int, *kinds: Any) -> list[str]:
            nonlocal length
            found = []
            for _ in range(count):
                length = next(lengths)
                found.append(self.race.call("k"))
            return found

    track = Alternating(lambda kind: 0.95 * length, lambda kind: length)
    track.calls(WARM + 2 * LAST_PAIR)
    assert [found.served for found in track.race.stats()] == ["compiled"]


def test_short_calls_count_from_the_second_of_a_turn_on():
    """The first after the other's finds cold caches, which cost eager more here; in a loop eager is faster."""
    track = Track(constant(0.0), constant(0.0))

    def takes(cold: float, warm: float) -> Callable[[Any], float]:
        return lambda kind: 1e-6 * (warm if track.served[-2:-1] == track.served[-1:] else cold)

    sides = takes(110.0, 110.0), takes(150.0, 100.0)
    track.race = WholeCallRace(
        track._side("compiled", sides[0]), track._side("eager", sides[1]), lambda args, kwargs: "k", track.around,
        clock=lambda: track.now,
    )  # fmt: skip
    track.calls(40)
    (found,) = track.race.stats()
    assert found.served == "eager" and found.ratio == pytest.approx(1.1) and found.rounds == 5


def test_kinds_with_different_outcomes_are_a_mixture():
    track = Track(lambda kind: 2.0 if kind == "small" else 0.5, constant(1.0))
    track.calls(WARM + 10, "small", "large")
    assert track.calls(2, "small", "large") == 2 * ["eager", "compiled"]
    track.settle()
    assert track.race.outcome() == "mixed" and track.race.lost(("small",), {}) and not track.race.lost(("large",), {})


def test_a_kind_that_comes_later_opens_the_race_again():
    track = Track(lambda kind: 2.0 if kind == "new" else 0.5, constant(1.0))
    track.calls(WARM + 10)
    track.settle()
    changes = track.changes
    track.race.call("new")
    assert track.race.outcome() == "racing" and track.changes == changes + 1
    track.calls(WARM + 10, "new")
    assert track.calls(1, "new", "k") == ["eager", "compiled"]


def test_a_kind_that_never_comes_again_does_not_keep_the_race_open():
    track = Track(constant(0.5), constant(1.0))
    track.race.call("once")
    track.calls(WARM + 10)
    track.settle()
    assert track.race.outcome() == "compiled"


def test_too_few_pairs_say_so():
    track = Track(constant(0.01), constant(1.0))
    track.calls(WARM + 4)
    (found,) = track.race.stats()
    assert found.ratio is None and found.rounds == 2 and found.served == "racing"
    assert str(found) == "k: still racing, 2 rounds, not enough for a ratio"


@pytest.mark.parametrize(("compiled", "pairs"), [(0.5, 2), (0.95, 5), (1.5, 5)])
def test_long_calls_that_are_clearly_won_are_raced_twice_only(compiled, pairs):
    track = Track(constant(compiled), constant(1.0))
    track.around.allowed = 2.0
    track.calls(WARM + 2 * pairs)
    (found,) = track.race.stats()
    assert found.rounds == pairs and found.served == ("eager" if compiled > 1 else "compiled")


@pytest.mark.parametrize(
    ("compiled", "graphs", "turns"), [(0.5, 0.9, 0), (0.5, 0.55, 2), (0.5, None, 2), (0.005, 0.009, 5)]
)
def test_long_calls_that_take_less_than_their_graphs_in_eager_are_not_raced(compiled, graphs, turns):
    """The original cannot win: it runs what is in the graphs, and more. Short calls are raced all the same."""
    track = Track(constant(compiled), constant(1.0 if compiled > 0.1 else 0.01))
    track.around.allowed = 2.0
    track.around.graphs = Graphs(eager=graphs)
    track.calls(30)
    assert track.served.count("eager") == turns and [found.served for found in track.race.stats()] == ["compiled"]


def test_an_exception_is_the_callers_and_ends_the_pair():
    def sometimes(kind: Any) -> float:
        if kind == "bad":
            raise ValueError("the caller's own")
        return 1.0

    track = Track(sometimes, sometimes)
    for _ in range(WARM + 12):
        with pytest.raises(ValueError, match="own"):
            track.race.call("bad")
    assert track.race.outcome() == "racing"
    track.calls(WARM + 10)
    assert [found.served for found in track.race.stats()] == ["racing", "compiled"]


def test_a_call_that_raises_for_once_is_in_no_pair():
    boom = iter([1.0] * WARM + [1.5])

    def compiled(kind: Any) -> float:
        if (seconds := next(boom, None)) is None:
            raise ValueError
        return seconds

    track = Track(compiled, constant(1.0))
    track.calls(WARM + 1)
    assert track.race._kinds["k"].half == ("compiled", 1.5)
    track.calls(1)
    assert len(track.race._kinds["k"].ratios) == 1
    track.calls(1)  # eager begins the second pair
    with pytest.raises(ValueError):
        track.calls(1)
    assert track.race._kinds["k"].half is None and len(track.race._kinds["k"].ratios) == 1


def test_what_raises_for_ever_is_left_to_the_graphs(monkeypatch):
    monkeypatch.setattr(whole_call, "_PATIENCE", 10)

    def never(kind: Any) -> float:
        raise ValueError

    track = Track(never, never)
    for _ in range(12):
        with pytest.raises(ValueError):
            track.race.call("k")
    assert "left to the graphs' own races" in track.told[0] and len(track.race.stats()) == 1


def test_what_must_not_be_served_by_turns_is_left_to_the_graphs():
    track = Track(constant(2.0), constant(1.0))
    track.around.exempt = lambda: "ranks must not decide alone"
    track.calls(30)
    assert track.served == 30 * ["compiled"] and "ranks must not decide alone" in track.told[0]


def test_a_call_in_which_something_is_compiled_or_judged_is_not_timed():
    track = Track(constant(0.5), constant(1.0))
    compile_first = itertools.chain([True] * 4, itertools.repeat(False))
    ordinary = track.race._compiled

    def compiled(kind: Any) -> str:
        track.around.news += next(compile_first)
        return ordinary(kind)

    track.race._compiled = compiled
    track.calls(4 + WARM)
    assert track.served == (4 + WARM) * ["compiled"] and track.race._kinds["k"].quiet == WARM
    track.around.news += 1
    track.calls(10)
    assert [found.served for found in track.race.stats()] == ["compiled"]


def test_what_cannot_be_timed_is_served_compiled():
    track = Track(constant(2.0), constant(1.0))
    track.around.timeable = False
    track.calls(50)
    assert track.served == 50 * ["compiled"] and track.race.stats() == ()


def test_calls_within_a_call_and_of_other_threads_are_not_timed():
    track = Track(constant(2.0), constant(1.0))
    inner: list[str] = []
    ordinary = track.race._eager

    def eager(kind: Any) -> str:
        inner.append(track.race.call(kind))
        other = threading.Thread(target=lambda: inner.append(track.race.call(kind)))
        other.start()
        other.join()
        return ordinary(kind)

    track.race._eager = eager
    track.calls(WARM + 2)
    assert inner == ["compiled", "compiled"] and len(track.race._kinds["k"].ratios) == 1


def test_many_threads_decide_once():
    track = Track(constant(2.0), constant(1.0))
    barrier = threading.Barrier(16)

    def work() -> None:
        barrier.wait()
        track.calls(50)

    threads = [threading.Thread(target=work) for _ in range(16)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert len(track.served) == 16 * 50 and len(track.told) <= 1


def test_what_is_forgotten_while_a_call_is_timed_decides_nothing():
    track = Track(constant(2.0), constant(1.0))
    track.calls(WARM + 9)
    ordinary = track.race._eager, track.race._compiled

    def forgetting(kind: Any) -> str:  # rolled back by the user, or another thread, meanwhile
        track.race.forget()
        return ordinary[0](kind)

    track.race._eager = track.race._compiled = forgetting
    track.calls(1)
    assert track.told == [] and track.race.outcome() == "racing" and track.race.stats() == ()
    track.race._eager, track.race._compiled = ordinary
    track.calls(WARM + 10)
    assert len(track.told) == 1


def test_kinds_beyond_those_that_are_kept_apart_race_together():
    track = Track(constant(1.6), constant(1.0))
    track.calls(1, *range(whole_call._MOST_KINDS))
    sizes = itertools.count(1000)
    served = [track.race.call(next(sizes)) for _ in range(100)]
    assert served[-20:] == 20 * ["eager"]
    assert "all other kinds: served by eager" in str(track.race.stats()[-1]) and len(track.race._kinds) == 33


def with_gradient(track: Track) -> None:
    """Results that require gradients."""
    for side in ("_compiled", "_eager"):
        ordinary = getattr(track.race, side)
        setattr(track.race, side, lambda kind, run=ordinary: run(kind) and torch.ones(1, requires_grad=True))


@pytest.mark.parametrize(("backward", "served"), [(1.0, "compiled"), (5.0, "eager")])
def test_of_a_training_step_the_backward_counts_as_the_gate_measured_it(backward, served):
    """A forward that takes twice as long may belong to the faster step."""
    track = Track(constant(2.0), constant(1.0))
    with_gradient(track)
    track.around.graphs = Graphs(backward, 4.0)
    track.calls(WARM + 10)
    assert [found.served for found in track.race.stats()] == [served]
    assert track.race.stats()[0].eager_us == pytest.approx(5e6)


def test_a_training_step_whose_backward_was_not_measured_is_left_to_the_graphs():
    track = Track(constant(2.0), constant(1.0))
    with_gradient(track)
    track.around.graphs = Graphs(None, None)
    track.calls(WARM + 10)
    assert "eager" not in track.served and "a training step" in track.told[0]


# --- the interval ---------------------------------------------------------------------------------------------------


def test_there_is_no_interval_of_few_values():
    assert Interval.of([1.0, 2.0, 3.0, 4.0]) is None
    assert Interval.of([3.0, 1.0, 2.0, 5.0, 4.0]) == Interval(1.0, 3.0, 5.0, 5)


@pytest.mark.parametrize(("rounds", "outside"), [(5, 0), (8, 0), (9, 1), (11, 1), (25, 7)])
def test_the_interval_leaves_out_as_many_as_the_odds_allow(rounds, outside):
    interval = Interval.of([float(i) for i in range(rounds)])
    assert (interval.low, interval.high) == (outside, rounds - 1 - outside)


def test_a_benchmark_can_wait_until_all_is_decided():
    from burnish.tools.bench.warmup import until_decided

    class Handle:
        calls = 0

        @property
        def is_racing(self) -> bool:
            return self.calls < 7

    class Model:
        burnish = Handle()

    def call() -> None:
        Model.burnish.calls += 1

    until_decided(Model(), call)
    assert Model.burnish.calls == 7
    until_decided(object(), call), until_decided(Model(), call)
    assert Model.burnish.calls == 7
