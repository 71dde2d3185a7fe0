"""Coroutine and generator functions stay what they are: their bodies run after the call, in eager."""

from __future__ import annotations

import asyncio
import inspect
import warnings

import pytest
import torch
from torch import nn

import burnish
from burnish.errors import FallbackWarning
from tests.against_eager import fallback_warnings


@pytest.fixture(autouse=True)
def _without_warnings():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.simplefilter("error", FallbackWarning)  # by its name, or it is only shown
        yield


def test_a_coroutine_function_stays_one():
    @burnish.compile
    async def doubled(x: torch.Tensor) -> torch.Tensor:
        await asyncio.sleep(0)
        return x * 2

    assert inspect.iscoroutinefunction(doubled)
    assert asyncio.run(doubled(torch.ones(2))).tolist() == [2, 2]
    assert not burnish.stats(doubled).fallbacks


def test_a_generator_function_stays_one_that_takes_and_returns_values():
    @burnish.compile
    def running_total(x: torch.Tensor):
        total = torch.zeros(2)
        while (more := (yield total)) is not None:
            total = total + more * x
        return "done"

    assert inspect.isgeneratorfunction(running_total)
    totals = running_total(torch.ones(2))
    assert next(totals).tolist() == [0, 0] and totals.send(3).tolist() == [3, 3]
    with pytest.raises(StopIteration, match="done"):
        next(totals)


def test_an_exception_reaches_a_generators_body():
    @burnish.compile
    def caught(x: torch.Tensor):
        try:
            yield x
        except KeyError:
            yield x + 1

    values = caught(torch.zeros(1))
    next(values)
    assert values.throw(KeyError()).tolist() == [1]


def test_an_async_generator_function_stays_one():
    @burnish.compile
    async def halves(x):
        try:
            x = yield x / 2
        except ZeroDivisionError:
            x = torch.zeros(2)
        yield x / 2

    async def collected():
        sent, thrown = halves(torch.ones(2)), halves(torch.ones(2))
        first = [await anext(sent), await sent.asend(torch.full((2,), 6.0))]
        second = [await anext(thrown), await thrown.athrow(ZeroDivisionError())]
        return [float(each[0]) for each in (*first, *second)]

    assert inspect.isasyncgenfunction(halves)
    assert asyncio.run(collected()) == [0.5, 3.0, 0.5, 0.0]


class Trap(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(3, 3)

    def __getattr__(self, name: str) -> object:
        if name == "inner":
            return self._modules[name]
        raise RuntimeError(f"no {name}")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x).exp()


class Unhashable(nn.Linear):
    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        return True


@pytest.mark.parametrize("settings", [{}, {"background": True}], ids=["", "background"])
@pytest.mark.parametrize("make", [Trap, lambda: Unhashable(3, 3)])
def test_an_object_that_cannot_be_looked_at_runs_in_eager(make, settings):
    model, x = make(), torch.randn(2, 3)
    compiled, (warning,) = fallback_warnings(lambda: burnish.compile(model, **settings))
    assert "runs in eager" in warning and "cannot be looked at" in warning
    for _ in range(2):
        assert torch.equal(compiled(x), model(x))
    assert burnish.stats(compiled).fallbacks[0].stage == "capture"
