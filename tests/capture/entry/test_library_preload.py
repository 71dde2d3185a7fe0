"""What is exercised beside a compile is the graph's own operations, draws nothing, and is over before the trial."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import fx, nn
from torch.nn import functional as F

import burnish
from burnish.capture import dynamo
from burnish.capture.entry import frame_compiler
from burnish.capture.entry import library_preload as preload_module
from burnish.capture.entry.library_preload import (
    Exercise,
    LibraryPreload,
    Zeros,
    exercises_of,
    preload_for_products,
    preload_libraries,
)
from burnish.trust.engines import Engines
from burnish.trust.gate import GraphFacts
from burnish.trust.variant import Compile, Policy, Variant


def captured(function: Callable[..., Any], *args: Any, dynamic: bool | None = False) -> fx.GraphModule:
    graphs: list[fx.GraphModule] = []

    def keep(graph: fx.GraphModule, inputs: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    torch._dynamo.reset()
    torch.compile(function, backend=keep, dynamic=dynamic)(*args)
    (graph,) = graphs
    return graph


def names(graph: fx.GraphModule) -> list[str]:
    return [exercise.name for exercise in exercises_of(graph)]


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.norm = nn.Linear(8, 8), nn.Linear(8, 16), nn.LayerNorm(8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        heads = self.first(self.norm(x))[:, None]
        mixed = F.scaled_dot_product_attention(heads, heads, heads)[:, 0]
        return F.gelu(self.second(self.first(mixed))).view(-1, 32)


X = torch.ones(2, 4, 8)


def test_each_kind_of_operation_once_and_products_first():
    graph = captured(Block(), X)
    assert names(graph) == ["linear", "scaled_dot_product_attention", "linear", "layer_norm", "getitem", "gelu"]
    assert [spec.shape for spec in exercises_of(graph)[2].tensors()] == [(2, 4, 8), (16, 8), (16,)]


def test_they_run_in_both_precisions_with_their_gradients():
    seen: list[tuple[str, torch.dtype]] = []

    class Watch(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if args and isinstance(args[0], torch.Tensor) and func.__name__ in preload_module._BY_SHAPE:
                seen.append((func.__name__, args[0].dtype))
            return func(*args, **(kwargs or {}))

    backwards: list[int] = []
    model = Block()
    graph = captured(model, X)
    with Watch(), torch.autograd.graph.saved_tensors_hooks(lambda x: x, lambda x: backwards.append(1) or x):
        for exercise in exercises_of(graph):
            exercise.perform()
            exercise.in_float64().perform()
    for precision in (torch.float32, torch.float64):
        assert seen.count(("linear", precision)) == 2
        assert seen.count(("scaled_dot_product_attention", precision)) == 1
    assert backwards, "what a training step does comes back"
    assert all(parameter.grad is None for parameter in model.parameters())


def test_no_random_numbers_are_drawn():
    def drops(x: torch.Tensor) -> torch.Tensor:
        heads = F.dropout(x @ x.mT, 0.5)[:, None]
        return F.scaled_dot_product_attention(heads, heads, heads, dropout_p=0.5) + torch.rand(4)

    graph = captured(drops, X)
    assert names(graph) == ["matmul", "getitem", "add"]
    state = torch.get_rng_state()
    run_all(graph)
    assert torch.equal(torch.get_rng_state(), state)


def test_unknown_sizes_and_huge_tensors_are_left_out(monkeypatch: pytest.MonkeyPatch):
    assert names(captured(lambda x: (x @ x.mT).softmax(-1), X, dynamic=True)) == []
    monkeypatch.setattr(preload_module, "_MOST_BYTES", 1024)
    assert names(captured(lambda x, y: (x @ y).sum(1).tanh(), torch.ones(2, 2), torch.ones(2, 200))) == ["tanh"]


def test_not_every_shape_of_a_product():
    weights = [torch.ones(8, n) for n in range(1, 20)]
    assert names(captured(lambda x: [x @ w for w in weights], X)) == ["matmul"] * preload_module._MOST_SHAPES


def test_on_a_cpu_nothing_is_started():
    assert preload_libraries(captured(Block(), X), compared=True) is None


# -- the thread ----------------------------------------------------------------------------------------------------


def run_all(graph: fx.GraphModule) -> None:
    waking = LibraryPreload(exercises_of(graph), preload_module._results(graph))
    waking._thread.join()
    waking.end()


def exercise(target: Callable[..., Any]) -> Exercise:
    return Exercise("mm", target, (Zeros((2,), (1,), torch.float32, torch.device("cpu"), False),), {})


def test_what_fails_is_passed_over():
    done: list[torch.Tensor] = []

    def fails(x: torch.Tensor) -> None:
        raise RuntimeError("no such kernel")

    waking = LibraryPreload([exercise(fails), exercise(done.append)], ())
    waking._thread.join()
    assert len(done) == 1


class AtWork:
    """An exercise that is not over before it may be."""

    def __init__(self) -> None:
        self.begun, self.may_end, self.done = threading.Event(), threading.Event(), False

    def __call__(self, x: torch.Tensor) -> None:
        self.begun.set()
        assert self.may_end.wait(60)
        self.done = True

    def meanwhile_end(self, waking: LibraryPreload, its: LibraryPreload) -> None:
        """`waking` is told to end while this is at work, as one of `its` exercises."""
        assert self.begun.wait(60)
        ending = threading.Thread(target=waking.end)
        ending.start()
        assert its._over.wait(60)
        self.may_end.set()
        ending.join(60)
        assert not ending.is_alive() and not its._thread.is_alive() and self.done


def test_it_ends_when_told_and_not_in_the_midst():
    first, later = AtWork(), list[torch.Tensor]()
    waking = LibraryPreload([exercise(first), exercise(later.append)], ())
    first.meanwhile_end(waking, its=waking)
    assert later == []


def test_products_come_before_there_is_a_graph_and_end_with_it(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(preload_module, "_preloaded", set())
    kind = (torch.bfloat16, torch.device("cpu"))
    graph = captured(Block(), X)
    preload_for_products([kind, kind], compared=True)
    (first,) = preload_module._first
    assert [one.name for one in first._exercises] == ["mm"]
    preload_for_products([kind], compared=True)
    assert preload_module._first == [first], "once in a process"
    assert preload_libraries(graph, compared=True) is first, "there is nothing more to do on a CPU"
    assert preload_module._first == []
    first.end()


def test_ending_the_second_ends_the_first():
    at_work, later = AtWork(), list[torch.Tensor]()
    first = LibraryPreload([exercise(at_work), exercise(later.append)], ())
    second = LibraryPreload([exercise(later.append)], (), first)
    at_work.meanwhile_end(second, its=first)
    assert later == [] and not second._thread.is_alive()


# -- the variant ---------------------------------------------------------------------------------------------------


def twice(x: torch.Tensor) -> torch.Tensor:
    return 2 * x


def test_it_is_over_before_the_trial_and_ended_once():
    ended: list[str] = []
    facts = GraphFacts("inference")
    engines = Engines(facts, twice, {"burnish": lambda x: ended.append("call") or twice(x)})
    over = Compile(before_trial=lambda: ended.append("over"))
    variant = Variant(1, facts, engines, Policy(gate=False), compile=over)
    assert ended == []
    variant.call(X)
    variant.call(X)
    assert ended == ["over", "call", "call"]


@pytest.mark.parametrize("engines", [{}, {"burnish": twice}], ids=["not compiled", "trusted"])
def test_without_a_trial_it_ends_at_once(engines: Any):
    ended: list[str] = []
    facts, policy = GraphFacts("inference"), Policy(verify=False, gate=False)
    over = Compile(before_trial=lambda: ended.append("over"))
    Variant(1, facts, Engines(facts, twice, engines), policy, compile=over)
    assert ended == ["over"]


@pytest.mark.parametrize(
    ("options", "starts"),
    [({}, True), ({"verify": "off", "gate": False}, False), ({"mode": "max-autotune"}, False)],
    ids=["default", "untried", "searching"],
)
def test_who_starts_it(monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], starts: bool):
    asked: list[bool] = []
    early: list[bool] = []
    monkeypatch.setattr(dynamo, "preload_libraries", lambda graph, compared: asked.append(compared))
    monkeypatch.setattr(frame_compiler, "preload_for_products", lambda kinds, compared: early.append(compared))
    compiled = burnish.compile(lambda x: x.tanh() * 3, **options)
    with torch.no_grad():
        torch.testing.assert_close(compiled(X), X.tanh() * 3)
    assert asked == early[:1] == [True] * starts
