"""The gate, rollback, sampling, background, verify and explain on a GPU: streams, generators, copies, memory."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import burnish
from burnish.errors import CompileError, FallbackWarning
from burnish.runtime.triton.build import KernelBuilder
from burnish.tools.explain import explain
from burnish.tools.verify import verify
from burnish.trust.faults import Fault, NotANumber, RaisesAtRun, Slower, WrongBy
from burnish.trust.gate import Gate, GraphFacts
from burnish.trust.sampling import comparer
from tests.against_eager import fallback_warnings
from tests.gpu.on_device import DEVICE, randn

pytestmark = pytest.mark.gpu
LONG = 120.0


def model() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(48, 64), nn.LayerNorm(64), nn.GELU(), nn.Linear(64, 24)).eval().to(DEVICE)


def with_fault(fault: Fault | None, **settings: Any) -> Any:
    return burnish.compile(model(), options={"fault": fault}, **settings)


def variant(compiled: Any) -> Any:
    assert comparer.settle(timeout=LONG)
    (only,) = burnish.stats(compiled).variants
    return only


def quietly(call: Callable[[], Any]) -> Any:
    return fallback_warnings(call)[0]


# -- the gate --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", [WrongBy(0.01), NotANumber(), RaisesAtRun()], ids=lambda f: type(f).__name__)
def test_a_wrong_program_never_serves(fault: Fault) -> None:
    compiled = with_fault(fault)
    x = randn(32, 48)
    with torch.no_grad():
        for _ in range(2):
            assert torch.equal(quietly(lambda: compiled(x)), compiled.eager(x))
    assert variant(compiled).state == "rolled back" and variant(compiled).rollbacks == 1


def test_a_slow_program_loses() -> None:
    """By far, and eager is warm: what its libraries take for their first call, with others on the device, may be more
    than the program's whole trial."""
    compiled = with_fault(Slower(1000), gate=True)
    x = randn(32, 48)
    with torch.no_grad():
        compiled.eager(x)
        compiled(x)
        assert variant(compiled).state == "eager" and variant(compiled).gate.ratio > 2
        assert torch.equal(compiled(x), compiled.eager(x))


def test_what_was_queued_before_is_nobodys_time() -> None:
    """Eager runs first. Had it to wait for the caller's work, whatever is measured after it would win."""
    if DEVICE != "cuda":
        pytest.skip("a CPU has no queue")
    busy = torch.randn(4096, 4096, device=DEVICE)
    for _ in range(100):
        busy = torch.tanh(busy @ busy)
    gate = Gate(GraphFacts("inference"), compare=False, race=False, compile_seconds=1.0)
    seen: list[bool] = []

    def eager(x: torch.Tensor) -> torch.Tensor:
        seen.append(torch.cuda.current_stream().query())  # whether the queue is empty
        return x + 1

    gate.judge(eager, {"burnish": eager}, [randn(8)])
    assert seen[0]


class Stateful(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(16)
        self.register_buffer("cache", torch.zeros(8, 16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.cache[: len(x)] = x
        return self.norm(x * 2) + self.cache.sum(0)


def test_trials_leave_state_as_one_call_does() -> None:
    eager = Stateful().to(DEVICE)
    compiled = burnish.compile(copy.deepcopy(eager))
    for _ in range(3):
        x = randn(8, 16)
        torch.testing.assert_close(compiled(x), eager(x))
        for ours, theirs in zip(compiled.buffers(), eager.buffers(), strict=True):
            torch.testing.assert_close(ours, theirs)


def test_trials_draw_random_numbers_once() -> None:
    def noisy(x: torch.Tensor) -> torch.Tensor:
        return F.dropout(x, 0.5, training=True) * 2 + torch.rand_like(x)

    def sequence(call: Callable[..., torch.Tensor]) -> list[torch.Tensor]:
        torch.manual_seed(7)
        return [*(call(x) for _ in range(3)), torch.rand(5, device=DEVICE), torch.rand(5)]

    x = torch.ones(256, device=DEVICE)
    torch.testing.assert_close(sequence(burnish.compile(noisy)), sequence(noisy))


# -- rollback and sampling -------------------------------------------------------------------------------------------


def test_a_program_that_raises_later_is_rolled_back() -> None:
    compiled = with_fault(RaisesAtRun(after=8), gate=False)
    x = randn(32, 48)
    with torch.no_grad():
        for _ in range(12):
            torch.testing.assert_close(quietly(lambda: compiled(x)), compiled.eager(x))
    assert variant(compiled).state == "rolled back" and "injected" in variant(compiled).reason


@pytest.mark.parametrize("fault", [WrongBy(0.01, after=4), NotANumber(after=4)], ids=lambda f: type(f).__name__)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_sampling_finds_it(fault: Fault, dtype: torch.dtype) -> None:
    compiled = burnish.compile(model().to(dtype), options={"fault": fault}, gate=False, sample=1.0)
    with torch.no_grad():
        for _ in range(8):
            x = randn(32, 48, dtype=dtype)
            quietly(lambda x=x: compiled(x))
            comparer.settle(LONG)
        assert variant(compiled).state == "rolled back" and "a sampled call" in variant(compiled).reason
        assert torch.equal(compiled(x), compiled.eager(x))


def test_sampling_sees_what_the_call_saw() -> None:
    """On a stream of the caller's that is far behind, and writes its input again as soon as it can."""
    if DEVICE != "cuda":
        pytest.skip("a CPU has no streams")
    compiled = burnish.compile(model(), sample=1.0, gate=False)
    with torch.no_grad():
        compiled(randn(32, 48))
        torch.cuda.synchronize()
        with torch.cuda.stream(torch.cuda.Stream()):
            for _ in range(10):
                x = randn(32, 48)
                torch.cuda._sleep(20_000_000)
                x.mul_(3)
                y = compiled(x)
                x.fill_(float("nan"))
                y.zero_()
                comparer.settle(LONG)
    assert variant(compiled).state == "compiled" and variant(compiled).samples >= 8


def test_a_call_that_is_captured_is_not_sampled() -> None:
    if DEVICE != "cuda":
        pytest.skip("a CPU has no graphs")
    compiled = burnish.compile(model(), sample=1.0, gate=False)
    x = randn(32, 48)
    with torch.no_grad():
        for _ in range(3):
            compiled(x)
        before = variant(compiled).samples
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = compiled(x)
        x.copy_(randn(32, 48))
        graph.replay()
        torch.testing.assert_close(y, compiled.eager(x))
    assert variant(compiled).samples == before


# -- the rest ---------------------------------------------------------------------------------------------------------


def test_a_compile_in_the_background_changes_over() -> None:
    compiled = burnish.compile(model(), background=True, gate=False)
    x = randn(32, 48)
    with torch.no_grad():
        for _ in range(3):
            torch.testing.assert_close(compiled(x), compiled.eager(x))
            assert compiled.burnish.wait(LONG)
    assert variant(compiled).state == "compiled" and burnish.stats(compiled).compiles == 1


def test_verify_runs_and_is_content() -> None:
    result = verify(model(), (randn(32, 48),))
    assert result.ok, str(result)


def test_explain_tells_of_kernels() -> None:
    result = explain(model(), (randn(32, 48),))
    assert "GB/s" in str(result)


# -- kernels that are still being built when a call comes ---------------------------------------------------------


@pytest.mark.parametrize("settings", [{}, {"gate": False, "verify": "off"}])
def test_kernels_that_cannot_be_built_leave_eager_to_serve(settings, monkeypatch):
    def fails(builder: Any, source: Any, pool: Any, log: Any) -> None:
        raise CompileError("build", "on purpose")

    monkeypatch.setattr(KernelBuilder, "_build_one", fails)
    net = nn.Sequential(nn.LayerNorm(77), nn.GELU(), nn.Softmax(-1)).eval().to(DEVICE)  # sizes of no other test's
    c = burnish.compile(net, options=settings)
    x = randn(5, 77)
    with torch.no_grad(), pytest.warns(FallbackWarning, match="on purpose"):
        assert torch.equal(c(x), net(x))
    with torch.no_grad():
        assert torch.equal(c(x), net(x))
    assert variant(c).state == "rolled back" and burnish.stats(c).compiles == 1


def test_what_was_woken_is_over_and_drew_nothing() -> None:
    torch.manual_seed(5)
    expected = torch.rand(4, device=DEVICE)
    torch.manual_seed(5)
    compiled, x = burnish.compile(model()), randn(32, 48)
    torch.manual_seed(5)
    with torch.no_grad():
        compiled(x)
    assert torch.equal(torch.rand(4, device=DEVICE), expected)
    assert not [thread for thread in threading.enumerate() if thread.name == "burnish-preload"]
