"""Histograms, traces and distributions of sizes."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from burnish.errors import BadDistribution, BadTrace
from burnish.shapes.traffic import SizeHistogram, counted, distributions, drawn, read_trace, write_trace


@given(st.lists(st.tuples(st.integers(0, 500), st.integers(0, 50)), min_size=1, max_size=300))
def test_a_histogram_is_bounded_and_keeps_the_largest_sizes(calls):
    histogram = SizeHistogram(most=8, window=64)
    for sizes in calls:
        histogram.add(sizes)
        assert len(histogram.counts()) <= 8
    assert histogram.calls == len(calls)


def test_the_largest_size_is_not_dropped() -> None:
    histogram = SizeHistogram(most=8)
    histogram.add((500,))
    for n in range(200):
        histogram.add((n % 20,))
    assert (500,) in histogram.counts()


def test_old_calls_fade() -> None:
    histogram = SizeHistogram(window=100)
    for _ in range(1000):
        histogram.add((8,))
    for _ in range(200):
        histogram.add((64,))
    counts = histogram.counts()
    assert counts[(64,)] > counts[(8,)]


def test_a_trace_comes_back(tmp_path) -> None:
    requests = drawn("lognormal:8-512,batch=1-8", 50, seed=3)
    assert requests == drawn("lognormal:8-512,batch=uniform:1-8", 50, seed=3)
    assert requests != drawn("lognormal:8-512,batch=1-8", 50, seed=4)
    write_trace(tmp_path / "trace.json", requests)
    assert read_trace(tmp_path / "trace.json") == requests
    assert sum(counted(requests, ("batch", "sequence")).values()) == 50
    assert all(8 <= r["sequence"] <= 512 and 1 <= r["batch"] <= 8 for r in requests)


@pytest.mark.parametrize("kind", ["lognormal:8-512", "uniform:8-512", "zipf:8-512", "8-512"])
def test_draws_are_in_range_and_differ(kind) -> None:
    sizes = [r["sequence"] for r in drawn(kind, 400)]
    assert min(sizes) >= 8 and max(sizes) <= 512 and len(set(sizes)) > 20


@pytest.mark.parametrize("text", ["", "normal:1-8", "uniform:8-1", "8-", "lognormal:8", "batch=", "1-8,2-9", "-3"])
def test_bad_distributions_say_how_to_write_one(text) -> None:
    with pytest.raises(BadDistribution, match="lognormal:8-512"):
        distributions(text)


@pytest.mark.parametrize(
    "content",
    ["", "{}", "[]", "[3]", '[{"a": -1}]', '[{"a": true}]', '[{"a": 1}, {"b": 1}]', '[{"a": "x"}]', "[{}]"],
)
def test_bad_traces_say_what_is_wrong(tmp_path, content) -> None:
    path = tmp_path / "trace.json"
    path.write_text(content)
    with pytest.raises(BadTrace, match="A trace is a JSON list"):
        read_trace(path)


def test_a_missing_trace_is_named(tmp_path) -> None:
    with pytest.raises(BadTrace, match="cannot be read"):
        read_trace(tmp_path / "none.json")


def test_a_written_trace_is_json(tmp_path) -> None:
    write_trace(tmp_path / "t.json", [{"sequence": 3}])
    assert json.loads((tmp_path / "t.json").read_text()) == [{"sequence": 3}]
