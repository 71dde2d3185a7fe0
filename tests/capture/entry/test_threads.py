"""Several threads in one compiled object: no result, workspace or gradient gets mixed up."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional as F

import burnish
from tests.against_eager import served_by_us


def together(count: int, work: Callable[[int], None]) -> None:
    """Run `work(0) … work(count - 1)` in as many threads that start at once; their first error is ours."""
    errors: list[BaseException] = []
    start = threading.Barrier(count)

    def run(number: int) -> None:
        try:
            start.wait(timeout=60)
            work(number)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(i,)) for i in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


class Net(nn.Module):
    """Sums, products and an ATen call, so that a call has temporaries and several steps."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(16, 32), nn.LayerNorm(32), nn.Linear(32, 8)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        hidden = self.norm(self.first(x)).sort(-1).values
        return self.last(F.gelu(hidden)), hidden.softmax(0)


def test_many_shapes_at_once():
    model = Net().eval()
    compiled = burnish.compile(model)
    inputs = [torch.randn(rows, 16) for rows in range(2, 14)]
    with torch.no_grad():
        expected = [model(x) for x in inputs]

    def work(number: int) -> None:
        with torch.no_grad():
            for turn in range(60):
                i = (turn * 5 + number * 3) % len(inputs)
                torch.testing.assert_close(compiled(inputs[i]), expected[i])

    together(4, work)
    stats = served_by_us(compiled, burnish.stats(compiled).compiles)
    assert stats.compiles <= 2, "each thread may find the first size; the next makes it dynamic"


def test_one_shape_at_once():
    """The same workspace sizes from all threads."""
    compiled = burnish.compile(lambda x: ((x * 2).softmax(-1) @ x.t()).sum(-1))
    eager = compiled.burnish.eager
    inputs = [torch.randn(24, 16) + i for i in range(4)]
    expected = [eager(x) for x in inputs]

    def work(number: int) -> None:
        for _ in range(150):
            torch.testing.assert_close(compiled(inputs[number]), expected[number])

    together(4, work)
    served_by_us(compiled)


def test_first_calls_at_once():
    """More threads than torch allows recompiles: each waits for the first, none compiles again."""
    compiled = burnish.compile(lambda x: x.exp().sum(-1) + 1)

    def work(number: int) -> None:
        x = torch.full((3, 5), float(number))
        torch.testing.assert_close(compiled(x), x.exp().sum(-1) + 1)

    together(12, work)
    served_by_us(compiled)


def test_training_at_once():
    """One forward and backward per thread over shared weights, gradients taken per call."""
    eager = Net()
    compiled = burnish.compile(copy.deepcopy(eager))
    inputs = [torch.randn(6, 16) for _ in range(3)]

    def gradients(net: nn.Module, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return torch.autograd.grad(net(x)[0].square().sum(), list(net.parameters()))

    expected = [gradients(eager, x) for x in inputs]

    def work(number: int) -> None:
        for _ in range(20):
            torch.testing.assert_close(gradients(compiled, inputs[number]), expected[number])

    together(3, work)
    served_by_us(compiled)


def test_an_error_in_one_thread_stays_there():
    compiled = burnish.compile(lambda table, i: table[i] * 2)
    table = torch.randn(10, 4)
    good, bad = torch.tensor([1, 9]), torch.tensor([1, 10])
    compiled(table, good)

    def work(number: int) -> None:
        for _ in range(60):
            if number == 0:
                try:
                    compiled(table, bad)
                except IndexError:
                    continue
                raise AssertionError("an index out of range went unnoticed")
            torch.testing.assert_close(compiled(table, good), table[good] * 2)

    together(3, work)
    served_by_us(compiled)
