"""Each graph is judged before it is used: wrong, failing and slow ones are eager's to serve, and only they."""

from __future__ import annotations

import contextlib
import copy
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import burnish
from burnish.errors import CompileError
from burnish.trust import gate, referee
from burnish.trust.distance import unequal
from burnish.trust.faults import Fault, NotANumber, RaisesAtRun, RaisesInCompile, Slower, WrongBy
from burnish.trust.gate import Gate, GraphFacts
from burnish.trust.record import VariantStats
from burnish.trust.referee import InFloat64, judge
from burnish.trust.rounding import RandomRounding
from burnish.trust.shadow_runs import ShadowRuns
from tests.against_eager import fallback_warnings

X = torch.linspace(-1, 2, 24).reshape(4, 6)


def model() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.GELU(), nn.Linear(8, 3)).eval()


def only_variant(compiled: Any) -> VariantStats:
    (variant,) = burnish.stats(compiled).variants
    return variant


def faulty(fault: Fault, **arguments: Any) -> Any:
    return burnish.compile(model(), options={"fault": fault}, **arguments)


def test_a_right_graph_is_compiled_and_says_what_was_measured():
    compiled = burnish.compile(model(), gate=True)
    with torch.no_grad():
        compiled(X)
    variant = only_variant(compiled)
    assert variant.state in ("compiled", "eager") and variant.kind == "inference"
    assert variant.signature == "float32[4, 6]"
    assert variant.gate is not None and variant.gate.compiled_error < 1e-5
    assert variant.gate.ratio > 0 and variant.gate.seconds > 0 and variant.gate.compile_seconds > 0


def test_the_first_call_returns_the_compiled_result():
    """So that whoever compares the first call with eager compares what will serve."""
    compiled = burnish.compile(lambda x: (x * 3).softmax(-1).sum(0), verify="first", gate=False)
    assert torch.equal(compiled(X), compiled(X))
    assert only_variant(compiled).state == "compiled"


@pytest.mark.parametrize("fault", [WrongBy(0.01), NotANumber(), RaisesAtRun()], ids=lambda f: type(f).__name__)
@pytest.mark.parametrize("grad", [False, True], ids=["inference", "training"])
def test_a_wrong_graph_never_serves(fault, grad):
    compiled = faulty(fault)
    eager = compiled.burnish.eager
    with torch.set_grad_enabled(grad):
        results, messages = fallback_warnings(lambda: [compiled(X) for _ in range(3)])
        assert all(torch.equal(result, eager(X)) for result in results)
    assert len(messages) == 1 and "Way out" in messages[0]
    variant = only_variant(compiled)
    assert variant.state == "rolled back" and variant.engine == "eager" and variant.rollbacks == 1
    expected = {WrongBy: "off by 0.01", NotANumber: "NaNs", RaisesAtRun: "injected: call 1"}[type(fault)]
    assert expected in variant.reason
    assert ("RuntimeError" in variant.stack) == isinstance(fault, RaisesAtRun)
    assert [f.stage for f in burnish.stats(compiled).fallbacks] == ["run"]


def test_the_gradients_of_a_wrong_graph_are_eagers():
    compiled = faulty(WrongBy(0.01))
    twin = copy.deepcopy(compiled.eager)
    fallback_warnings(lambda: compiled(X).square().sum().backward())
    twin(X).square().sum().backward()
    for ours, theirs in zip(compiled.parameters(), twin.parameters(), strict=True):
        assert torch.equal(ours.grad, theirs.grad)


def test_a_slower_graph_is_served_by_eager_without_a_warning():
    compiled = faulty(Slower(), gate=True)
    with torch.no_grad():
        _, messages = fallback_warnings(lambda: compiled(X))
    variant = only_variant(compiled)
    assert (variant.state, variant.engine) == ("eager", "eager") and "times as long" in variant.reason
    assert variant.gate.ratio > 1 and messages == [] and burnish.stats(compiled).fallbacks == ()


def test_a_slower_graph_serves_where_the_race_is_off():
    compiled = faulty(Slower(), gate=False)
    with torch.no_grad():
        compiled(X)
    assert only_variant(compiled).state == "compiled" and only_variant(compiled).gate.ratio is None


def test_nothing_is_judged_where_both_are_off():
    compiled = faulty(WrongBy(0.01), verify="off", gate=False)
    with torch.no_grad():
        torch.testing.assert_close(compiled(X), compiled.eager(X) * 1.01)
    assert only_variant(compiled).state == "compiled" and only_variant(compiled).gate is None


def test_one_variant_in_three_fails_and_the_others_serve():
    compiled = faulty(RaisesAtRun(3), dynamic=False)
    with torch.no_grad():
        for rows in (2, 3, 4, 5, 4, 2):
            x = torch.randn(rows, 6)
            result, _ = fallback_warnings(lambda x=x: compiled(x))
            torch.testing.assert_close(result, compiled.eager(x))
    stats = burnish.stats(compiled)
    assert stats.compiles == 4
    assert [v.state for v in stats.variants] == ["compiled", "compiled", "rolled back", "compiled"]


def test_one_variant_in_three_does_not_compile():
    compiled = faulty(RaisesInCompile(3), dynamic=False)
    with torch.no_grad():
        for rows in (2, 3, 4, 5):
            x = torch.randn(rows, 6)
            result, _ = fallback_warnings(lambda x=x: compiled(x))
            torch.testing.assert_close(result, compiled.eager(x))
    stats = burnish.stats(compiled)
    assert [v.engine for v in stats.variants] == ["burnish", "burnish", "eager", "burnish"]
    assert len(stats.fallbacks) == 1


# --- what judging may cost -----------------------------------------------------------------------------------------


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def call(self, seconds: float) -> Any:
        def run(x: torch.Tensor) -> torch.Tensor:
            self.now += seconds
            return x * 2

        return run


@pytest.mark.parametrize(
    ("eager", "ours", "compile_seconds"),
    [(3e-5, 1e-5, 0.7), (3e-5, 2.9e-5, 0.7), (0.01, 0.0099, 1.0), (0.148, 0.123, 7.8), (0.3, 0.29, 14.0)],
)
def test_the_gate_takes_a_tenth_of_the_compile_at_most(eager, ours, compile_seconds):
    clock = Clock()
    gate = Gate(GraphFacts("inference"), compare=True, race=True, compile_seconds=compile_seconds, clock=clock)
    verdict = gate.judge(clock.call(eager), {"burnish": clock.call(ours)}, (X,))
    assert verdict.winner == "burnish" and verdict.stats.rounds >= 2
    assert verdict.stats.seconds == pytest.approx(clock.now) and verdict.stats.share_of_compile <= 0.10


def test_what_is_still_being_built_is_waited_for_after_eager_and_is_the_compiles_time():
    clock, order = Clock(), []

    def ready():
        order.append(clock.now)
        clock.now += 3.0

    gate = Gate(GraphFacts("inference"), compare=True, race=True, compile_seconds=1.0, clock=clock)
    verdict = gate.judge(clock.call(0.01), {"burnish": clock.call(0.001)}, (X,), ready)
    assert order == [pytest.approx(0.01)]
    assert verdict.stats.seconds == pytest.approx(clock.now - 3.0) and verdict.stats.compile_seconds == 4.0


def test_what_cannot_be_built_after_all_does_not_serve():
    def ready():
        raise CompileError("build", "on purpose")

    gate = Gate(GraphFacts("inference"), compare=True, race=True, compile_seconds=1.0)
    verdict = gate.judge(torch.neg, {"burnish": lambda x: pytest.fail("it is not there")}, (X,), ready)
    assert verdict.winner == "eager" and "on purpose" in verdict.failures["burnish"].reason


@pytest.mark.parametrize(("ours", "winner", "rounds"), [(0.004, "burnish", 2), (0.025, "eager", 6)])
def test_a_race_is_over_where_ours_is_twice_as_fast_and_lost_after_five_rounds(ours, winner, rounds):
    clock = Clock()
    gate = Gate(GraphFacts("inference"), compare=True, race=True, compile_seconds=5.0, clock=clock)
    verdict = gate.judge(clock.call(0.01), {"burnish": clock.call(ours)}, (X,))
    assert verdict.winner == winner and verdict.stats.rounds == rounds
    assert clock.now == pytest.approx((rounds + 1) * (0.01 + ours))  # compared, warmed up, timed


@pytest.mark.parametrize(("first", "on_cuda"), [(0.01, False), (0.01, True), (0.2, True)])
def test_a_call_that_is_slow_for_once_loses_no_race(monkeypatch, first, on_cuda):
    """A CUDA graph is captured in the second or third call; what is long in its first is not so afterwards."""
    monkeypatch.setattr("burnish.trust.shadow_runs.ShadowRuns.on_cuda", property(lambda runs: on_cuda))
    clock, seconds = Clock(), iter([first, 0.3, 0.3])

    def ours(x: torch.Tensor) -> torch.Tensor:
        return clock.call(next(seconds, 0.001))(x)

    gate = Gate(GraphFacts("inference"), compare=True, race=True, compile_seconds=2.0, clock=clock)
    verdict = gate.judge(clock.call(max(first, 0.01)), {"burnish": ours}, (X,))
    assert verdict.winner == "burnish"


@pytest.mark.parametrize(("ours", "winner", "runs"), [(0.9, "burnish", 2), (2.0, "eager", 4)])
def test_calls_longer_than_the_budget_are_run_once_or_to_be_sure_of_a_loser_twice(ours, winner, runs):
    clock = Clock()
    gate = Gate(GraphFacts("inference"), compare=True, race=True, compile_seconds=5.0, clock=clock)
    verdict = gate.judge(clock.call(1.0), {"burnish": clock.call(ours)}, (X,))
    assert verdict.winner == winner and clock.now == pytest.approx(runs / 2 * (1.0 + ours))


@pytest.mark.parametrize(("eager", "ours", "interval"), [(1e-4, 2e-5, True), (0.01, 0.004, False)])
def test_a_ratio_is_shown_with_its_interval_or_not_at_all(eager, ours, interval):
    """Cheap rounds are many enough for one, however clear the first is; dear ones are not repeated for it."""
    clock = Clock()
    gate = Gate(GraphFacts("inference"), compare=True, race=True, compile_seconds=1.0, clock=clock)
    stats = gate.judge(clock.call(eager), {"burnish": clock.call(ours)}, (X,)).stats
    if interval:
        assert stats.ratio_low <= stats.ratio_median <= stats.ratio_high and stats.speed.startswith("5.00 x eager's")
    else:
        assert stats.ratio_median is None and stats.speed == "1 round, not enough for a ratio"


@pytest.mark.parametrize(("compile_seconds", "measured"), [(100.0, True), (0.1, False)])
def test_what_a_backward_takes_is_measured_where_there_is_time(compile_seconds, measured):
    clock, weight = Clock(), torch.ones(3, requires_grad=True)

    class Step(torch.autograd.Function):
        @staticmethod
        def forward(ctx, w, seconds):
            clock.now += seconds
            ctx.seconds = seconds
            return w * 2

        @staticmethod
        def backward(ctx, gradient):
            clock.now += 2 * ctx.seconds
            return gradient * 2, None

    facts = GraphFacts("training")
    gate = Gate(facts, compare=False, race=True, backward=True, compile_seconds=compile_seconds, clock=clock)
    engines = {"burnish": lambda w: Step.apply(w, 0.01)}
    stats = gate.judge(lambda w: Step.apply(w, 0.05), engines, (weight,)).stats
    found = stats.eager_backward_us, stats.compiled_backward_us
    assert found == (pytest.approx((1e5, 2e4)) if measured else (None, None))


# --- what a trial must not touch -----------------------------------------------------------------------------------


class Counting(nn.Module):
    """Writes a cache at a position that advances: a second run from the same state, unseen, would go too far."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(6)
        self.register_buffer("cache", torch.zeros(3, 4, 6))
        self.register_buffer("step", torch.zeros((), dtype=torch.long))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(x)
        self.cache[self.step] = y.detach()
        self.step += 1
        return y.sum(0) + self.cache.sum((0, 1))


@pytest.mark.parametrize("gate", [False, True])
@pytest.mark.parametrize("grad", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("fault", [None, WrongBy(0.01), RaisesAtRun()], ids=["right", "wrong", "raises"])
def test_state_changes_once_per_call(gate, grad, fault):
    eager = Counting()
    compiled = burnish.compile(copy.deepcopy(eager), options={"fault": fault}, gate=gate)
    with torch.set_grad_enabled(grad):
        for step in range(3):
            result, _ = fallback_warnings(lambda step=step: compiled(X + step))
            torch.testing.assert_close(result, eager(X + step))
    for ours, theirs in zip(compiled.buffers(), eager.buffers(), strict=True):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("gate", [False, True])
def test_random_numbers_are_drawn_once(gate):
    compiled = burnish.compile(lambda x: nn.functional.dropout(x, 0.5) + torch.rand_like(x), gate=gate)
    eager = compiled.burnish.eager
    torch.manual_seed(5)
    ours = [compiled(X), compiled(X), torch.rand(3)]
    torch.manual_seed(5)
    theirs = [eager(X), eager(X), torch.rand(3)]
    torch.testing.assert_close(ours, theirs)


def test_gradients_and_hooks_of_parameters_see_one_call():
    compiled = burnish.compile(model(), gate=True)
    seen: list[int] = []
    for parameter in compiled.parameters():
        parameter.register_post_accumulate_grad_hook(lambda p: seen.append(1))
    compiled(X).sum().backward()
    twin = copy.deepcopy(compiled.eager)
    twin.zero_grad()
    twin(X).sum().backward()
    assert len(seen) == len(list(compiled.parameters()))
    for ours, theirs in zip(compiled.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad)


def test_mistakes_of_the_caller_are_eagers_and_no_reason_to_roll_back():
    def pick(table: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
        return table[i] * 2

    compiled = burnish.compile(pick)
    table, good, bad = torch.randn(5, 3), torch.tensor([1, 4]), torch.tensor([1, 5])
    for _ in range(2):  # on trial, then compiled
        with pytest.raises(IndexError) as ours:
            compiled(table, bad)
        with pytest.raises(IndexError) as theirs:
            pick(table, bad)
        assert str(ours.value) == str(theirs.value)
        torch.testing.assert_close(compiled(table, good), pick(table, good))
    assert only_variant(compiled).state == "compiled" and burnish.stats(compiled).fallbacks == ()


# --- training: the backward is compiled when it is first wanted ----------------------------------------------------


def test_a_forward_alone_does_not_compile_a_backward():
    compiled = burnish.compile(model(), gate=True)
    for _ in range(3):
        compiled(X)
    assert burnish.stats(compiled).graphs == {"forward": 1}
    assert only_variant(compiled).state in ("compiled", "eager")


class Counted(Fault):
    """Not one, but counts how often a program is called."""

    def __init__(self) -> None:
        self.calls = 0

    def program(self, variant, call):
        def counted(*args):
            self.calls += 1
            return call(*args)

        return counted


@pytest.mark.parametrize(("hooks", "calls"), [(False, 1), (True, 2)])
def test_the_forward_that_is_compared_is_the_callers_own(hooks, calls):
    """Unless there are hooks on what it saves: checkpointing raises from them, which is no failure of the program."""
    counted = Counted()
    compiled = faulty(counted)
    twin = copy.deepcopy(compiled.eager)
    same = torch.autograd.graph.saved_tensors_hooks(lambda x: x, lambda x: x)
    with same if hooks else contextlib.nullcontext():
        compiled(X).square().sum().backward()
    assert counted.calls == calls and only_variant(compiled).rollbacks == 0
    twin(X).square().sum().backward()
    for ours, theirs in zip(compiled.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad)


def test_a_training_graph_is_judged_with_its_backward():
    compiled = burnish.compile(model(), gate=True)
    for _ in range(2):
        compiled(X).sum().backward()
    variant = only_variant(compiled)
    assert variant.state in ("compiled", "eager") and variant.kind == "training" and variant.gate.ratio > 0


@pytest.mark.parametrize(("dtype", "asked"), [(torch.float32, [True]), (torch.bfloat16, [True, True])])
def test_float64_is_asked_about_a_training_step_once_where_eager_can_tell(dtype, asked, monkeypatch):
    may_ask = []

    def judge(*results, exact, **rest):
        may_ask.append(exact is not None)
        return referee.judge(*results, exact=exact, **rest)

    monkeypatch.setattr(gate, "judge", judge)
    compiled = burnish.compile(model().to(dtype), gate=True)
    for _ in range(2):
        compiled(X.to(dtype)).sum().backward()
    assert may_ask == asked and only_variant(compiled).gate.compiled_error is not None


class Widest(TorchDispatchMode):
    """How many elements the largest tensor of float64 has that is made."""

    elements = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor) and result.dtype is torch.float64:
            self.elements = max(self.elements, result.numel())
        return result


def test_weights_are_widened_one_by_one_and_tables_not_at_all():
    table, first, second = (torch.randn(shape).bfloat16() for shape in ((1000, 16), (24, 16), (16, 24)))
    held = torch.zeros(5, 16).bfloat16()

    def call(ids, table, first, second, held):
        x = torch.nn.functional.embedding(ids, table)
        y = torch.nn.functional.linear(torch.relu(torch.nn.functional.linear(x, first)), second)
        held.add_(y)
        return (y.bfloat16(),)

    args = (torch.arange(5), table, first, second, held)
    runs = ShadowRuns(GraphFacts("inference", changed=frozenset({4})), args, backward=False, repeats=True)
    with Widest() as widest:
        results = runs.run(call, InFloat64())[1]
    assert widest.elements == 24 * 16 and not held.any(), "held is the caller's"
    assert [x.dtype for x in results] == 2 * [torch.float64]
    for found, wanted in zip(results, runs.run(call, InFloat64(at_once=True))[1], strict=True):
        assert torch.equal(found, wanted) and found.any()


@pytest.mark.parametrize("biased", [False, True])
def test_of_a_vocabulary_some_rows_are_widened_at_a_time(monkeypatch, biased):
    monkeypatch.setattr(referee, "_CHUNK", 8 * 16 * 7)  # seven rows
    weight, x = torch.randn(100, 16).bfloat16(), torch.randn(2, 16)
    bias = torch.randn(100).bfloat16() if biased else None
    runs = ShadowRuns(GraphFacts("inference"), (x, weight, bias), backward=False, repeats=True)
    linear = torch.nn.functional.linear
    with torch.no_grad(), Widest() as widest:
        (found,) = runs.run(lambda x, weight, bias: (linear(x, weight, bias),), InFloat64())[1]
    assert widest.elements <= 2 * 100
    wanted = linear(x.double(), weight.double(), None if bias is None else bias.double())
    torch.testing.assert_close(found, wanted, rtol=1e-14, atol=1e-14)


def test_where_no_mode_sees_an_operation_everything_is_widened_at_once():
    class Same(torch.autograd.Function):  # which takes tensors of one type only
        @staticmethod
        def forward(ctx, x, w):
            return torch._C._nn.linear(x, w)

    asked: list[bool] = []

    def exact(mode):
        asked.append(mode._at_once)
        return [Same.apply(*mode.arguments((torch.ones(2, 3).double(), torch.ones(4, 3)), ()))]  # not within the mode

    ours = [torch.full((2, 4), 3.1)]
    opinion = judge(ours, [torch.full((2, 4), 3.0)], exact=exact, eager_again=lambda: [torch.full((2, 4), 3.0)])
    assert asked[:2] == [False, True] and not opinion.is_right and opinion.eager_error == 0.0


def test_float64_saves_nothing_for_a_backward_that_does_not_run():
    weight, saves = torch.ones(3, requires_grad=True), []

    def eager(w, x):
        saves.append((w.dtype, (w * x).requires_grad))
        return (w * x).sum()

    judging = Gate(GraphFacts("training"), compare=True, race=False, compile_seconds=1.0)
    verdict = judging.judge(eager, {"burnish": lambda w, x: (w * x).sum() * (1 + 3e-5)}, (weight, torch.ones(3)))
    assert saves[:2] == [(torch.float32, True), (torch.float64, False)]
    assert verdict.winner == "eager"


@pytest.mark.parametrize("wrong", [False, True])
def test_the_second_step_is_compared_without_a_second_set_of_gradients(wrong, monkeypatch):
    """One gradient that is wrong in the second step only is enough."""
    held, backward = [], ShadowRuns.run_holding

    def run_holding(self, call):
        found = backward(self, call)
        held.append(len(found))
        if wrong:
            found[-1] = found[-1] * 1.01
        return found

    monkeypatch.setattr(ShadowRuns, "run_holding", run_holding)
    sides = []
    ordinary = Gate._side_by_side
    monkeypatch.setattr(Gate, "_side_by_side", lambda self, *a: (sides.append(self.backward), ordinary(self, *a))[1])
    compiled = burnish.compile(model(), gate=True)
    for _ in range(2):
        compiled(X).sum().backward()
    assert held == [1 + len(list(compiled.parameters()))]
    # What leaves a doubt is looked at in the other way, too: here it is right after all.
    assert sides == ([False, True] if wrong else [False]) and only_variant(compiled).rollbacks == 0


def test_gradients_that_are_rounding_alone_are_no_alarm():
    """The squares behind a norm add up to a constant: eager's gradients are as far from the truth as ours."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(16, 16), nn.LayerNorm(16), nn.GELU(), nn.Linear(16, 16), nn.LayerNorm(16))
    compiled, x = burnish.compile(net, gate=False), torch.randn(10, 16)
    for _ in range(2):
        compiled(x).square().sum().backward()
    assert only_variant(compiled).state == "compiled" and only_variant(compiled).rollbacks == 0


@pytest.mark.parametrize("broken", ["wrong", "raises", "wrong later"])
def test_a_wrong_backward_is_done_over(broken, monkeypatch):
    from burnish import pipeline

    def spoiled(gm, example_inputs, *, kind, **arguments):
        run = compile_graph(gm, example_inputs, kind=kind, **arguments)
        if kind != "backward":
            return run

        calls = []

        def wrong(args):
            calls.append(1)
            if broken == "raises":
                raise RuntimeError("a backward on purpose")
            if broken == "wrong later" and len(calls) == 1:
                return run(args)
            return [x * 1.01 if isinstance(x, torch.Tensor) else x for x in run(args)]

        return wrong

    compile_graph = pipeline.compile_graph
    monkeypatch.setattr(pipeline, "compile_graph", spoiled)
    compiled = burnish.compile(model(), gate=True)
    twin = copy.deepcopy(compiled.eager)
    messages = []
    for _ in range(2 if broken == "wrong later" else 1):
        messages += fallback_warnings(lambda: compiled(X).square().sum().backward())[1]
        twin(X).square().sum().backward()
    for ours, theirs in zip(compiled.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad)
    assert len(messages) == 1 and only_variant(compiled).state == "rolled back"
    reasons = {"raises": "a backward on purpose", "wrong": "in the backward", "wrong later": "off by"}
    assert reasons[broken] in only_variant(compiled).reason


EIGHT_BITS = [torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz]


@pytest.mark.parametrize("kind", EIGHT_BITS, ids=str)
def test_results_of_eight_bits_are_compared(kind):
    """Of rounding operations, and of exact ones: torch promotes these types to nothing and knows few operations."""
    compiled = burnish.compile(lambda x, y: ((x * 2).to(kind), y.t()), verify="always", sample=1.0)
    x = torch.cat([X.flatten(), torch.tensor([0.0, -0.0, float("nan")])])
    results, warned = fallback_warnings(lambda: compiled(x, X.to(kind)))
    assert not warned and burnish.stats(compiled).fallbacks == ()
    for ours, eagers in zip(results, ((x * 2).to(kind), X.to(kind).t()), strict=True):
        assert ours.dtype is kind and not unequal(ours, eagers, signs=True)


@pytest.mark.parametrize("wrong", [9.0, -1.0, float("nan")])
def test_a_wrong_result_of_eight_bits_is_noticed(wrong):
    right = torch.ones(5).to(torch.float8_e4m3fn)
    ours = torch.tensor([1, 1, wrong, 1, 1]).to(torch.float8_e4m3fn)
    assert judge([ours], [right], exact=None, eager_again=lambda: [right]).wrong
    assert unequal(ours, right, signs=True) == 1


def test_rounding_leaves_zeros_that_lie_in_no_memory():
    """The gradient of `sgn` is one; to write to it ends the process."""
    x = torch.ones(3, requires_grad=True)
    with RandomRounding(1e-3, 0):
        (gradient,) = torch.autograd.grad(x.sgn().sum() + x.sum(), x)
    torch.testing.assert_close(gradient, torch.ones(3), rtol=2e-3, atol=0)


@pytest.mark.parametrize("kind", [torch.float32, torch.float16], ids=str)
def test_rounding_leaves_the_values_of_masks(kind):
    masks = torch.full((64,), torch.finfo(kind).min, dtype=kind)
    with RandomRounding(1e-3, 0):
        result = masks * 1
    assert torch.equal(result, masks)


def test_rounding_leaves_extremes_among_the_values():
    """The backward of `amax` counts the values that equal it, and divides by their number."""
    x = torch.linspace(-1, 1, 8, requires_grad=True)
    with RandomRounding(1e-3, 0):
        (gradient,) = torch.autograd.grad((x * 1).amax(), x)
    torch.testing.assert_close(gradient, torch.eye(8)[7], rtol=2e-3, atol=0)


def test_a_gradient_that_is_only_rounding_beside_a_maximum_and_a_dropout():
    """Scores are shifted alike by the bias of the keys: its gradient is zero, and its rounding is not eager's."""

    def loss(x, queries, keys, bias):
        scores = (x @ queries) @ (x @ keys + bias).mT
        scores = scores - scores.amax(-1, keepdim=True)
        return (nn.functional.dropout(scores.softmax(-1), 0.1) @ x).sum()

    torch.manual_seed(0)
    weights = [torch.randn(shape).requires_grad_() for shape in ((16, 16), (16, 16), (16,))]
    compiled = burnish.compile(loss, gate=False)
    for _ in range(2):
        compiled(torch.randn(2, 6, 16), *weights).backward()
    assert burnish.stats(compiled).fallbacks == ()
