"""Live calls compared with eager: an error of 1 % is found, honest rounding is not, and the caller notices neither."""

from __future__ import annotations

import copy
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

import burnish
from burnish.trust.faults import Fault, NotANumber, WrongBy
from burnish.trust.record import VariantStats
from burnish.trust.sampling import Sample, comparer, gaps
from tests.against_eager import fallback_warnings

X = torch.linspace(-1, 2, 24).reshape(4, 6)


def model() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.GELU(), nn.Linear(8, 3)).eval()


def settled(compiled: Any) -> VariantStats:
    assert comparer.settle(timeout=60)
    (variant,) = burnish.stats(compiled).variants
    return variant


def called(compiled: Any, *args: Any) -> Any:
    """One call, and its comparison if it was sampled."""
    result, _ = fallback_warnings(lambda: (compiled(*args), comparer.settle(timeout=60))[0])
    return result


def compiled_with(fault: Fault | None, sample: float = 1.0, target: Any = None) -> Any:
    return burnish.compile(target or model(), options={"fault": fault}, sample=sample)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_an_error_of_one_percent_is_found_at_the_next_sample(dtype):
    compiled = compiled_with(WrongBy(0.01, after=3), target=model().to(dtype))
    x = X.to(dtype)
    with torch.no_grad():
        for _ in range(3):
            called(compiled, x)
        assert settled(compiled).state == "compiled"
        called(compiled, x)
        variant = settled(compiled)
        assert variant.state == "rolled back" and "a sampled call" in variant.reason and variant.rollbacks == 1
        assert torch.equal(compiled(x), compiled.eager(x))


def test_an_error_of_one_percent_in_bfloat16_is_found_within_eight_samples():
    """Where rounding alone moves a result by half a percent, one sample proves nothing."""
    compiled = compiled_with(WrongBy(0.01, after=1), target=model().to(torch.bfloat16))
    with torch.no_grad():
        for seed in range(9):
            torch.manual_seed(seed)
            called(compiled, torch.randn(4, 6, dtype=torch.bfloat16))
    assert settled(compiled).state == "rolled back" and settled(compiled).samples <= 8


@pytest.mark.parametrize("grad", [False, True], ids=["inference", "training"])
def test_a_nan_is_found_and_that_call_gets_eagers_result(grad):
    compiled = compiled_with(NotANumber(after=2))
    with torch.set_grad_enabled(grad):
        results = [called(compiled, X) for _ in range(3)]
        assert torch.equal(results[2], compiled.eager(X)) and results[2].requires_grad == grad
    assert settled(compiled).state == "rolled back" and "NaNs" in settled(compiled).reason


def test_a_nan_in_a_call_that_changes_state_is_undone():
    def add(x: torch.Tensor, sums: torch.Tensor) -> torch.Tensor:
        sums += x.sum(0)
        return x * sums

    compiled = compiled_with(NotANumber(after=2), target=add)
    ours, theirs = torch.zeros(6), torch.zeros(6)
    for _ in range(4):
        torch.testing.assert_close(called(compiled, X, ours), add(X, theirs))
        torch.testing.assert_close(ours, theirs)
    assert settled(compiled).state == "rolled back"


def test_wrong_random_numbers_are_eagers_in_that_very_call():
    compiled = compiled_with(WrongBy(0.5, after=2), target=lambda x: nn.functional.dropout(x, 0.5) * 2)
    torch.manual_seed(5)
    ours = [called(compiled, X) for _ in range(4)] + [torch.rand(3)]
    torch.manual_seed(5)
    torch.testing.assert_close(ours, [compiled.burnish.eager(X) for _ in range(4)] + [torch.rand(3)])
    assert settled(compiled).state == "rolled back"


def test_a_comparison_that_fails_within_the_call_is_no_alarm(monkeypatch):
    def no_memory(self: Sample, ours: Any) -> Any:
        torch.rand(3)
        raise torch.OutOfMemoryError("injected")

    monkeypatch.setattr(Sample, "_opinion", no_memory)
    compiled = compiled_with(None, target=lambda x: nn.functional.dropout(x, 0.5) * 2)
    torch.manual_seed(5)
    ours = [called(compiled, X) for _ in range(3)] + [torch.rand(3)]
    torch.manual_seed(5)
    torch.testing.assert_close(ours, [compiled.burnish.eager(X) for _ in range(3)] + [torch.rand(3)])
    assert settled(compiled).state == "compiled" and settled(compiled).samples_dropped == 2


def test_infinities_that_eager_has_too_hold_up_one_call_only(monkeypatch):
    within_call: list[bool] = []
    compare = Sample.compare

    def counted(self: Sample) -> bool:
        within_call.append(threading.current_thread() is threading.main_thread())
        return compare(self)

    monkeypatch.setattr(Sample, "compare", counted)
    compiled = compiled_with(None, target=lambda x: x.masked_fill(x < 0, -torch.inf).softmax(-1).log())
    for _ in range(4):
        called(compiled, X)
    assert settled(compiled).state == "compiled" and within_call == [True, False, False]


def test_the_share_of_calls_is_the_one_asked_for():
    gap = gaps(0.01, seed=1)
    drawn = [gap() for _ in range(2000)]
    assert 90 < sum(drawn) / len(drawn) < 110 and min(drawn) == 1 and max(drawn) == 199
    assert {gaps(1.0, seed=2)() for _ in range(5)} == {1}


def test_an_error_is_found_within_its_share_of_calls():
    compiled = compiled_with(WrongBy(0.01, after=1), sample=0.1)
    with torch.no_grad():
        for _ in range(20):  # no gap is longer
            called(compiled, X)
    assert settled(compiled).state == "rolled back"


class Block(nn.Module):
    """Norms, an attention and a product: half types round at every step in eager, and rarely in fused kernels."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.qkv, self.out = nn.LayerNorm(32), nn.Linear(32, 96), nn.Linear(32, 32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(self.norm(x)).chunk(3, -1)
        return x + self.out((q @ k.transpose(-1, -2) / 32**0.5).softmax(-1) @ v).tanh() * torch.sigmoid(x)


class Logits(nn.Module):
    """Half types inside, float32 outside: eager's error is that of the coarser type."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.Sequential(Block(), Block())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.blocks(x).float().log_softmax(-1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("kind", [Block, Logits])
def test_honest_rounding_never_alarms(dtype, kind):
    torch.manual_seed(1)
    compiled = compiled_with(None, target=kind().to(dtype).eval())
    with torch.no_grad():
        for seed in range(12):
            torch.manual_seed(seed)
            called(compiled, (torch.randn(2, 9, 32) * 10 ** (seed % 4 - 2)).to(dtype))
    variant = settled(compiled)
    assert variant.state == "compiled" and variant.samples == 11, variant


def test_state_that_calls_change():
    class Cache(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("sums", torch.zeros(6))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.sums += x.sum(0)
            return x * self.sums

    eager = Cache()
    compiled = compiled_with(None, target=copy.deepcopy(eager))
    for step in range(5):
        torch.testing.assert_close(called(compiled, X + step), eager(X + step))
    torch.testing.assert_close(compiled.sums, eager.sums)
    assert settled(compiled).state == "compiled" and settled(compiled).samples == 4


def test_random_numbers_stay_the_callers():
    compiled = compiled_with(None, target=lambda x: nn.functional.dropout(x, 0.5) * 2)
    eager = compiled.burnish.eager
    torch.manual_seed(5)
    ours = [called(compiled, X) for _ in range(4)]
    torch.manual_seed(5)
    torch.testing.assert_close(ours, [eager(X) for _ in range(4)])
    assert settled(compiled).samples == 3 and settled(compiled).state == "compiled"


@pytest.fixture
def default_dtype() -> Iterator[None]:
    before = torch.get_default_dtype()
    yield
    torch.set_default_dtype(before)


def of_whole_numbers(x: torch.Tensor) -> torch.Tensor:
    """Of the default dtype, and so is its quotient."""
    return x.round().to(torch.int64) / 3


def test_the_default_dtype_set_after_a_call_is_no_alarm(default_dtype, monkeypatch):
    compiled = compiled_with(None, target=of_whole_numbers)
    called(compiled, X)
    compare, late = Sample.compare, threading.Event()

    def after_the_change(self: Sample) -> bool:
        assert late.wait(60)
        return compare(self)

    monkeypatch.setattr(Sample, "compare", after_the_change)
    compiled(X)
    torch.set_default_dtype(torch.float64)
    late.set()
    variant = settled(compiled)
    assert variant.state == "compiled" and variant.samples == 1


def test_the_default_dtype_set_while_eager_runs_is_no_alarm(default_dtype, monkeypatch):
    """It is what it was when the run has ended."""
    compiled = compiled_with(None, target=of_whole_numbers)
    called(compiled, X)
    run, runs = Sample._run, 0

    def meeting_another(self: Sample, *args: Any) -> Any:
        nonlocal runs
        runs += 1
        torch.set_default_dtype(torch.float64 if runs == 1 else torch.float32)
        try:
            return run(self, *args)
        finally:
            torch.set_default_dtype(torch.float32)

    monkeypatch.setattr(Sample, "_run", meeting_another)
    called(compiled, X)
    assert settled(compiled).state == "compiled" and runs == 2


def test_closing_drops_the_samples_that_wait(monkeypatch):
    compare, late = Sample.compare, threading.Event()

    def held(self: Sample) -> bool:
        assert late.wait(60)
        return compare(self)

    monkeypatch.setattr(Sample, "compare", held)
    compiled = compiled_with(None)
    for _ in range(4):  # the trial, the sample under way, and two that wait
        compiled(X)
    compiled.burnish.close()
    waiting = len(comparer._waiting)
    late.set()
    assert comparer.settle(60) and waiting == 0


def test_inputs_and_results_overwritten_at_once():
    """The comparison works on copies: what the caller does after the call is his own affair."""
    compiled = compiled_with(None, target=lambda x: x.softmax(-1) + 1)
    x = X.clone()
    for _ in range(6):
        result = compiled(x)
        x.add_(1).mul_(-0.5)
        result.zero_()
        assert comparer.settle(timeout=60)
    assert settled(compiled).state == "compiled" and settled(compiled).samples == 5


def test_weights_changed_between_call_and_comparison():
    compiled = compiled_with(None)
    with torch.no_grad():
        for step in range(6):
            compiled(X)
            for p in compiled.parameters():  # without a trace, while the comparison may be under way
                p.data.mul_(1.5 if step % 2 else 0.5)
            assert comparer.settle(timeout=60)
    assert settled(compiled).state == "compiled"


def test_weights_laid_out_otherwise_between_call_and_comparison():
    """No guard stands in front of compiled code that is run again: it would read what is no weight."""
    compiled = compiled_with(None)
    with torch.no_grad():
        for _ in range(4):
            compiled(X)
            for p in compiled.parameters():
                p.data = torch.stack([p.data * 2, p.data], -1)[..., 0]
            assert comparer.settle(timeout=60)
    assert all(variant.rollbacks == 0 for variant in burnish.stats(compiled).variants)


def test_training_calls():
    compiled = compiled_with(None)
    for _ in range(4):
        called(compiled, X).sum().backward()
    variant = settled(compiled)
    assert variant.state == "compiled" and variant.samples >= 2


def test_without_sampling_nothing_is_compared():
    compiled = burnish.compile(model())
    with torch.no_grad():
        for _ in range(20):
            compiled(X)
    assert settled(compiled).samples == 0 and settled(compiled).samples_dropped == 0


def test_forward_mode_is_compared_in_the_thread_that_calls(monkeypatch):
    """It has one level for the whole process: in another thread, the caller's own would be refused."""
    submitted = []
    monkeypatch.setattr(comparer, "submit", submitted.append)
    compiled = compiled_with(None, target=lambda x: torch.func.jvp(torch.sin, (x,), (torch.ones_like(x),))[1])
    for _ in range(4):
        torch.testing.assert_close(compiled(X), X.cos())
    assert not submitted and settled(compiled).samples >= 2


@pytest.mark.parametrize("grad", [False, True], ids=["plain", "gradient"])
def test_derivatives_inside_are_compared_as_the_caller_takes_them(grad):
    """Without grad mode, eager's own `torch.func.grad` of a captured graph would be zero."""

    def fn(x):
        return torch.func.grad(lambda t: torch.nn.functional.gelu(t).sum())(x) + x

    compiled = compiled_with(None, target=fn)
    for _ in range(3):
        x = X.clone().requires_grad_(grad)
        torch.testing.assert_close(called(compiled, x), fn(x))
    variant = settled(compiled)
    assert variant.state == "compiled" and variant.samples > 0
