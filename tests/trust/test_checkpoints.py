"""Checkpoints around compiled objects: whoever served a region's forward serves what is run again of it."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

import burnish

OPTIONS = pytest.mark.parametrize("options", [{"gate": False, "verify": "off"}, {}], ids=["forced", "judged"])


class Cubed(torch.autograd.Function):
    """Saves more than eager's own operations would."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x, x * 2, x * x)
        return x * x * x

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        _, _, square = ctx.saved_tensors
        return 3 * square * grad


class Block(nn.Module):
    """Breaks the graph, has a function of its own, and a checkpoint."""

    def __init__(self, breaks: bool = True) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 8)
        self.breaks = breaks

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = Cubed.apply(torch.tanh(self.a(x)))
        if self.breaks:
            torch._dynamo.graph_break()
        return checkpoint(self.b, x, use_reentrant=False).sigmoid() * x


def _eagerly() -> AbstractContextManager[Any]:
    return torch.compiler.set_stance("force_eager")


def _region(model: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    return checkpoint(model, x, use_reentrant=False)


def _assert_gradient(result: torch.Tensor, x: torch.Tensor, want: torch.Tensor) -> None:
    (found,) = torch.autograd.grad(result.sum(), x)
    (expected,) = torch.autograd.grad(want.sum(), x)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def _pair(options: dict[str, Any], breaks: bool = True) -> tuple[Any, nn.Module, torch.Tensor]:
    torch.manual_seed(0)
    eager = Block(breaks)
    return burnish.compile(copy.deepcopy(eager), options=options), eager, torch.randn(4, 8, requires_grad=True)


@OPTIONS
@pytest.mark.parametrize("breaks", [False, True], ids=["whole", "broken"])
def test_a_region_with_a_checkpoint_in_it(options, breaks):
    compiled, eager, x = _pair(options, breaks)
    for _ in range(4):
        _assert_gradient(_region(compiled, x), x, eager(x))


@OPTIONS
@pytest.mark.parametrize("first", ["Python", "graphs"])
def test_calls_of_one_region_that_were_served_differently(options, first):
    compiled, eager, x = _pair(options)
    compiled(x).sum().backward()

    def twice(x: torch.Tensor) -> torch.Tensor:
        if first == "graphs":
            return eagerly(compiled(x))
        return compiled(eagerly(x))

    def eagerly(x: torch.Tensor) -> torch.Tensor:
        if torch.is_grad_enabled() and forward_is_on:
            with _eagerly():
                return compiled(x)
        return compiled(x)

    forward_is_on = True
    result = _region(twice, x)
    forward_is_on = False
    _assert_gradient(result, x, eager(eager(x)))


@OPTIONS
@pytest.mark.parametrize("between", ["rollback", "reset", "stance", "seal", "other sizes"])
def test_what_comes_between(options, between):
    compiled, eager, x = _pair(options)
    for _ in range(2):
        _region(compiled, x).sum().backward()
    result = _region(compiled, x)
    if between == "rollback":
        compiled.burnish.rollback()
    elif between == "reset":
        burnish.reset()
    elif between == "seal":
        burnish.seal(compiled)
    elif between == "other sizes":
        for rows in (5, 6):
            compiled(torch.randn(rows, 8)).sum().backward()
    with _eagerly() if between == "stance" else torch.enable_grad():
        _assert_gradient(result, x, eager(x))


@OPTIONS
def test_a_graph_that_eager_serves_is_not_python(options):
    """Rolled back, a graph's own operations run, and they do not save what the user's function saves."""
    compiled, eager, x = _pair(options)
    compiled(x).sum().backward()
    compiled.burnish.rollback()
    result = _region(compiled, x)
    with _eagerly():
        _assert_gradient(result, x, eager(x))


@OPTIONS
def test_regions_run_again_in_turn(options):
    """As pipelines do, which begin the next micro-batch before the last one's backward."""
    compiled, eager, x = _pair(options)
    with _eagerly():
        early = _region(compiled, x)
    compiled(x).sum().backward()
    late = _region(compiled, x)
    _assert_gradient(early, x, eager(x))
    _assert_gradient(late, x, eager(x))


@OPTIONS
def test_a_region_that_is_run_again_twice(options):
    compiled, eager, x = _pair(options)
    compiled(x).sum().backward()
    result = _region(compiled, x)
    for _ in range(2):
        (found,) = torch.autograd.grad(result.sum(), x, retain_graph=True)
        (expected,) = torch.autograd.grad(eager(x).sum(), x)
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


class _Sees(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


@OPTIONS
@pytest.mark.parametrize("mode", [_Sees, lambda: FlopCounterMode(display=False)], ids=["dispatch mode", "flops"])
def test_a_mode_around_the_backward_alone(options, mode):
    """It keeps Dynamo away from what graphs began; the counter's hooks change what is compiled, too."""
    compiled, eager, x = _pair(options, breaks=False)
    for _ in range(3):
        result = _region(compiled, x)
        (expected,) = torch.autograd.grad(eager(x).sum(), x)
        with mode():
            (found,) = torch.autograd.grad(result.sum(), x)
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


@OPTIONS
def test_backwards_in_threads(options):
    compiled, eager, x = _pair(options)
    compiled(x).sum().backward()
    results = [_region(compiled, x) for _ in range(4)]
    failed: list[BaseException] = []

    def backward(result: torch.Tensor) -> None:
        try:
            _assert_gradient(result, x, eager(x))
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=backward, args=(result,)) for result in results]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
