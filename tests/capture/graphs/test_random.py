"""After torch.manual_seed a compiled model draws the numbers eager draws, and leaves the generator where eager does."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import burnish
from tests.against_eager import served_by_us

DRAWS: dict[str, Callable[[torch.Tensor], object]] = {
    "dropout": lambda x: F.dropout(x, 0.3, training=True) * 2,
    "dropout unused": lambda x: (F.dropout(x, 0.3, training=True), torch.rand(3))[1] + x.sum(),
    "feature dropout": lambda x: F.dropout1d(x, 0.5),
    "alpha dropout": lambda x: F.alpha_dropout(x, 0.4, training=True),
    "no dropout": lambda x: F.dropout(x, 0.3, training=False) + torch.rand_like(x),
    "rand": lambda x: torch.rand(4, 5) + x,
    "rand_like": lambda x: torch.rand_like(x) + torch.randn_like(x),
    "randn": lambda x: torch.randn(x.shape, dtype=torch.float64).float() + x,
    "randint": lambda x: torch.randint(0, 10, x.shape) + x,
    "randperm": lambda x: x[torch.randperm(4)],
    "bernoulli": lambda x: torch.bernoulli(x.sigmoid()) + torch.bernoulli(x, 0.25),
    "normal": lambda x: torch.normal(x, 2.0) + torch.empty_like(x).normal_(),
    "multinomial": lambda x: torch.multinomial(x.exp(), 2),
    "uniform": lambda x: x.clone().uniform_(-1, 1),
    "exponential": lambda x: torch.empty_like(x).exponential_(2.0) + x,
    "rrelu": lambda x: F.rrelu(x, training=True),
    "gumbel": lambda x: F.gumbel_softmax(x),
    "order": lambda x: torch.rand_like(x) - torch.rand_like(x) * torch.randn_like(x),
    "half": lambda x: F.dropout(x.bfloat16(), 0.5) + torch.rand_like(x, dtype=torch.bfloat16),
    "dropout of all": lambda x: F.dropout(x, 1.0) + x,
    "transposed zeros": lambda x: torch.zeros(5, 4).t().normal_() + x,
    "transposed ones": lambda x: F.dropout(torch.ones(5, 4).t(), 0.5) + torch.rand_like(x.new_zeros(5, 4).t()),
    "channels last": lambda x: torch.zeros(2, 3, 4, 5).to(memory_format=torch.channels_last).uniform_() + x,
}


@pytest.mark.parametrize("name", DRAWS)
def test_draws(name):
    draw = DRAWS[name]
    compiled = burnish.compile(lambda x: draw(x))
    x = torch.randn(4, 5)
    torch.manual_seed(5)
    expected = [draw(x) for _ in range(3)]
    after = torch.rand(4)
    torch.manual_seed(5)
    for want in expected:
        torch.testing.assert_close(compiled(x), want, atol=1e-6, rtol=1e-6)
    assert torch.equal(torch.rand(4), after), "the generator is elsewhere than eager leaves it"
    served_by_us(compiled)


NUMPY: dict[str, Callable[[torch.Tensor], object]] = {
    "array": lambda x: x * torch.tensor(np.random.randn(5)),
    "scalar": lambda x: x + int(np.random.randint(0, 5)) + np.random.uniform(),
    "branch": lambda x: x + 1 if np.random.rand() > 0.5 else x - 1,
    "choice": lambda x: x[np.random.choice(4, 2)] * np.random.rand(1).item(),
}


@pytest.mark.parametrize("options", [{}, {"gate": False, "verify": "off"}], ids=["judged", "forced"])
@pytest.mark.parametrize("name", NUMPY)
def test_numpy_draws_from_its_own_stream(name, options):
    draw, x = NUMPY[name], torch.randn(4, 5)
    compiled = burnish.compile(lambda x: draw(x), options=options)
    before = torch.get_rng_state()
    seen = []
    for call in (draw, compiled):
        np.random.seed(0)
        seen.append(([call(x) for _ in range(3)], np.random.rand()))
    torch.testing.assert_close(*seen)
    assert torch.equal(torch.get_rng_state(), before)


PYTHON: dict[str, Callable[[torch.Tensor, Any], object]] = {
    "number": lambda x, draw: x * draw.random(),
    "number beside integers": lambda x, draw: x.long() * draw.random(),
    "type of a number": lambda x, draw: torch.tensor(draw.uniform(0, 9)) + torch.full((4, 5), draw.random()),
    "integer": lambda x, draw: (x[: draw.randint(1, 3)], draw.randrange(100), draw.getrandbits(8)),
    "choice": lambda x, draw: x * draw.choice([1, 2, 3, 4]) + draw.sample(range(9), 2)[0],
    "order": lambda x, draw: (x + 1, (several := list(range(9)), draw.shuffle(several))[0]),
    "gauss": lambda x, draw: x * draw.gauss(0, 1) + draw.random(),
    "branch": lambda x, draw: x + 1 if draw.random() > 0.5 else x - 1,
    "seed": lambda x, draw: (draw.seed(7), x * draw.random())[1],
    "state": lambda x, draw: (state := draw.getstate(), x * draw.random(), draw.setstate(state), draw.random())[1:],
    "several": lambda x, draw: (x + 1, [draw.random() for _ in range(3)]),
    "made inside": lambda x, draw: x * random.Random(3).random() + draw.random(),
    "made inside, and returned": lambda x, draw: (x + draw.random(), random.Random(3))[0],
}


class Drawn(random.Random):
    pass


class Draws(nn.Module):
    def __init__(self, draw: Callable[[torch.Tensor, Any], object], source: Any) -> None:
        super().__init__()
        self.draw, self.source = draw, source

    def forward(self, x: torch.Tensor) -> object:
        return self.draw(x, self.source)


SOURCES: dict[str, Callable[[], Any]] = {
    "generator": lambda: random.Random(0),
    "generator of another class": lambda: Drawn(0),
    "module": lambda: (random.seed(0), random)[1],
}


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("name", PYTHON)
def test_python_draws_from_its_own_streams(name: str, source: str) -> None:
    x, seen = torch.randn(4, 5), []
    for way in (lambda model: model, lambda model: burnish.compile(model, gate=False, verify="off")):
        generator = SOURCES[source]()
        model = way(Draws(PYTHON[name], generator))
        seen.append(([model(x) for _ in range(3)], generator.getstate()))
    torch.testing.assert_close(*seen)


def test_a_draw_that_is_held() -> None:
    seen = []
    for way in (lambda fn: fn, burnish.compile):
        draw = random.Random(0).randint
        compiled = way(lambda x, draw=draw: x * draw(0, 99))
        seen.append([compiled(torch.ones(3)) for _ in range(3)])
    torch.testing.assert_close(*seen)


class Noisy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last, self.drop = nn.Linear(8, 16), nn.Linear(16, 4), nn.Dropout(0.4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.drop(F.gelu(self.first(x)))
        return F.dropout(self.last(hidden), 0.2, self.training)


def test_dropout_in_training_over_steps():
    eager = Noisy()
    compiled = burnish.compile(copy.deepcopy(eager))
    x = torch.randn(6, 8)
    for net in (compiled, eager):
        torch.manual_seed(9)
        optimiser = torch.optim.SGD(net.parameters(), lr=0.1)
        for _ in range(3):
            optimiser.zero_grad()
            net(x).square().mean().backward()
            optimiser.step()
    for ours, theirs in zip(compiled.parameters(), eager.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs)
    served_by_us(compiled)


def test_train_and_eval():
    eager = Noisy()
    compiled = burnish.compile(eager)
    x = torch.randn(6, 8)
    with torch.no_grad():
        for training in (True, False, True):
            eager.train(training), compiled.train(training)
            torch.manual_seed(1)
            want = eager(x)
            torch.manual_seed(1)
            torch.testing.assert_close(compiled(x), want)
    served_by_us(compiled, 2)


def test_attention_with_dropout():
    def fn(x):
        return F.scaled_dot_product_attention(x, x, x, dropout_p=0.3)

    x = torch.randn(2, 4, 6, 8)
    torch.manual_seed(2)
    want = fn(x)
    compiled = burnish.compile(fn)
    torch.manual_seed(2)
    torch.testing.assert_close(compiled(x), want)
    served_by_us(compiled)


def test_two_seeds_differ_and_one_repeats():
    compiled = burnish.compile(lambda x: F.dropout(x, 0.5))
    x = torch.ones(64)
    seen = []
    for seed in (1, 2, 1):
        torch.manual_seed(seed)
        seen.append(compiled(x))
    assert torch.equal(seen[0], seen[2]) and not torch.equal(seen[0], seen[1])
