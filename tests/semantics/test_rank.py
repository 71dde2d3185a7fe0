"""Reductions that torch traces with dimensions that eager leaves out (2.11, of one element each)."""

from __future__ import annotations

import pytest
import torch
from torch import fx

from burnish.capture.aten import require_true_rank
from burnish.errors import CompileError

NORM = torch.ops.aten.linalg_vector_norm.default


def reduced(args: tuple[object, ...], traced: tuple[int, ...]) -> None:
    graph = fx.Graph()
    x = graph.placeholder("x")
    x.meta["val"] = torch.empty(1, 1, 2)
    require_true_rank(graph.call_function(NORM, (x, *args)), NORM, torch.empty(traced))


@pytest.mark.parametrize("args", [(3, [-3]), (3, [0], False)], ids=str)
def test_a_dimension_too_many(args):
    with pytest.raises(CompileError, match="other sizes"):
        reduced(args, (1, 1, 2))


@pytest.mark.parametrize(
    ("args", "traced"), [((3, [-3]), (1, 2)), ((3, [-3], True), (1, 1, 2)), ((3, []), (1, 1, 2)), ((3,), ())], ids=str
)
def test_as_eager_returns_it(args, traced):
    reduced(args, traced)  # raises nothing
