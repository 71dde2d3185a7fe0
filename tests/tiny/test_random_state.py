"""Every generator a model may draw from: seeded, looked at, and put back."""

import random

import numpy
import pytest
import torch

from burnish.tools.random_state import generators, same_draws

DRAWS = {
    "torch": lambda: torch.rand(3).tolist(),
    "python": lambda: [random.random() for _ in range(3)],
    "numpy": lambda: numpy.random.rand(3).tolist(),
}


@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS)
def test_two_runs_draw_the_same(draw):
    with same_draws():
        first = draw()
    draw()
    with same_draws():
        assert draw() == first


@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS)
def test_the_callers_generators_are_put_back(draw):
    before = generators()
    with same_draws():
        draw()
    assert generators() == before


@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS)
def test_a_draw_is_seen(draw):
    before = generators()
    draw()
    assert generators() != before
