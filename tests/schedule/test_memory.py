"""The arena: what is alive together never overlaps, and what is not shares."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from burnish.ir.expr import sym
from burnish.schedule.memory import ALIGNMENT, Arena, Lifetime, lifetimes, peak_bytes, plan
from tests.programs import capture, schedules

COMMON = settings(derandomize=True, deadline=None, max_examples=200)


@st.composite
def buffers(draw: st.DrawFn) -> list[Lifetime]:
    out = []
    for k in range(draw(st.integers(0, 14))):
        first = draw(st.integers(0, 12))
        last = draw(st.integers(first, 13))
        out.append(Lifetime(f"b{k}", first, last, draw(st.sampled_from([0, 1, 4, 63, 64, 65, 200, 1000, 4096, 5000]))))
    return out


def rounded(n: int) -> int:
    return max(-(-n // ALIGNMENT) * ALIGNMENT, ALIGNMENT)


def together(a: Lifetime, b: Lifetime) -> bool:
    return a.first <= b.last and b.first <= a.last


def check(items: list[Lifetime], arena: Arena, bytes_of: dict[str, int]) -> None:
    for a in items:
        start = arena.offsets[a.name]
        assert start % ALIGNMENT == 0
        assert start >= 0 and start + bytes_of[a.name] <= arena.size
        for b in items:
            if a.name < b.name and together(a, b):
                at = arena.offsets[b.name]
                assert start + bytes_of[a.name] <= at or at + bytes_of[b.name] <= start, (a, b, arena)


@COMMON
@given(buffers())
def test_buffers_alive_together_never_overlap(items: list[Lifetime]) -> None:
    sizes = {b.name: b.size for b in items if isinstance(b.size, int)}
    arena = plan(items, {})
    check(items, arena, sizes)
    assert arena.size <= sum(rounded(n) for n in sizes.values())
    peak = max((sum(rounded(sizes[b.name]) for b in items if b.first <= t <= b.last) for t in range(14)), default=0)
    assert arena.size >= peak


@COMMON
@given(buffers(), st.integers(1, 50))
def test_symbolic_sizes_are_planned_for_each_call(items: list[Lifetime], n: int) -> None:
    scaled = [Lifetime(b.name, b.first, b.last, sym("s0") * b.size) for b in items]
    sizes = {b.name: n * b.size for b in items if isinstance(b.size, int)}
    check(scaled, plan(scaled, {"s0": n}), sizes)


def test_memory_is_used_again() -> None:
    """A chain needs two buffers at a time, however long it is."""
    chain = [Lifetime(f"b{k}", k, k + 1, 4096) for k in range(20)]
    assert plan(chain, {}).size == 2 * 4096


def test_one_after_the_other_share() -> None:
    arena = plan([Lifetime("a", 0, 1, 1000), Lifetime("b", 2, 3, 1000)], {})
    assert arena.offsets == {"a": 0, "b": 0}
    assert arena.size == 1024


def test_nothing_to_plan() -> None:
    assert plan([], {}) == Arena(0, {})


def test_lifetimes_of_a_schedule() -> None:
    """Sorting keeps fusion from joining the steps, so temporaries remain: none outlives its last reader."""

    def fn(x: torch.Tensor) -> torch.Tensor:
        for _ in range(5):
            x = (x.sort(1)[0] * 2).cumsum(0).sort(0)[0] + 1
        return x

    (got,) = capture(fn, torch.randn(8, 8))
    _, joined = schedules(got.captured)
    items = lifetimes(joined)
    assert len(items) >= 5
    for b in items:
        touching = [n for n, k in enumerate(joined.kernels) if b.name in k.reads | k.writes]
        assert (b.first, b.last) == (touching[0], touching[-1])
        assert b.size == 8 * 8 * 4
        assert joined.buffers[b.name].role == "temp"
    assert plan(items, {}).size < len(items) * 256


def test_the_peak_counts_what_is_alive_together() -> None:
    """Three sorts, one after the other: a result and its copy at a time, and the argument while it is wanted."""

    def fn(x: torch.Tensor) -> torch.Tensor:
        for _ in range(3):
            x = x.sort(1)[0]
        return x

    (got,) = capture(fn, torch.randn(64, 64))
    _, schedule = schedules(got.captured)
    one, places = 64 * 64 * 4, sum(b.dtype is not None for b in schedule.buffers.values())
    assert places >= 4
    kept = peak_bytes(schedule, {})
    assert 2 * one <= kept <= 3 * one  # not all four
    assert peak_bytes(schedule, {}, frozenset({0})) <= kept + one
