"""The host's part of a call: graphs replayed by the driver, sealed calls compared in C."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import burnish
from burnish.runtime.cuda import graph_launch
from tests.capture.entry.test_threads import together
from tests.gpu.on_device import DEVICE, calls_agree, captured, compiled, graphed, notices, randn
from tests.gpu.test_graphs import Small

pytestmark = pytest.mark.gpu


def graphs(target: Any) -> list[Any]:
    cases = [c for p in target.burnish.log._programs for c in getattr(p, "_cases", {}).values()]
    return [case.captured for case in cases if case.captured is not None]


def launches(target: Any) -> list[Any]:
    """What replays each captured graph: None for torch."""
    return [graph.launch for graph in graphs(target)]


def sealed(fn: Any, *shape: int) -> Any:
    c = graphed(fn)
    for _ in range(3):
        c(randn(*shape))
    burnish.seal(c)
    for _ in range(3):
        c(randn(*shape))
    assert all(launch is not None for launch in launches(c)) and launches(c), notices(c)
    assert c.burnish.entrance.call.count == 1
    return c


def test_sealed_calls_are_replayed_by_the_driver() -> None:
    small = Small().to(DEVICE).eval()
    with torch.no_grad():
        c = sealed(small, 8, 64)
        calls_agree(c, small, lambda: (randn(8, 64),), 6)
        x = randn(8, 64)
        for _ in range(3):  # at one address, too
            torch.testing.assert_close(c(x), small(x))
            x.mul_(0.5)
        with torch.inference_mode():
            torch.testing.assert_close(c(x), small(x))
    assert captured(c) == 1 and burnish.stats(c).compiles == 1  # wherever the allocator puts arguments


def test_calls_are_made_in_c_and_copies_by_a_kernel() -> None:
    small = Small().to(DEVICE).eval()
    with torch.no_grad():
        c = sealed(small, 8, 64)
        calls_agree(c, small, lambda: (randn(8, 64),), 6)
    assert all(graph.quick is not None and graph.quick.ready() is not None for graph in graphs(c))
    assert graph_launch._kernels and all(graph_launch._kernels.values())


def test_copies_of_any_length_from_any_place() -> None:
    def fn(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return a + 1, b * 2, c - 3, torch.tanh(a.float()).sum()

    def make(start: int) -> tuple[torch.Tensor, ...]:
        """Lengths that 16 does not divide, one of many blocks, and places that are not aligned."""
        kinds = ((7, torch.int8), (4099, torch.bfloat16), (200_003, torch.float32))
        return tuple((randn(n + start) * 50).to(dtype)[start:] for n, dtype in kinds)

    c = graphed(fn)
    with torch.no_grad():
        for start in (0, 1, 0, 3):
            calls_agree(c, fn, lambda start=start: make(start), 4)
    assert captured(c) == 1 and all(graph.quick is not None for graph in graphs(c))


def test_a_sealed_object_sees_parameters_change_in_place() -> None:
    small = Small().to(DEVICE).eval()
    with torch.no_grad():
        c = sealed(small, 8, 64)
        small.a.weight.mul_(2)
        calls_agree(c, small, lambda: (randn(8, 64),), 3)
        small.b.weight.data = randn(64, 64)  # elsewhere: noticed, and captured anew
        calls_agree(c, small, lambda: (randn(8, 64),), 5)
    assert captured(c) == 2 and burnish.stats(c).compiles == 1


def test_a_graph_that_draws_random_numbers_is_torchs() -> None:
    small = Small(p=0.5).to(DEVICE).train()
    c = graphed(small)
    x = randn(8, 64)
    with torch.no_grad():
        results = [c(x) for _ in range(6)]
    assert launches(c) == [None]
    assert not any(torch.equal(a, b) for k, a in enumerate(results) for b in results[:k])


def test_results_on_streams_of_their_own_in_threads() -> None:
    small = Small().to(DEVICE).eval()
    with torch.no_grad():
        c = sealed(small, 8, 64)
    _in_threads(lambda: calls_agree(c, small, lambda: (randn(8, 64),), 20))


def _in_threads(check: Callable[[], None]) -> None:
    """In three at once, each on a stream of its own."""

    def work(number: int) -> None:
        with torch.no_grad(), torch.cuda.stream(torch.cuda.Stream()):
            check()

    together(3, work)


class Policy(torch.nn.Sequential):
    def __init__(self) -> None:
        super().__init__(torch.nn.Linear(8, 64), torch.nn.Tanh(), torch.nn.Linear(64, 64), torch.nn.Tanh())


@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_a_few_kernels_are_launched_without_a_graph(mode: str) -> None:
    policy = Policy().to(DEVICE).eval()
    c = compiled(policy, mode=mode)
    with torch.no_grad():
        calls_agree(c, policy, lambda: (randn(1, 8),))
        burnish.seal(c)
        calls_agree(c, policy, lambda: (randn(1, 8),), 6)
        policy[0].weight.data = randn(64, 8)  # addresses are the call's own
        calls_agree(c, policy, lambda: (randn(1, 8),))
        with torch.cuda.stream(torch.cuda.Stream()):
            calls_agree(c, policy, lambda: (randn(1, 8),))
        torch.testing.assert_close(
            c(randn(9)[1:].view(1, 8).fill_(0.5)), policy(torch.full((1, 8), 0.5, device=DEVICE))
        )
    assert captured(c) == 0 and burnish.stats(c).compiles == 1
    assert [type(p).__name__ for p in c.burnish.log._programs] == ["DirectRun"]
    assert any("quicker without one" in n for n in notices(c)) == (mode == "reduce-overhead")


def test_a_few_kernels_of_several_threads() -> None:
    policy = Policy().to(DEVICE).eval()
    c = compiled(policy)
    with torch.no_grad():
        c(randn(1, 8))
    _in_threads(lambda: calls_agree(c, policy, lambda: (randn(1, 8),), 20))


def test_a_cache_that_moves_is_written_back() -> None:
    def step(cache: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        cache.add_(x)
        return torch.tanh(cache) @ x.t()

    c = graphed(step)
    with torch.no_grad():
        for _ in range(6):
            ours, x = randn(16, 32), randn(16, 32)
            theirs = ours.clone()
            torch.testing.assert_close(c(ours, x), step(theirs, x))
            torch.testing.assert_close(ours, theirs)


def test_closing_gives_back_what_was_made_ready() -> None:
    small = Small().to(DEVICE).eval()
    with torch.no_grad():
        c = sealed(small, 8, 64)
    torch.cuda.synchronize()
    made = launches(c)
    c.burnish.close()
    assert launches(c) == [] and made[0] is not None
    x = randn(8, 64)
    with torch.no_grad():
        torch.testing.assert_close(c(x), small(x))
