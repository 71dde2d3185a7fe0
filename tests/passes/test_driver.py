"""The driver of graph passes, and what holds of all of them together: no graph's results change."""

from __future__ import annotations

import math
from random import Random

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from burnish.fuel import Fuel
from burnish.ir.graph import Graph, Input
from burnish.ir.reference import evaluate_graph
from burnish.passes import PASSES, run_passes
from tests.passes.start import BF16, BOOL, F32, F64, I64, SHAPE, inputs, ops, same, start


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
