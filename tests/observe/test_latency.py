"""Latencies: counted in the right bucket, exactly, from any number of threads; and not at all unless asked for."""

from __future__ import annotations

import sys
import threading

import pytest
import torch

import burnish
from burnish.observe.latency import BOUNDS_NS, BOUNDS_SECONDS, Histogram


def test_buckets() -> None:
    histogram = Histogram("graph 1", "burnish")
    for nanoseconds in (0, 1024, 1025, 2048, BOUNDS_NS[-1], BOUNDS_NS[-1] + 1):
        histogram.observe(nanoseconds)
    found = histogram.snapshot()
    assert found.calls == 6 and len(found.counts) == len(found.bounds) + 1
    assert found.counts[:2] == (2, 2), "a bound belongs to the bucket below it"
    assert found.counts[-2:] == (1, 1)
    assert found.seconds == pytest.approx((4097 + 2 * BOUNDS_NS[-1] + 1) / 1e9)


def test_quantiles_are_within_their_bucket() -> None:
    histogram = Histogram("", "burnish")
    assert histogram.snapshot().quantile(0.5) == 0.0
    for _ in range(99):
        histogram.observe(3_000)
    histogram.observe(1_000_000)
    found = histogram.snapshot()
    assert 2.048e-6 <= found.quantile(0.5) <= 4.096e-6
    assert 2.048e-6 <= found.quantile(0.99) <= 4.096e-6
    assert 524e-6 <= found.quantile(0.999) <= 1049e-6
    histogram.observe(10**12)
    assert histogram.snapshot().quantile(1.0) == BOUNDS_SECONDS[-1]


def test_a_timed_call_gives_its_result_and_counts_what_returned() -> None:
    histogram = Histogram("", "burnish")

    timed = histogram.timed(lambda boxed: 6 / boxed[0])
    assert timed([3]) == 2.0
    with pytest.raises(ZeroDivisionError):
        timed([0])
    assert histogram.snapshot().calls == 1


def test_threads_lose_no_count() -> None:
    histogram = Histogram("", "burnish")
    timed = histogram.timed(list)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=lambda: [timed(()) for _ in range(5000)]) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert histogram.snapshot().calls == 20000


def test_off_by_default() -> None:
    compiled = burnish.compile(lambda x: x + 1)
    compiled(torch.randn(3))
    assert burnish.stats(compiled).latency == ()
    assert burnish.stats(compiled).compiles == 1


def test_calls_are_counted_by_variant_and_engine() -> None:
    compiled = burnish.compile(lambda x: x.exp() + 1, dynamic=False, options={"latency": True})
    for rows, calls in ((2, 5), (3, 7)):
        for _ in range(calls):
            compiled(torch.randn(rows))
    stats = burnish.stats(compiled)
    assert stats.compiles == 2
    by_variant = {name: sum(e.calls for e in stats.latency if e.variant == name) for name in ("graph 1", "graph 2")}
    assert by_variant["graph 1"] in (4, 5) and by_variant["graph 2"] in (6, 7), "the first call may be a trial"
    assert {entry.engine for entry in stats.latency} <= {"burnish", "eager"}
    assert "p50" in str(stats)
    compiled.burnish.reset()
    assert burnish.stats(compiled).latency == ()
