"""Rewrites: each rule fires where it should, changes no result, and stops when the fuel is out."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from burnish.fuel import Fuel
from burnish.ir.dtypes import DType
from burnish.ir.graph import Full, Gather, Graph, Input, Iota, Map, Node, TensorType, View
from burnish.ir.reference import evaluate_graph
from burnish.lower.builder import Builder
from burnish.passes import PASSES, run_passes
from burnish.passes.fold import drop_identities, fold_constants, gather_to_view
from burnish.passes.rewrite import Rule, rewrite

F32, F64, BF16, I64, BOOL = DType.f32, DType.f64, DType.bf16, DType.i64, DType.bool
SHAPE = (2, 3)


@dataclass
class Start:
    """A graph to be written, with one input of each type."""

    b: Builder
    x: Node
    n: Node
    mask: Node


def start() -> Start:
    graph = Graph()
    nodes = [graph.add(Input(k, (3, 1)), (), TensorType(t, SHAPE)) for k, t in enumerate((F32, I64, BOOL))]
    graph.inputs = list(nodes)
    return Start(Builder(graph), *nodes)


def inputs() -> list[torch.Tensor]:
    x = torch.tensor([[0.0, -0.0, 1.5], [math.nan, math.inf, -3.0]])
    n = torch.tensor([[0, 1, -2], [3, 2**40, -(2**40)]])
    return [x, n, torch.tensor([[True, False, True], [False, True, True]])]


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Equal to the bit, the sign of zero included; any NaN is as good as another."""
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    if not a.is_floating_point():
        return torch.equal(a, b)
    signs = torch.equal(a.signbit() & ~a.isnan(), b.signbit() & ~b.isnan())
    return signs and torch.allclose(a, b, rtol=0, atol=0, equal_nan=True)


def check(rule: Rule, graph: Graph) -> Graph:
    """The graph after the rule, which must have fired and kept every result."""
    graph.verify()
    fuel = Fuel(1000)
    after = rewrite(graph, rule, "rule", fuel)
    after.verify()
    assert fuel.left is not None and fuel.left < 1000, f"nothing fired in\n{graph}"
    for a, b in zip(evaluate_graph(graph, inputs()), evaluate_graph(after, inputs()), strict=True):
        assert isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor)
        assert same(a, b), f"{graph}\n{after}"
    return after


def ops(graph: Graph) -> list[str]:
    return [n.op.fn if isinstance(n.op, Map) else type(n.op).__name__ for n in graph.nodes if not _is_input(n)]


def _is_input(node: Node) -> bool:
    return isinstance(node.op, Input)


# --- rules that must fire ---------------------------------------------------------------------------------------


def test_constants_fold() -> None:
    s = start()
    two, three = s.b.full(2, SHAPE, F32), s.b.full(3, SHAPE, F32)
    s.b.graph.outputs = [s.b.map("pow", two, three), s.b.map("div", two, s.b.full(0, SHAPE, F32))]
    assert set(ops(check(fold_constants, s.b.graph))) == {"Full"}


def test_positions_fold() -> None:
    s = start()
    i, j = s.b.iota(SHAPE, lambda a, b: a), s.b.iota(SHAPE, lambda a, b: b)
    total = s.b.map("sub", s.b.map("add", i, j), s.b.full(1, SHAPE, I64))
    sure = s.b.compare("lt", j, s.b.full(3, SHAPE, I64))
    never = s.b.compare("ge", i, s.b.full(2, SHAPE, I64))
    s.b.graph.outputs = [total, sure, never]
    after = check(fold_constants, s.b.graph)
    assert [n.op for n in after.outputs if isinstance(n, Node) and isinstance(n.op, Full)] == [Full(True), Full(False)]
    assert "sub" not in ops(after)
    assert "add" not in ops(after)


def neutral(fn: str, value: float, dtype: DType, right: bool = True) -> Callable[[Start], Node]:
    def make(s: Start) -> Node:
        x = {F32: s.x, I64: s.n, BOOL: s.mask}[dtype]
        c = s.b.full(value, SHAPE, dtype)
        return s.b.map(fn, x, c) if right else s.b.map(fn, c, x)

    return make


@pytest.mark.parametrize(
    "make",
    [
        neutral("mul", 1, F32), neutral("mul", 1, F32, False), neutral("div", 1, F32), neutral("sub", 0.0, F32),
        neutral("add", -0.0, F32), neutral("add", 0, I64), neutral("sub", 0, I64), neutral("mul", 1, I64),
        neutral("and", True, BOOL), neutral("or", False, BOOL, False),
        lambda s: s.b.where(s.b.full(True, SHAPE, BOOL), s.x, s.b.map("neg", s.x)),
        lambda s: s.b.where(s.b.full(False, SHAPE, BOOL), s.b.map("neg", s.x), s.x),
        lambda s: s.b.cast(s.b.cast(s.x, F64), F32),
    ],
)  # fmt: skip
def test_identities_drop(make: Callable[[Start], Node]) -> None:
    s = start()
    s.b.graph.outputs = [make(s)]
    assert ops(check(drop_identities, s.b.graph)) == []


@pytest.mark.parametrize(
    "make",
    [
        neutral("add", 0.0, F32),  # -0.0 + 0.0 is 0.0
        neutral("sub", -0.0, F32),
        neutral("mul", 0, F32),  # NaN * 0 is NaN
        neutral("sub", 0, F32, False),  # 0 - x
        neutral("div", 1, F32, False),  # 1 / x
        lambda s: s.b.cast(s.b.cast(s.x, BF16), F32),  # rounds
        lambda s: s.b.cast(s.b.cast(s.n, F32), I64),  # float does not hold every integer
        lambda s: s.b.cast(s.b.cast(s.n, BOOL), I64),
    ],
)
def test_what_only_looks_neutral_stays(make: Callable[[Start], Node]) -> None:
    s = start()
    s.b.graph.outputs = [make(s)]
    fuel = Fuel(1)
    rewrite(s.b.graph, drop_identities, "identities", fuel)
    assert fuel.left == 1


def test_gathers_at_known_positions_become_views() -> None:
    s = start()
    at = s.b.iota((2,), lambda a: 1 - a)
    out = s.b.gather(s.x, SHAPE, [s.b.reshape(at, (2, 1))], lambda a, v: [v[0], a[1]])
    s.b.graph.outputs = [out]
    after = check(gather_to_view, s.b.graph)
    assert not any(isinstance(n.op, Gather) for n in after.nodes)
    assert any(isinstance(n.op, View) for n in after.nodes)


def test_gathers_that_may_leave_their_source_stay() -> None:
    s = start()
    at = s.b.iota((2,), lambda a: a + 1)
    s.b.graph.outputs = [s.b.gather(s.x, SHAPE, [s.b.reshape(at, (2, 1))], lambda a, v: [v[0], a[1]])]
    after = rewrite(s.b.graph, gather_to_view, "gathers", Fuel())
    assert any(isinstance(n.op, Gather) for n in after.nodes)


# --- the driver -------------------------------------------------------------------------------------------------


def test_no_fuel_no_change() -> None:
    s = start()
    one = s.b.full(1, SHAPE, F32)
    s.b.graph.outputs = [s.b.map("mul", s.b.map("mul", s.x, one), s.b.map("add", one, one))]
    before = str(s.b.graph)
    assert str(run_passes(s.b.graph, Fuel(0), lambda name, graph: graph.verify())) == before


def test_fuel_is_spent_one_rewrite_at_a_time() -> None:
    s = start()
    x = s.x
    for value in (1.0, 2.0, 1.0, 3.0, 1.0):
        x = s.b.map("neg", s.b.map("mul", x, s.b.full(value, SHAPE, F32)))
    s.b.graph.outputs = [x]
    counts = []
    for units in range(5):
        fuel = Fuel(units)
        after = run_passes(s.b.graph, fuel, lambda name, graph: None)
        counts.append(ops(after).count("mul"))
        assert units == 0 or fuel.last.startswith("identities")
    assert counts == [5, 4, 3, 2, 2]


def test_results_mutations_and_layouts_survive() -> None:
    s = start()
    value = s.b.map("mul", s.b.map("neg", s.x), s.b.full(1, SHAPE, F32))
    s.b.graph.outputs = [value, None, 3]
    s.b.graph.mutations = [(s.x, value)]
    s.b.graph.effects = [value]
    s.b.graph.output_layouts = {0: (1, 2)}
    seen: list[str] = []
    after = run_passes(s.b.graph, Fuel(), lambda name, graph: seen.append(name))
    assert seen == [name for name, _ in PASSES]
    (target, new), kept = after.mutations[0], after.outputs[0]
    assert isinstance(target.op, Input) and new is kept
    assert after.outputs[1:] == [None, 3]
    assert after.effects == [kept]
    assert after.output_layouts == {0: (1, 2)}
    assert len(after.inputs) == 3


# --- any graph --------------------------------------------------------------------------------------------------

_FLOATS = [0.0, -0.0, 1.0, -1.0, 2.5, math.inf, -math.inf, math.nan]
_FLOAT_OPS = ["add", "sub", "mul", "div", "maximum", "minimum"]
_INT_OPS = ["add", "sub", "mul", "maximum", "minimum", "and", "or", "xor"]


def random_graph(rng: Random) -> Graph:
    s = start()
    floats, ints, bools = [s.x], [s.n], [s.mask]
    for _ in range(3):
        floats.append(s.b.full(rng.choice(_FLOATS), SHAPE, F32))
        ints.append(s.b.full(rng.randint(-2, 3), SHAPE, I64))
    ints += [s.b.iota(SHAPE, lambda a, b: a * 3 + b), s.b.iota(SHAPE, lambda a, b: b - a)]
    bools.append(s.b.full(rng.random() < 0.5, SHAPE, BOOL))
    for _ in range(rng.randint(3, 14)):
        match rng.randint(0, 6):
            case 0 | 1:
                floats.append(s.b.map(rng.choice(_FLOAT_OPS), rng.choice(floats), rng.choice(floats)))
            case 2:
                ints.append(s.b.map(rng.choice(_INT_OPS), rng.choice(ints), rng.choice(ints)))
            case 3:
                kind = rng.choice([floats, ints])
                bools.append(s.b.compare(rng.choice(["lt", "ge", "eq", "le"]), rng.choice(kind), rng.choice(kind)))
            case 4:
                kind = rng.choice([floats, ints, bools])
                kind.append(s.b.where(rng.choice(bools), rng.choice(kind), rng.choice(kind)))
            case 5:
                bools.append(s.b.map(rng.choice(["and", "or", "xor"]), rng.choice(bools), rng.choice(bools)))
            case 6:
                floats.append(s.b.cast(s.b.cast(rng.choice(floats), rng.choice([F64, BF16])), F32))
                ints.append(s.b.cast(rng.choice(bools), I64))
    s.b.graph.outputs = [*floats[-2:], *ints[-2:], *bools[-2:]]
    s.b.graph.eliminate_dead()
    return s.b.graph


@settings(derandomize=True, deadline=None, max_examples=150)
@given(st.integers(0, 2**32).map(Random).map(random_graph))
def test_any_graph_keeps_its_results(graph: Graph) -> None:
    graph.verify()
    before = evaluate_graph(graph, inputs())
    after = evaluate_graph(run_passes(graph, Fuel(), lambda name, g: g.verify()), inputs())
    for a, b in zip(before, after, strict=True):
        assert isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor)
        assert same(a, b), f"{graph}\n{a}\n{b}"


@pytest.mark.parametrize("label", [4, 5, 7])
def test_a_lookup_behind_a_padded_row_is_checked_against_the_row(label: int) -> None:
    """Five classes, in rows of eight: a label of 5 is as wrong as it was."""
    graph = Graph()
    logits = graph.add(Input(0, (8, 1)), (), TensorType(F32, (2, 8)))
    labels = graph.add(Input(1, (1,)), (), TensorType(I64, (2,)))
    graph.inputs = [logits, labels]
    b = Builder(graph)
    losses = b.map("neg", b.slice(logits, 1, 0, 5))
    graph.outputs = [b.gather(losses, (2,), [labels], lambda axes, looked_up: (axes[0], looked_up[0]))]
    after = run_passes(graph, Fuel(), lambda name, g: g.verify())
    (gather,) = (n for n in after.nodes if isinstance(n.op, Gather))
    assert isinstance(gather.inputs[0].op, Input)  # looked up in memory, before it is computed on
    given = [torch.randn(2, 8), torch.tensor([1, label])]
    if label < 5:
        assert same(evaluate_graph(after, given)[0], evaluate_graph(graph, given)[0])
    else:
        for each in (graph, after):
            with pytest.raises(IndexError):
                evaluate_graph(each, given)


def test_iotas_are_positions_of_their_shape() -> None:
    s = start()
    node = s.b.iota(SHAPE, lambda a, b: a * 10 + b)
    assert isinstance(node.op, Iota)
    s.b.graph.outputs = [node]
    (got,) = evaluate_graph(s.b.graph, inputs())
    assert isinstance(got, torch.Tensor)
    assert got.tolist() == [[0, 1, 2], [10, 11, 12]]
