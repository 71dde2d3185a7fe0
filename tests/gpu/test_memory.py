"""What a compiled object holds on the device, and that close() gives it back."""

from __future__ import annotations

import gc
from typing import Any

import pytest
import torch

import burnish
from tests.gpu.on_device import DEVICE, captured, compiled, graphed, randn

pytestmark = pytest.mark.gpu


def settled() -> tuple[int, int]:
    for _ in range(2):  # Dynamo's caches and code refer to one another: the first pass lets go of programs
        gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    return torch.cuda.memory_allocated(), torch.cuda.memory_reserved()


def segments() -> dict[int, tuple[int, int]]:
    """What torch has of the device, by address: bytes, and bytes in use."""
    return {s["address"]: (s["total_size"], s["allocated_size"]) for s in torch.cuda.memory_snapshot()}


def model() -> torch.nn.Module:
    width = 1024
    layers = [torch.nn.Sequential(torch.nn.Linear(width, width), torch.nn.LayerNorm(width)) for _ in range(4)]
    return torch.nn.Sequential(*layers, torch.nn.Softmax(-1)).to(DEVICE)


@pytest.mark.parametrize("make", [compiled, graphed], ids=["plain", "graphs"])
@pytest.mark.parametrize("training", [False, True])
def test_close_returns_to_the_baseline(make: Any, training: bool) -> None:
    settled()  # parameters in the gaps of what earlier tests left behind would hold it all
    net = model()

    def use(c: Any) -> None:
        for rows in (2048, 4096):
            for _ in range(4):
                with torch.set_grad_enabled(training):
                    y = c(randn(rows, 1024))
                    if training:
                        y.square().mean().backward()
                        for p in net.parameters():
                            p.grad = None

    for _ in range(2):
        # What libraries keep for good, they take in the first round: cuBLAS a workspace for each thread and stream, in
        # a corner of some segment that then stays. Whoever takes more in each round is found by the third.
        earlier = make(net)
        use(earlier)
        earlier.burnish.close()
        del earlier
    allocated, reserved = settled()
    before = segments()
    c = make(net)
    use(c)
    if make is graphed:
        assert captured(c) >= 2
        assert burnish.stats(c).memory.cuda_pool_bytes > 0
    # What it says it holds, it does, in gaps of what torch had before or in more; a plain program may hold nothing.
    memory = burnish.stats(c).memory
    now = settled()
    assert now[0] - allocated + now[1] - reserved >= 0.9 * (memory.arena_bytes + memory.cuda_pool_bytes)
    c.burnish.close()
    after = settled()
    new = {address: held for address, held in segments().items() if before.get(address) != held}
    assert after[0] <= allocated * 1.05 and after[1] <= reserved * 1.05, (after, (allocated, reserved), new)
    with torch.no_grad():
        x = randn(16, 1024)
        torch.testing.assert_close(c(x), net(x))  # and it can be used again
    c.burnish.close()


def test_a_dropped_object_holds_nothing() -> None:
    net = model()
    with torch.no_grad():
        held = []
        for _ in range(2):
            c = graphed(net)
            for _ in range(3):
                c(randn(2048, 1024))
            del c
            held.append(settled()[0])
    assert held[1] <= held[0] * 1.05


def test_sizes_share_memory() -> None:
    """Ten sizes of one object take far less than ten times what one takes."""
    fn = lambda x: torch.sort(x.softmax(-1)).values.softmax(-1).sum(-1)  # noqa: E731

    def held(sizes: list[int]) -> int:
        before = settled()[1]
        c = compiled(fn, dynamic=True, options={"cuda_graphs": True})
        with torch.no_grad():
            for k in sizes:
                for _ in range(3):
                    c(randn(k, 4096))
        assert captured(c) == len(sizes)
        taken = settled()[1] - before
        c.burnish.close()
        return taken

    held([1000])
    one, ten = held([1009]), held(list(range(1000, 1010)))
    inputs = 10 * 1009 * 4096 * 4  # each size has arguments of its own
    assert ten <= 2.5 * one + inputs
