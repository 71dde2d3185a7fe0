"""Arithmetic on constants and on positions."""

from __future__ import annotations

import torch

from burnish.ir.graph import Full, Iota, Node
from burnish.ir.reference import evaluate_graph
from burnish.passes.fold import fold_constants
from tests.passes.start import F32, I64, SHAPE, check, inputs, ops, start


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


def test_iotas_are_positions_of_their_shape() -> None:
    s = start()
    node = s.b.iota(SHAPE, lambda a, b: a * 10 + b)
    assert isinstance(node.op, Iota)
    s.b.graph.outputs = [node]
    (got,) = evaluate_graph(s.b.graph, inputs())
    assert isinstance(got, torch.Tensor)
    assert got.tolist() == [[0, 1, 2], [10, 11, 12]]
