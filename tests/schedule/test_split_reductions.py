"""Reductions cut into splits mean what they meant whole."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from burnish.codegen.c.unit import generate
from burnish.ir.body import Reduced
from burnish.schedule.evaluate import evaluate_schedule
from burnish.schedule.gpu.split_reductions import split_reductions
from burnish.schedule.kernels import LoopKernel, Schedule
from tests.programs import capture, copies, schedules, sizes_of


def split(fn: Callable[..., Any], *inputs: torch.Tensor, dynamic: bool = False, least: int = 1 << 10) -> list[Schedule]:
    """The cut schedules of a function's graphs, each shown to mean the same as the whole one."""
    cut: list[Schedule] = []
    for entry in capture(fn, *inputs, dynamic=dynamic):
        _, whole = schedules(entry.captured)
        sizes = sizes_of(entry.captured, entry.inputs)
        after = split_reductions(whole, least=least)
        after.verify()
        generate(after)  # and every loop still prints
        want = evaluate_schedule(whole, copies(entry.inputs), sizes)
        got = evaluate_schedule(after, copies(entry.inputs), sizes)
        for w, g in zip(want, got, strict=True):
            torch.testing.assert_close(g, w, rtol=1e-5, atol=1e-4, equal_nan=True)
        cut.append(after)
    return cut


def reducing(schedule: Schedule) -> list[bool]:
    """For each loop, whether it reduces."""
    loops = [k.loop for k in schedule.kernels if isinstance(k, LoopKernel)]
    return [any(isinstance(i, Reduced) for i in loop.body) for loop in loops]


def randn(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, requires_grad=True)


def test_a_bias_gradient_becomes_partial_sums_and_their_sum() -> None:
    _, backward = split(lambda x, b: F.gelu(x + b), randn(512, 64), randn(64))
    assert reducing(backward) == [True, True]
    first, second = (k.loop for k in backward.kernels if isinstance(k, LoopKernel))
    assert "piece" in {a.name for a in first.parallel} and [a.name for a in second.reduction] == ["piece"]
    assert len(first.stores) == 2  # the gradient at every element is still written along the way


def normed(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    centred = x - x.mean((0, 2, 3), keepdim=True)
    return centred * torch.rsqrt(centred.pow(2).mean((0, 2, 3), keepdim=True) + 1e-5) * w[:, None, None]


def test_one_pass_after_another_ends_in_a_map() -> None:
    (forward, _) = split(normed, randn(16, 2, 20, 20), randn(2))
    assert reducing(forward) == [True, True, True, True, False]


@pytest.mark.parametrize("length", [40000, 40009])  # one that splits divide, and a prime
def test_a_reduction_over_everything(length: int) -> None:
    x = torch.randn(length)
    (cut,) = split(lambda x: (x.sum(), x.argmax(), x.amax(), x.argmin(), (x > 9).any(), (x.abs() > 0).all()), x)
    assert reducing(cut) == [True, True]


@pytest.mark.parametrize("length", [40000, 40009])
def test_the_first_of_equal_elements_wins_and_nan_beats_all(length: int) -> None:
    flat = torch.zeros(3, length)
    flat[1, [25000, 39000]] = float("nan")
    flat[2] = float("-inf")
    (cut,) = split(lambda x: (x.argmax(-1), x.argmin(-1), x.amax(-1)), flat)
    assert len(reducing(cut)) == 2


def test_integers_and_products() -> None:
    x = torch.randint(-3, 4, (30011,))
    split(lambda x: (x.sum(), x.amax(), x.amin(), torch.where(x == 0, 1, 1 - 2 * (x > 3)).prod()), x)


def test_symbolic_sizes() -> None:
    (cut,) = split(lambda x: (x * 2).sum(), torch.randn(300, 47), dynamic=True)
    assert reducing(cut) == [True, True]


def test_what_has_rows_enough_or_is_small_stays_whole() -> None:
    (cut,) = split(lambda x: x.softmax(-1), torch.randn(200, 4000))
    assert reducing(cut) == [True]
    (cut,) = split(lambda x: x.sum(), torch.randn(4000), least=1 << 18)
    assert reducing(cut) == [True]


def test_the_schedule_given_is_left_as_it_was() -> None:
    (entry,) = capture(lambda x: x.sum(), torch.randn(100_000))
    _, whole = schedules(entry.captured)
    before = str(whole)
    assert str(split_reductions(whole)) != before
    assert str(whole) == before
