"""A schedule cut into partitions computes what the whole does, wherever it is cut."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from burnish.schedule.evaluate import evaluate_schedule
from burnish.schedule.graph_partitions import cut
from burnish.schedule.kernels import ExternKernel, Kernel
from tests.programs import capture, copies, schedules, sizes_of


def sorted_twice(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    a = torch.tanh(x * 2)
    b = torch.sort(a).values + a
    c = b.softmax(-1)
    return torch.sort(c, -1, descending=True).values * c.sum(), a, b.t()


def counting(cache: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    cache.add_(torch.cumsum(x.relu(), 0))
    y = torch.sort(cache * 2).values
    cache.mul_(y.mean())
    return torch.cat([y, cache.softmax(-1), x @ x.t()], -1)


FUNCTIONS: dict[str, tuple[Callable[..., Any], Callable[[], tuple[Any, ...]]]] = {
    "sorted twice": (sorted_twice, lambda: (torch.randn(7, 9),)),
    "writes an argument": (counting, lambda: (torch.randn(6, 6), torch.randn(6, 6))),
    "one kernel": (lambda x: x + 1, lambda: (torch.randn(5),)),
}


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("where", ["externs", "first", "last", "every second", "all", "none"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_partitions(name: str, where: str, dynamic: bool) -> None:
    fn, make = FUNCTIONS[name]
    (entry,) = capture(fn, *make(), dynamic=dynamic)
    _, schedule = schedules(entry.captured)
    number = {id(k): n for n, k in enumerate(schedule.kernels)}
    chosen: dict[str, Callable[[Kernel], bool]] = {
        "externs": lambda k: isinstance(k, ExternKernel),
        "first": lambda k: number[id(k)] == 0,
        "last": lambda k: number[id(k)] == len(number) - 1,
        "every second": lambda k: number[id(k)] % 2 == 0,
        "all": lambda k: True,
        "none": lambda k: False,
    }
    partitions = cut(schedule, len(entry.inputs), lambda k: "told to" if chosen[where](k) else "")
    assert sum(len(p.schedule.kernels) for p in partitions) == len(schedule.kernels)
    sizes = sizes_of(entry.captured, entry.inputs)
    whole, parts = copies(entry.inputs), copies(entry.inputs)
    expected = evaluate_schedule(schedule, whole, sizes)
    carried: list[Any] = []
    for partition in partitions:
        assert len(carried) == len(partition.carried_in)
        carried = evaluate_schedule(partition.schedule, [*parts, *carried], sizes)
    torch.testing.assert_close(carried, expected)
    torch.testing.assert_close(parts, whole)
