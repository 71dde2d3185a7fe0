"""A few elements are looked up before they are computed on."""

from __future__ import annotations

import pytest
import torch

from burnish.fuel import Fuel
from burnish.ir.graph import Gather, Graph, Input, Map, Node, TensorType
from burnish.ir.reference import evaluate_graph
from burnish.lower.builder import Builder
from burnish.passes import run_passes
from burnish.passes.rewrite import rewrite
from burnish.passes.sink import sink_gathers
from tests.passes.start import BF16, F32, I64, same


def of_logits(rows: int, classes: int, picked: int) -> tuple[Graph, Node, list[torch.Tensor]]:
    """exp(logits)[i, labels[i]] for the first rows: the graph, the gather, and inputs."""
    graph = Graph()
    logits = graph.add(Input(0, (classes, 1)), (), TensorType(F32, (rows, classes)))
    labels = graph.add(Input(1, (1,)), (), TensorType(I64, (picked,)))
    graph.inputs = [logits, labels]
    b = Builder(graph)
    gather = b.gather(b.map("exp", logits), (picked,), [labels], lambda axes, looked_up: (axes[0], looked_up[0]))
    graph.outputs = [gather]
    return graph, gather, [torch.randn(rows, classes), torch.arange(picked) % classes]


def test_a_class_of_each_row_is_looked_up_before_the_exponential() -> None:
    graph, _, given = of_logits(4, 8, 4)
    after = rewrite(graph, sink_gathers, "sink", Fuel())
    (exp,) = (n for n in after.nodes if isinstance(n.op, Map))
    assert exp.shape == (4,) and isinstance(exp.inputs[0].op, Gather)
    assert same(evaluate_graph(after, given)[0], evaluate_graph(graph, given)[0])


def test_without_fuel_it_is_computed_on_first() -> None:
    graph, *_ = of_logits(4, 8, 4)
    (exp,) = (n for n in rewrite(graph, sink_gathers, "sink", Fuel(0)).nodes if isinstance(n.op, Map))
    assert exp.shape == (4, 8)


def test_where_most_elements_are_looked_up_they_are_computed_once() -> None:
    graph, *_ = of_logits(4, 2, 4)
    assert str(rewrite(graph, sink_gathers, "sink", Fuel())) == str(graph)


def test_a_value_narrower_than_its_inputs_is_looked_up_itself() -> None:
    """It is what will be in memory."""
    graph = Graph()
    logits = graph.add(Input(0, (8, 1)), (), TensorType(F32, (4, 8)))
    labels = graph.add(Input(1, (1,)), (), TensorType(I64, (4,)))
    graph.inputs = [logits, labels]
    b = Builder(graph)
    graph.outputs = [b.gather(b.cast(logits, BF16), (4,), [labels], lambda axes, looked_up: (axes[0], looked_up[0]))]
    assert str(rewrite(graph, sink_gathers, "sink", Fuel())) == str(graph)


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
