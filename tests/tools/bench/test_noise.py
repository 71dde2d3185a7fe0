"""The cause of a spread: each one alone, the strongest first, and none invented."""

from __future__ import annotations

import dataclasses
import gc

import pytest

from burnish.tools.bench.noise import Watch, cpu_seconds, likely_causes
from tests.tools.bench.results import QUIET


def test_a_quiet_machine_explains_nothing() -> None:
    assert likely_causes(QUIET) == ()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"other_cores": 0.8}, "a noisy neighbour: other processes used 0.8 of 2 cores"),
        ({"switches_per_second": 400.0}, "a noisy neighbour: taken off a core 400 times a second"),
        ({"steal_cores": 0.2}, "the hypervisor gave 0.20 cores of time to other machines"),
        ({"frequency_drop": 0.3}, "clocks that moved: the slowest reading was 30 % below the fastest"),
        ({"throttle_events": 5}, "thermal throttling: the processor slowed itself down 5 times"),
        ({"quota_seconds": 2.0}, "the container's CPU quota paused it for 2.0 s"),
        ({"threads": 8}, "8 threads on 2 cores"),
        ({"gc_seconds": 0.5}, "Python's garbage collector ran for 0.50 s"),
        ({"gpu_busy_before": 0.6}, "a busy GPU: 60 % in use before the measurement began"),
        ({"gpu_throttled_by": ("power cap",)}, "a throttling GPU: power cap"),
        ({"gpu_clock_drop": 0.2}, "GPU clocks that moved by 20 %"),
    ],
)
def test_each_cause_has_its_words(change: dict[str, object], words: str) -> None:
    assert likely_causes(dataclasses.replace(QUIET, **change)) == (words,)


def test_the_strongest_cause_is_named_first() -> None:
    causes = likely_causes(dataclasses.replace(QUIET, other_cores=0.2, throttle_events=3, gc_seconds=0.2))
    assert [cause.split(":")[0] for cause in causes] == [
        "thermal throttling",
        "a noisy neighbour",
        "Python's garbage collector ran for 0.20 s",
    ]


def test_proc_stat_is_read() -> None:
    busy, steal = cpu_seconds("cpu  100 10 50 9999 5 20 20 300 0 0\ncpu0 1 1 1 1\n")
    assert busy == pytest.approx(steal / 300 * 200)
    assert cpu_seconds(None) == (None, None) and cpu_seconds("nonsense") == (None, None)


def test_a_watch_counts_the_garbage_collector_and_leaves_nothing_behind() -> None:
    now = [0.0]

    def clock() -> float:
        now[0] += 1.0
        return now[0]

    callbacks = len(gc.callbacks)
    watch = Watch(threads=2, clock=clock)
    watch.start()
    gc.collect()
    assert watch.look()
    activity = watch.activity()
    assert activity.gc_seconds == pytest.approx(1.0) and activity.seconds > 1.0
    assert len(gc.callbacks) == callbacks
