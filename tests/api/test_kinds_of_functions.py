"""Coroutine and generator functions stay what they are: their bodies run after the call, in eager."""

from __future__ import annotations

import asyncio
import inspect
import warnings

import pytest
import torch

import burnish


@pytest.fixture(autouse=True)
def _without_warnings():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
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
