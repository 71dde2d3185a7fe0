"""How much of a step is the model's: with a clock that only moves where the test says so."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from burnish.tools.bench.around import StepShare, measure_share
from burnish.tools.targets import Pipeline, Target


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Slow(torch.nn.Module):
    """Takes so many seconds of the clock to call."""

    def __init__(self, clock: Clock, seconds: float) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(()))
        self._clock = clock
        self._seconds = seconds

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self._clock.now += self._seconds
        return (x * self.weight).sum()


def test_data_model_and_python_are_told_apart() -> None:
    clock = Clock()

    def data() -> Iterator[torch.Tensor]:
        for _ in range(4):
            clock.now += 0.6
            yield torch.ones(2)

    def step(model: Slow, batch: torch.Tensor) -> torch.Tensor:
        clock.now += 0.1
        return model(batch) + model(batch)

    model = Slow(clock, 0.15)
    target = Target("t", model, (torch.ones(2),), pipeline=Pipeline(data, step))
    share = measure_share(target, seconds=20.0, clock=clock)
    assert share is not None and share.steps > 10
    assert (share.total, share.data, share.model, share.other) == pytest.approx((1.0, 0.6, 0.3, 0.1))
    assert share.model_fraction == pytest.approx(0.3)
    assert share.best_gain == pytest.approx(1 / 0.7)
    assert share.gain(2.0) == pytest.approx(1 / (0.7 + 0.15))
    assert not model._forward_hooks and not model._forward_pre_hooks, "nothing is left on the model"


def test_backward_is_the_models_time_in_training() -> None:
    clock = Clock()

    class Backward(torch.autograd.Function):
        @staticmethod
        def forward(ctx: object, x: torch.Tensor) -> torch.Tensor:
            return x * 1

        @staticmethod
        def backward(ctx: object, gradient: torch.Tensor) -> torch.Tensor:
            clock.now += 0.4
            return gradient

    model = Slow(clock, 0.2)

    def step(model: Slow) -> None:
        loss = Backward.apply(model(torch.ones(2)))
        loss.backward()
        clock.now += 0.4  # the optimizer

    backward = torch.autograd.backward
    target = Target("t", model, (torch.ones(2),), "train", Pipeline(step=step))
    share = measure_share(target, seconds=5.0, clock=clock)
    assert share is not None
    assert (share.model, share.total, share.has_data) == (pytest.approx(0.6), pytest.approx(1.0), False)
    assert torch.autograd.backward is backward


def test_a_function_and_a_model_that_calls_itself() -> None:
    clock = Clock()

    def model(x: torch.Tensor) -> torch.Tensor:
        clock.now += 0.5
        return x

    target = Target("t", model, (torch.ones(1),), pipeline=Pipeline([torch.ones(1)]))
    share = measure_share(target, seconds=3.0, clock=clock)
    assert share is not None and share.model_fraction == pytest.approx(1.0) and share.best_gain == float("inf")


def test_a_target_without_a_loop_has_no_share() -> None:
    assert measure_share(Target("t", lambda: None, ()), seconds=1.0) is None


def test_a_model_that_is_everything_has_no_limit() -> None:
    assert StepShare(5, 1.0, 0.0, 1.0, False).best_gain == float("inf")
