"""CUDA graphs on a device: results stay, effects happen once, random numbers differ, failures lose no call."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import burnish
from tests.capture.entry.test_threads import together
from tests.gpu.on_device import DEVICE, calls_agree, captured, compiled, graphed, notices, randn

pytestmark = pytest.mark.gpu


class Small(torch.nn.Module):
    def __init__(self, width: int = 64, p: float = 0.0) -> None:
        super().__init__()
        self.a, self.b = torch.nn.Linear(width, width), torch.nn.Linear(width, width)
        self.norm, self.drop = torch.nn.LayerNorm(width), torch.nn.Dropout(p)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.b(self.drop(F.gelu(self.norm(self.a(x))))) + x


@pytest.fixture
def small() -> Small:
    return Small().to(DEVICE).eval()


@pytest.mark.parametrize("mode", ["reduce-overhead", "max-autotune"])
def test_results_stay_the_callers(mode: str) -> None:
    model = torch.nn.Sequential(*(Small() for _ in range(4))).to(DEVICE).eval()  # more than a few launches
    c = compiled(model, mode=mode)
    with torch.no_grad():
        calls_agree(c, model, lambda: (randn(8, 64),), 6)
    assert captured(c) >= 1 and burnish.stats(c).compiles == 1


def test_results_are_reused_on_request(small: Small) -> None:
    c = graphed(small, reuse_outputs=True)
    with torch.no_grad():
        c(randn(8, 64))
        first, x = c(randn(8, 64)), randn(8, 64)
        second = c(x)
        assert first.data_ptr() == second.data_ptr()
        torch.testing.assert_close(first, small(x))


def test_parameters_are_seen_when_they_change_and_when_they_are_replaced(small: Small) -> None:
    c = graphed(small)
    with torch.no_grad():
        calls_agree(c, small, lambda: (randn(8, 64),), 3)
        small.a.weight.mul_(2)
        calls_agree(c, small, lambda: (randn(8, 64),), 2)
        small.b.weight.data = randn(64, 64)
        calls_agree(c, small, lambda: (randn(8, 64),), 4)
        small.b.bias = torch.nn.Parameter(randn(64))
        calls_agree(c, small, lambda: (randn(8, 64),), 4)


@pytest.mark.parametrize("same", [True, False])
def test_a_cache_is_written_once_in_each_call(same: bool) -> None:
    def step(cache: torch.Tensor, x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        cache.index_copy_(0, at, x)
        return cache.sum(0) * 2

    c = graphed(step)
    ours = torch.zeros(10, 16, device=DEVICE)
    kept = []
    with torch.no_grad():
        for k in range(6):
            if not same:
                kept.append(ours)
                ours = ours.clone()
            theirs, x, at = ours.clone(), randn(1, 16), torch.tensor([k], device=DEVICE)
            torch.testing.assert_close(c(ours, x, at), step(theirs, x, at))
            torch.testing.assert_close(ours, theirs)
    assert captured(c) >= 1


def test_running_statistics_are_updated_once_in_each_call() -> None:
    model = torch.nn.Sequential(torch.nn.BatchNorm1d(16), torch.nn.ReLU()).to(DEVICE).train()
    twin = copy.deepcopy(model)
    c = graphed(model)
    with torch.no_grad():
        calls_agree(c, twin, lambda: (randn(32, 16),), 5)
    torch.testing.assert_close(dict(model.named_buffers()), dict(twin.named_buffers()))


def test_random_numbers_differ_in_each_replay_and_follow_the_seed() -> None:
    c = graphed(lambda x: F.dropout(x, 0.5) + torch.rand_like(x))
    x = torch.ones(1000, device=DEVICE)
    with torch.no_grad():
        c(x), c(x)
        runs = []
        for _ in range(2):
            torch.manual_seed(3)
            runs.append([c(x) for _ in range(3)])
    assert not torch.equal(runs[0][0], runs[0][1])
    for one, other in zip(*runs, strict=True):
        assert torch.equal(one, other)
    assert captured(c) >= 1


def test_sizes_have_their_graphs_and_a_limit(small: Small) -> None:
    c = compiled(small, dynamic=True, options={"cuda_graphs": True, "graph_limit": 2})
    sizes = iter([8, 9, 10, 8, 9, 10, 8, 9, 10, 10, 10])
    with torch.no_grad():
        calls_agree(c, small, lambda: (randn(next(sizes), 64),), 11)
    assert captured(c) >= 3 and any("recently" in notice for notice in notices(c))


def test_what_waits_for_the_device_splits_the_graph_and_is_named() -> None:
    fn = lambda x: torch.sort(x * 2).values.relu() + torch.nonzero(x > 0).sum()  # noqa: E731
    c = graphed(fn)
    with torch.no_grad():
        calls_agree(c, fn, lambda: (randn(50),), 3)
    assert captured(c) >= 1
    assert "nonzero" in " ".join(notices(c)) + str(burnish.stats(c).graph_breaks)


@pytest.mark.parametrize("error", [torch.OutOfMemoryError("no room"), RuntimeError("not permitted")])
def test_a_capture_that_fails_loses_no_call(small: Small, error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    class Failing(torch.cuda.graph):
        def __enter__(self) -> None:
            raise error

    monkeypatch.setattr(torch.cuda, "graph", Failing)
    c = graphed(small)
    with torch.no_grad():
        calls_agree(c, small, lambda: (randn(8, 64),), 4)
    assert captured(c) == 0 and any(str(error) in notice for notice in notices(c))


def test_a_failure_in_the_middle_of_a_capture_loses_no_call(small: Small, monkeypatch: pytest.MonkeyPatch) -> None:
    """A device that is asked to wait while it captures: the capture is broken off, and the device stays usable."""
    from burnish.runtime.cuda.program import CudaRun

    private = CudaRun.private

    def waiting(self: CudaRun) -> Any:
        run = private(self)

        def wait_and_run(args: list[Any]) -> Any:
            results = run(args)
            if torch.cuda.is_current_stream_capturing():
                torch.cuda.synchronize()
            return results

        return wait_and_run

    c = graphed(small)
    with torch.no_grad():
        c(randn(8, 64))
        monkeypatch.setattr(CudaRun, "private", waiting)
        calls_agree(c, small, lambda: (randn(8, 64),), 4)
    assert captured(c) == 0 and any(notice.startswith("no CUDA graph") for notice in notices(c))


def test_one_thread_captures_while_others_are_raced_and_judged(small: Small) -> None:
    """CUDA refuses to wait for the whole device during a capture, whichever thread asks."""
    raised: list[BaseException] = []

    def work(number: int) -> None:
        model = copy.deepcopy(small)
        mode = "reduce-overhead" if number % 2 else "default"
        for width in (8, 16, 24):
            c = burnish.compile(model, mode=mode, dynamic=False)
            try:
                with torch.no_grad():
                    calls_agree(c, model, lambda width=width: (randn(width, 64),), 8)
            except BaseException as error:
                raised.append(error)

    together(4, work)
    assert not raised


@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_a_program_reads_what_the_one_ahead_of_it_wrote(mode: str) -> None:
    """Kernels of one program may be there before the one ahead ends; not before another program's does."""
    slow = compiled(lambda x: x.cumsum(1) + 1, mode=mode)  # one block, for long
    quick = compiled(lambda y: y * 2, mode=mode)
    x = torch.ones(1, 200_000, device=DEVICE)
    with torch.no_grad():
        for _ in range(20):
            x = x + 1
            y = slow(x)
            assert torch.equal(quick(y), y * 2)


def test_in_the_callers_own_graph(small: Small) -> None:
    c = graphed(small)
    x = randn(8, 64)
    with torch.no_grad():
        for _ in range(3):
            c(x)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = c(x)
        for _ in range(2):
            x.copy_(randn(8, 64))
            graph.replay()
            torch.testing.assert_close(y, small(x))
            torch.testing.assert_close(c(x), small(x))


def test_arguments_that_are_not_aligned(small: Small) -> None:
    def odd() -> tuple[torch.Tensor]:
        return (randn(8 * 64 + 1)[1:].view(8, 64),)

    for c in (compiled(small), graphed(small)):
        with torch.no_grad():
            calls_agree(c, small, odd, 4)
        assert any("multiple of 16" in notice for notice in notices(c))


def test_an_index_out_of_range_is_raised_by_a_later_call() -> None:
    c = compiled(lambda table, at: table[at] * 2)
    table = randn(10, 4)
    with torch.no_grad():
        c(table, torch.tensor([1, 2], device=DEVICE))
        c(table, torch.tensor([1, 99], device=DEVICE))
        torch.cuda.synchronize()
        with pytest.raises(IndexError, match="earlier call"):
            c(table, torch.tensor([1, 2], device=DEVICE))
        good = torch.tensor([3, -1], device=DEVICE)
        torch.testing.assert_close(c(table, good), table[good] * 2)


# -- training -----------------------------------------------------------------------------------------------------


def losses(model: Any, xs: list[torch.Tensor]) -> list[torch.Tensor]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    out = []
    for x in xs:
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        out.append(loss.detach())
    return out


def test_training_steps() -> None:
    model = Small().to(DEVICE)
    twin = copy.deepcopy(model)
    c = graphed(model)
    xs = [randn(16, 64) for _ in range(6)]
    torch.testing.assert_close(losses(c, xs), losses(twin, xs))
    torch.testing.assert_close(dict(model.named_parameters()), dict(twin.named_parameters()))
    assert 2 <= captured(c) <= 4, notices(c)  # forward and backward; each may find out once that an argument moves


def test_several_forwards_before_a_backward() -> None:
    model = Small().to(DEVICE)
    twin = copy.deepcopy(model)
    c = graphed(model)
    for _ in range(4):
        xs = [randn(16, 64) for _ in range(3)]
        for net in (c, twin):
            sum(net(x).square().mean() for x in xs).backward()
        for ours, theirs in zip(model.parameters(), twin.parameters(), strict=True):
            torch.testing.assert_close(ours.grad, theirs.grad)
            ours.grad = theirs.grad = None
    assert any("saved tensors are in use" in notice for notice in notices(c))


def test_a_backward_done_twice_and_gradients_accumulated() -> None:
    model = Small().to(DEVICE)
    twin = copy.deepcopy(model)
    c = graphed(model)
    for _ in range(4):
        x = randn(16, 64)
        for net in (c, twin):
            loss = net(x).square().mean()
            loss.backward(retain_graph=True)
            loss.backward()
    for ours, theirs in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-4, atol=1e-5)


def test_dropout_in_training_is_the_same_in_both_directions() -> None:
    """Where the forward dropped, the gradient is zero."""
    c = graphed(lambda x: F.dropout(x * 2, 0.5))
    for _ in range(4):
        x = torch.ones(500, device=DEVICE, requires_grad=True)
        y = c(x)
        y.sum().backward()
        assert x.grad is not None
        assert torch.equal(x.grad == 0, y == 0) and 0 < int((y == 0).sum()) < 500
