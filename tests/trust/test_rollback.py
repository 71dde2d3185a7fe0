"""What fails while it serves: eager's result for that very call, and that one graph is taken back, nothing else."""

from __future__ import annotations

import contextlib
import copy
from typing import Any

import pytest
import torch
from torch import nn

import burnish
from burnish.trust.engines import Engines
from burnish.trust.faults import Fault, RaisesAtRun, Slower
from burnish.trust.gate import GraphFacts
from burnish.trust.variant import Policy, Variant
from tests.against_eager import fallback_warnings

X = torch.linspace(-1, 2, 24).reshape(4, 6)


def model() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.GELU(), nn.Linear(8, 3)).eval()


def states(compiled: Any) -> list[str]:
    return [variant.state for variant in burnish.stats(compiled).variants]


class Switched(Fault):
    """Fails while `broken` is set."""

    def __init__(self) -> None:
        self.broken = False
        self.calls = 0

    def program(self, variant: int, call: Any) -> Any:
        def run(*args: Any) -> Any:
            self.calls += 1
            if self.broken:
                raise RuntimeError("injected: out of order")
            return call(*args)

        return run


def test_an_exception_after_the_trial():
    """The trial is the program's first run; the third call is its fourth."""
    compiled = burnish.compile(model(), options={"fault": RaisesAtRun(after=2)})
    other = burnish.compile(model())
    with torch.no_grad():
        results, messages = fallback_warnings(lambda: [compiled(X) for _ in range(4)])
        for result in results:
            torch.testing.assert_close(result, compiled.eager(X))
        assert torch.equal(results[2], compiled.eager(X)) and torch.equal(results[3], compiled.eager(X))
        other(X)
    (variant,) = burnish.stats(compiled).variants
    assert variant.state == "rolled back" and "injected: call 3" in variant.reason
    assert "Traceback" in variant.stack and "faults.py" in variant.stack
    assert len(messages) == 1 and states(other) == ["compiled"]


def test_only_the_graph_that_fails():
    fault = RaisesAtRun(2, after=1)
    compiled = burnish.compile(model(), options={"fault": fault}, dynamic=False)
    with torch.no_grad():
        for _ in range(3):
            for rows in (2, 3, 4):
                x = torch.randn(rows, 6)
                result, _ = fallback_warnings(lambda x=x: compiled(x))
                torch.testing.assert_close(result, compiled.eager(x))
    assert states(compiled) == ["compiled", "rolled back", "compiled"]
    assert burnish.stats(compiled).compiles == 3


def test_rollback_and_retry_by_hand():
    fault = Switched()
    compiled = burnish.compile(model(), options={"fault": fault})
    with torch.no_grad():
        compiled(X)
        _, messages = fallback_warnings(lambda: compiled.burnish.rollback("a drill"))
        assert messages == [] and states(compiled) == ["rolled back"]
        assert burnish.stats(compiled).variants[0].reason == "a drill"
        runs = fault.calls
        assert torch.equal(compiled(X), compiled.eager(X)) and torch.equal(compiled(X[:2]), compiled.eager(X[:2]))
        assert fault.calls == runs and burnish.stats(compiled).compiles == 1, "neither runs nor compiles"
        compiled.burnish.retry()
        assert states(compiled) == ["on trial"]
        torch.testing.assert_close(compiled(X), compiled.eager(X))
        assert states(compiled) == ["compiled"] and fault.calls > runs
    assert burnish.stats(compiled).compiles == 1 and burnish.stats(compiled).fallbacks == ()


def test_retry_after_a_failure_that_went_away():
    fault = Switched()
    compiled = burnish.compile(model(), options={"fault": fault})
    with torch.no_grad():
        compiled(X)
        fault.broken = True
        result, messages = fallback_warnings(lambda: compiled(X))
        assert torch.equal(result, compiled.eager(X)) and len(messages) == 1
        fault.broken = False
        compiled(X)
        assert states(compiled) == ["rolled back"], "not by itself"
        compiled.burnish.retry()
        torch.testing.assert_close(compiled(X), compiled.eager(X))
    assert states(compiled) == ["compiled"] and burnish.stats(compiled).variants[0].rollbacks == 1


def test_training_fails_while_it_serves():
    fault = Switched()
    compiled = burnish.compile(model(), options={"fault": fault})
    twin = copy.deepcopy(compiled.eager)
    for step in range(4):
        fault.broken = step == 2
        for net in (compiled, twin):
            net.zero_grad()
            fallback_warnings(lambda net=net: net(X).square().sum().backward())
        for ours, theirs in zip(compiled.parameters(), twin.parameters(), strict=True):
            torch.testing.assert_close(ours.grad, theirs.grad)
    assert states(compiled) == ["rolled back"]


def test_a_failure_after_inputs_were_written_is_told_and_not_repeated():
    """Running eager then would add twice."""

    def fn(x: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        return x * 2

    class HalfDone(Fault):
        broken = False

        def program(self, variant: int, call: Any) -> Any:
            def run(*args: Any) -> Any:
                result = call(*args)
                if self.broken:
                    error = RuntimeError("injected: after the write")
                    error.inputs_changed = True
                    raise error
                return result

            return run

    fault = HalfDone()
    compiled = burnish.compile(fn, options={"fault": fault})
    x = torch.zeros(3)
    compiled(x)
    fault.broken = True
    with pytest.raises(RuntimeError, match="after the write") as raised:
        fallback_warnings(lambda: compiled(x))
    assert any("cannot be repeated in eager" in note for note in raised.value.__notes__)
    assert states(compiled) == ["rolled back"]
    x = torch.zeros(3)
    torch.testing.assert_close(compiled(x), torch.full((3,), 2.0))
    torch.testing.assert_close(x, torch.ones(3))


@pytest.mark.skipif(torch.__version__ < "2.13", reason="AOTAutograd drops the op's check as dead code there")
def test_what_fails_before_the_first_write_is_done_over_in_eager():
    def early(x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        y = torch.linalg.cholesky(at)
        x.add_(1)
        return x * 2 + y

    compiled = burnish.compile(early)
    x, good, bad = torch.zeros(3, 3), torch.eye(3), -torch.eye(3)
    compiled(x, good)
    with pytest.raises(torch.linalg.LinAlgError):
        compiled(x, bad)
    torch.testing.assert_close(x, torch.ones(3, 3))
    assert states(compiled) == ["compiled"], "eager raises the same: the caller's mistake"


def test_what_fails_after_the_first_write_cannot_be_done_over():
    def late(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
        x.index_add_(0, i, torch.ones(2, 3))
        return x * 2

    compiled, x = burnish.compile(late), torch.zeros(3, 3)
    compiled(x, torch.tensor([0, 1]))
    with pytest.raises((IndexError, RuntimeError)):
        compiled(x, torch.tensor([0, 9]))
    assert states(compiled) == ["compiled"] and burnish.stats(compiled).fallbacks == ()


def test_what_eager_serves_better_goes_around_dynamo():
    fault = Slower()
    compiled = burnish.compile(lambda x: x * 2 + 1, options={"fault": fault}, gate=True, dynamic=False)
    eager, entrance = compiled.burnish.eager, compiled.burnish.entrance
    open_call = entrance.call
    compiled(X)
    assert states(compiled) == ["eager"] and entrance.call is not open_call
    for _ in range(20):
        assert torch.equal(compiled(X), eager(X))
    assert burnish.stats(compiled).compiles == 1
    fault.times = 1
    y = torch.randn(64, 512)
    for _ in range(40):  # inputs of another kind are noticed, if not at once
        torch.testing.assert_close(compiled(y), eager(y))
    assert burnish.stats(compiled).compiles == 2


def test_eager_takes_over_with_the_numbers_that_were_drawn_in_vain():
    def fails(x: torch.Tensor) -> torch.Tensor:
        torch.rand(3)
        raise RuntimeError("no memory")

    eager = lambda x: x * torch.rand(3)  # noqa: E731
    facts, policy = GraphFacts("inference", draws=True), Policy(verify=False, gate=False)
    variant, x = Variant(1, facts, Engines(facts, eager, {"burnish": fails}), policy), torch.ones(3)
    torch.manual_seed(5)
    found = variant.call(x)
    torch.manual_seed(5)
    assert torch.equal(found, eager(x)) and variant.state == "rolled back"


def test_a_trial_that_raises_leaves_the_call_to_be_made():
    """Eager raises beside the call, on copies: what it writes before that is the caller's to see, once."""

    def forward(x, index):
        x.add_(torch.rand(()))
        return torch.ones(3)[index]

    compiled = burnish.compile(forward)
    for index in (5, 1, 5):
        ours, theirs = torch.zeros(4), torch.zeros(4)
        states_after = []
        for fn, x in ((compiled, ours), (forward, theirs)):
            torch.manual_seed(3)
            with contextlib.suppress(IndexError):
                fn(x, torch.tensor([index]))
            states_after.append(torch.get_rng_state())
        assert torch.equal(ours, theirs)
        assert torch.equal(*states_after)
    assert states(compiled) != ["rolled back"]


class _LooksUpBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, index):
        ctx.save_for_backward(index)
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        (index,) = ctx.saved_tensors
        return grad * torch.arange(3.0)[index].sum(), None


def test_what_only_a_backward_raises_is_not_raised_by_the_forward():
    """The trial of a training step runs its backward, too, which the caller may never ask for."""
    compiled = burnish.compile(lambda x, index: _LooksUpBackward.apply(x, index).sin())
    x = torch.ones(4, requires_grad=True)
    compiled(x, torch.tensor([1])).sum().backward()
    for _ in range(5):
        y = compiled(x, torch.tensor([5]))
        with pytest.raises(IndexError):
            y.sum().backward()
    x.grad = None
    compiled(x, torch.tensor([1])).sum().backward()
    torch.testing.assert_close(x.grad, torch.cos(2 * torch.ones(4)))
