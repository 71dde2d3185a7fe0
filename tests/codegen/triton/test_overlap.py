"""Kernels that are there before the one ahead of them ends: what they may fetch before they wait."""

from __future__ import annotations

import re

import pytest
import torch

from burnish.codegen.triton import module as triton_module
from burnish.schedule.kernels import Schedule
from tests.programs import capture, schedules
from tests.runtime.cuda.on_cpu import assembled


def two(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return ((x @ w).softmax(-1) @ w).exp()


@pytest.fixture(scope="module")
def schedule() -> Schedule:
    (entry,) = capture(two, torch.randn(8, 64), torch.randn(64, 64), device="cuda")
    return schedules(entry.captured)[1]


def _instructions(text: str) -> list[str]:
    return re.findall(r"gdc_\w+|tl\.load|tl\.store|tl\.dot", text[text.index("@triton.jit") :])


def test_the_first_kernel_of_a_program_waits_before_it_does_anything(schedule: Schedule) -> None:
    unit = triton_module.generate(schedule, overlapped=True, begins=True)
    assert unit.first is not None
    first = _instructions(unit.alone(unit.calls[unit.first].function))
    assert first[:2] == ["gdc_wait", "gdc_launch_dependents"] and "gdc_wait" not in first[2:]


def test_the_others_let_the_next_one_in_at_once(schedule: Schedule) -> None:
    unit = triton_module.generate(schedule, overlapped=True, begins=True)
    others = [_instructions(unit.alone(c.function)) for n, c in unit.calls.items() if n != unit.first]
    assert others and all(each[0] == "gdc_launch_dependents" and each.count("gdc_wait") >= 1 for each in others)


def test_without_overlap_nothing_waits(schedule: Schedule) -> None:
    text = triton_module.generate(schedule, begins=True).text
    assert "gdc_" not in text and "first of its program" not in text


@pytest.mark.parametrize(("rows", "waits"), [(4, [False, False]), (0, [True])])
def test_one_that_was_not_made_to_be_the_first_waits_where_it_is(rows: int, waits: list[bool]) -> None:
    """Where sizes leave the first kernel nothing to do: the launch begins when all that is ahead has ended."""

    def fn(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x.softmax(-1) + 1, y.cumsum(0)

    (entry,) = capture(fn, torch.randn(3, 8), torch.randn(5, 2), dynamic=True, device="cuda")
    on = assembled(schedules(entry.captured)[1], entry.captured.symbols.sources, entry.inputs, overlapped=True)
    sizes = {name: 5 if position else rows for name, (position, _, _) in on.program.sources.items()}
    assert [launch.waits for segment in on.loaded.launches(sizes) for launch in segment] == waits
