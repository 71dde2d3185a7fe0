"""Sums over rows that ride along with the kernel that works on the rows: the same numbers, fewer kernels."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from burnish.fuel import Fuel
from burnish.ir.body import Load, Reduced
from burnish.schedule.evaluate import ScheduleEvaluation, evaluate_schedule
from burnish.schedule.gpu.column_sums import join_columns
from burnish.schedule.kernels import LoopKernel, Schedule
from tests.programs import Capture, capture, copies, schedules

ROWS, WIDTH = 96, 128


def norm_and_bias() -> Capture:
    """The gradient of a layer norm behind a bias: three sums over rows beside two over columns."""
    x, residual = (torch.randn(3, ROWS // 3, WIDTH, requires_grad=True) for _ in range(2))
    vectors = [torch.randn(WIDTH, requires_grad=True) for _ in range(3)]

    def fn(x: torch.Tensor, residual: torch.Tensor, *vectors: torch.Tensor) -> torch.Tensor:
        w, b, bias = vectors
        return F.layer_norm(x + bias + residual, (WIDTH,), w, b)

    _, backward = capture(fn, x, residual, *vectors)
    return backward


def totals(schedule: Schedule) -> list[str]:
    loops = [k.loop for k in schedule.kernels if isinstance(k, LoopKernel)]
    return [s.buffer for loop in loops for s in loop.stores if s.mode == "total"]


def large_reads(schedule: Schedule) -> int:
    """How many times something as large as the input is read."""
    loops = [k.loop for k in schedule.kernels if isinstance(k, LoopKernel)]
    return sum(
        schedule.buffers[i.buffer].elements == ROWS * WIDTH for loop in loops for i in loop.body if isinstance(i, Load)
    )


def test_sums_of_a_norms_gradient_ride_along() -> None:
    backward = norm_and_bias()
    _, apart = schedules(backward.captured)
    joined = join_columns(apart.copy(), programs=12)
    joined.verify()
    assert len(totals(joined)) == 3
    assert len(joined.kernels) == 2  # the rows, and the sums of the programs' sums
    assert large_reads(joined) < large_reads(apart)
    rows = next(k.loop for k in joined.kernels if isinstance(k, LoopKernel) and totals(Schedule({}, [k], [])))
    assert [a.size for a in rows.axes] == [3, 4, 8, WIDTH]  # 12 programs of 8 rows
    want = evaluate_schedule(apart, copies(backward.inputs))
    got = evaluate_schedule(joined, copies(backward.inputs))
    for g, w in zip(got, want, strict=True):
        if isinstance(w, torch.Tensor):
            torch.testing.assert_close(g, w, rtol=1e-5, atol=1e-5)


def test_what_the_programs_stored_before_does_not_count() -> None:
    joined = join_columns(schedules(norm_and_bias().captured)[1], programs=12)
    backward = norm_and_bias()
    run = ScheduleEvaluation(joined, copies(backward.inputs), {})
    first = [r.clone() for r in run.run() if isinstance(r, torch.Tensor)]
    again = [r.clone() for r in run.run() if isinstance(r, torch.Tensor)]
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))


def test_few_rows_stay_as_they_are() -> None:
    _, apart = schedules(norm_and_bias().captured)
    assert not totals(join_columns(apart.copy(), programs=ROWS))
    assert join_columns(apart.copy(), programs=ROWS).kernels == apart.kernels


def test_fuel_stops_it() -> None:
    _, apart = schedules(norm_and_bias().captured)
    assert join_columns(apart.copy(), Fuel(0), programs=12).kernels == apart.kernels


@pytest.mark.parametrize("axis", [1, 2])
def test_sums_over_other_axes_are_left_alone(axis: int) -> None:
    """Sums that leave some of the rows' axes are not what a program of several rows adds up."""
    x = torch.randn(12, 8, WIDTH)

    def fn(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x.softmax(-1), (x * 2).sum(axis)

    (inference,) = capture(fn, x)
    _, apart = schedules(inference.captured)
    joined = join_columns(apart.copy(), programs=4)
    assert not totals(joined)
    assert any(isinstance(i, Reduced) for k in joined.kernels if isinstance(k, LoopKernel) for i in k.loop.body)
