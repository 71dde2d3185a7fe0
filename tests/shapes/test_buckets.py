"""Boundaries of buckets: the dynamic programming finds what trying everything finds."""

from __future__ import annotations

import itertools
import math

from hypothesis import given, settings
from hypothesis import strategies as st

from burnish.shapes.buckets import MeasuredCost, Plan, elements, plan

COUNTS_1 = st.dictionaries(st.tuples(st.integers(1, 12)), st.integers(1, 9), min_size=1, max_size=7)
COUNTS_2 = st.dictionaries(st.tuples(st.integers(1, 4), st.integers(1, 6)), st.integers(1, 9), min_size=1, max_size=7)


def total(histogram, boundaries, cost, per_bucket):
    p = Plan(boundaries)
    buckets = [p.bucket(sizes) for sizes in histogram]
    if any(bucket is None for bucket in buckets):
        return math.inf
    ones = [any(s == 1 and 1 not in b for s, b in zip(sizes, boundaries, strict=True)) for sizes in histogram]
    if any(ones):
        return math.inf
    calls = sum(count * cost(bucket) for count, bucket in zip(histogram.values(), buckets, strict=True))
    return calls + per_bucket * p.cells


def tried(histogram, cap, cost, per_bucket):
    """The cheapest of all grids."""
    each = []
    for d in range(len(next(iter(histogram)))):
        sizes = sorted({key[d] for key in histogram})
        each.append([c for n in range(1, len(sizes) + 1) for c in itertools.combinations(sizes, n)])
    grids = [g for g in itertools.product(*each) if math.prod(map(len, g)) <= cap]
    return min((total(histogram, g, cost, per_bucket) for g in grids), default=math.inf)


@settings(max_examples=60, deadline=None)
@given(COUNTS_1, st.integers(1, 5), st.sampled_from((0.0, 3.0, 50.0)))
def test_one_dimension_is_optimal(histogram, cap, per_bucket):
    found = plan(histogram, cap, per_bucket=per_bucket)
    best = tried(histogram, cap, elements, per_bucket)
    if math.isfinite(best):  # a cap of 1 where size 1 needs a bucket of its own is exceeded
        assert math.isclose(found.cost, best)
        assert found.cells <= cap
    assert math.isclose(found.cost, total(histogram, found.boundaries, elements, per_bucket))


@settings(max_examples=60, deadline=None)
@given(COUNTS_2, st.integers(1, 6), st.sampled_from((0.0, 5.0)))
def test_a_grid_is_optimal(histogram, cap, per_bucket):
    found = plan(histogram, cap, per_bucket=per_bucket)
    best = tried(histogram, cap, elements, per_bucket)
    if math.isfinite(best):
        assert math.isclose(found.cost, best)
        assert found.cells <= cap
    assert math.isclose(found.cost, total(histogram, found.boundaries, elements, per_bucket))


@given(COUNTS_2, st.integers(1, 6))
@settings(max_examples=40, deadline=None)
def test_every_call_fits_its_bucket(histogram, cap):
    found = plan(histogram, cap)
    for sizes in histogram:
        bucket = found.bucket(sizes)
        assert bucket is not None and all(b >= s for b, s in zip(bucket, sizes, strict=True))
        assert all(b == 1 for b, s in zip(bucket, sizes, strict=True) if s == 1)


def test_many_sizes_in_three_dimensions_stay_under_the_cap() -> None:
    histogram = {(b, h, w): 1.0 for b in range(1, 9) for h in range(32, 232, 9) for w in range(32, 232, 9)}
    found = plan(histogram, 12)
    assert found.cells <= 12 and all(found.bucket(sizes) for sizes in histogram)
    one_each = Plan(((8,), (230,), (230,)))
    assert found.waste(histogram) < one_each.waste(histogram)


def test_a_limit_for_each_dimension_is_kept() -> None:
    histogram = {(b, s): 1.0 for b in range(2, 9) for s in range(8, 100, 7)}
    assert [len(each) for each in plan(histogram, 8, most=(1, 1)).boundaries] == [1, 1]


def test_a_bucket_that_costs_too_much_is_not_made() -> None:
    histogram = {(8,): 10.0, (9,): 10.0, (100,): 10.0}
    assert plan(histogram, 8).boundaries == ((8, 9, 100),)
    assert plan(histogram, 8, per_bucket=50.0).boundaries == ((9, 100),)
    assert plan(histogram, 8, per_bucket=1e6).boundaries == ((100,),)


def test_measured_costs_decide_where_they_are_known() -> None:
    # 16 takes as long as 12: a boundary at 12 saves nothing
    cost = MeasuredCost({(8,): 1.0, (12,): 4.0, (16,): 4.0})
    found = plan({(8,): 5.0, (12,): 5.0, (16,): 5.0}, 2, cost=cost)
    assert found.boundaries == ((8, 16),)
    assert cost((32,)) == 8.0


def test_sizes_beyond_the_largest_boundary_have_no_bucket() -> None:
    assert Plan(((8, 16),)).bucket((17,)) is None
    assert Plan(((8, 16),)).bucket((0,)) == (0,)
    assert plan({}, 4) == Plan(())
