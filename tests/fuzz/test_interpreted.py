"""The fuzzer's Triton target: it reports what is wrong, and nothing that only Triton's interpreter makes of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from burnish.codegen.triton.module import TritonUnit, generate
from tests.fuzz import interpreted
from tests.programs import capture

ZERO = torch.zeros(1, dtype=torch.int64)
RIGHT: dict[str, tuple[Callable[..., Any], tuple[torch.Tensor, ...]]] = {
    "a mask of one bit": (lambda x, at: x.index_add(0, at, x), (torch.ones(1), ZERO)),
    "a logical operation of one element": (lambda x, y: torch.logical_xor(x, y), (torch.ones(()), torch.ones(4))),
    "a fill of zero": (lambda x: F.avg_pool1d(x, 2, 2, 1), (torch.full((1, 1, 1), 0.5),)),
    "a rounded bfloat16": (lambda x: x.to(torch.bfloat16), (torch.tensor([0.2518, 0.12, -3.3]),)),
    "what cancels": (lambda x: F.gelu(x, approximate="tanh"), (torch.linspace(-4.5, 4, 64),)),
    "an overflow in half": (lambda x: x.prod(dtype=torch.float16), (torch.tensor([300.0, 300.0, 0.0]),)),
    "a mean of infinities": (lambda x: torch.var_mean(x, 0)[1], (torch.full((3,), torch.inf),)),
    "an erf that eager rounds more": (
        lambda x, y: x.erf() + y,
        (torch.full((8,), 1e-4), torch.tensor([[0.0], [torch.inf]])),
    ),
    "what vanishes in half": (lambda x: torch.logical_not(x * 1e-10), (torch.ones(3, dtype=torch.float16),)),
    "a sixth as on a GPU": (F.hardswish, (torch.linspace(-4, 4, 9, dtype=torch.float64),)),
    "one of equals": (lambda x: x.topk(1, 0)[1], (torch.zeros(5),)),
    "a call that names its device": (lambda x: x + torch.empty_like(x, device=x.device).fill_(1), (torch.ones(3),)),
}


def finds(fn: Callable[..., Any], *inputs: torch.Tensor) -> list[str]:
    (entry,) = capture(lambda *given: (fn(*given),), *inputs, device="cuda")
    with torch.no_grad():
        return [str(f) for f in interpreted._checked(entry)]


@pytest.mark.parametrize("name", RIGHT)
def test_no_find(name: str) -> None:
    fn, inputs = RIGHT[name]
    assert finds(fn, *inputs) == []


@pytest.mark.parametrize("wrong", ["v2 * 1.0001", "tl.where(v2 > 2.0, v2 * float('nan'), v2)"])
def test_a_kernel_that_is_a_little_wrong_is_a_find(monkeypatch: pytest.MonkeyPatch, wrong: str) -> None:
    def faulty(*args: Any, **named: Any) -> TritonUnit:
        unit = generate(*args, **named)
        text = unit.text.replace("tl.store(p2 + x, v2", f"tl.store(p2 + x, {wrong}")
        assert text != unit.text
        return replace(unit, text=text)

    monkeypatch.setattr(interpreted, "generate", faulty)
    (found,) = finds(lambda x, y: x + y, torch.randn(64), torch.randn(64) + 2)
    assert found.startswith("triton in call 0, k0")


def test_a_schedule_that_means_something_else_is_a_find(monkeypatch: pytest.MonkeyPatch) -> None:
    real = interpreted.lower_graph

    def lowered(captured: Any) -> Any:
        schedule = real(captured)
        body = schedule.kernels[0].loop.body
        changed = tuple(replace(i, fn="sub") if getattr(i, "fn", "") == "add" else i for i in body)
        schedule.kernels[0] = replace(schedule.kernels[0], loop=replace(schedule.kernels[0].loop, body=changed))
        return schedule

    monkeypatch.setattr(interpreted, "lower_graph", lowered)
    (found,) = finds(lambda x, y: x + y, torch.randn(64), torch.randn(64))
    assert found.startswith("schedule in call 0, result 0")
