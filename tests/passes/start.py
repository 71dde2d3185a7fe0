"""A graph written by hand, and a rule over it that must fire and change no result."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from burnish.fuel import Fuel
from burnish.ir.dtypes import DType
from burnish.ir.graph import Graph, Input, Map, Node, TensorType
from burnish.ir.reference import evaluate_graph
from burnish.lower.builder import Builder
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
