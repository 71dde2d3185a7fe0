"""Memory planning of temporaries: one arena, with offsets such that buffers alive at the same time never overlap."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from burnish.ir.expr import Dim, evaluate
from burnish.schedule.kernels import Kernel, Schedule

ALIGNMENT = 64  # a cache line, and the widest vector


@dataclass(frozen=True)
class Lifetime:
    """A temporary's first and last kernel, and its size in bytes (symbolic where sizes are)."""

    name: str
    first: int
    last: int
    size: Dim


def lifetimes(schedule: Schedule) -> list[Lifetime]:
    first: dict[str, int] = {}
    last: dict[str, int] = {}
    for n, kernel in enumerate(schedule.kernels):
        for name in _touched(kernel):
            first.setdefault(name, n)
            last[name] = n
    out = []
    for name, buffer in schedule.buffers.items():
        if buffer.role == "temp" and name in first:
            assert buffer.dtype is not None
            out.append(Lifetime(name, first[name], last[name], buffer.extent * buffer.dtype.itemsize))
    return out


def peak_bytes(schedule: Schedule, sizes: Mapping[str, int], consumed: frozenset[int] = frozenset()) -> int:
    """The most that a run of the schedule has in memory at once: its arena, results from where they are first written,
    ATen calls' results to where they are last read, and of the arguments those that are `consumed`, which go when they
    have been read for the last time. Other arguments are the caller's."""
    first: dict[str, int] = {}
    last: dict[str, int] = {}
    for n, kernel in enumerate(schedule.kernels):
        for name in _touched(kernel):
            first.setdefault(name, n)
            last[name] = n
    results = schedule.result_buffers
    end = len(schedule.kernels)
    change = [0] * (end + 1)
    for name, b in schedule.buffers.items():
        begin, until = first.get(name, end), end if name in results else last.get(name, -1) + 1
        if b.role == "input":
            begin = 0 if b.position in consumed else end
        elif b.role not in ("output", "extern"):
            continue
        if b.dtype is not None and begin < until:
            size = evaluate(b.extent, sizes) * b.dtype.itemsize
            change[begin] += size
            change[until] -= size
    return plan(lifetimes(schedule), sizes).size + max(itertools.accumulate(change), default=0)


def _touched(kernel: Kernel) -> Sequence[str]:
    return [*kernel.reads, *kernel.writes]


@dataclass(frozen=True)
class Arena:
    size: int
    offsets: Mapping[str, int]


def plan(items: Sequence[Lifetime], sizes: Mapping[str, int]) -> Arena:
    """Largest first, each into the lowest gap left by those alive with it. Runs again for each set of sizes."""
    placed: list[tuple[Lifetime, int, int]] = []
    offsets: dict[str, int] = {}
    total = 0
    sized = [(max(_aligned(evaluate(item.size, sizes)), ALIGNMENT), item) for item in items]
    for size, item in sorted(sized, key=lambda si: (-si[0], si[1].first)):
        taken = sorted((at, at + n) for other, at, n in placed if other.first <= item.last and item.first <= other.last)
        spot = 0
        for start, end in taken:
            if spot + size <= start:
                break
            spot = max(spot, end)
        placed.append((item, spot, size))
        offsets[item.name] = spot
        total = max(total, spot + size)
    return Arena(total, offsets)


def _aligned(n: int) -> int:
    return (n + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT
