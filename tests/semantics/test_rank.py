"""Reductions that torch traces with dimensions that eager leaves out (2.11, of one element each)."""

from __future__ import annotations

import pytest
import torch
from torch import fx

from burnish.errors import CompileError
from burnish.lower.importer import require_true_rank

NORM = torch.ops.aten.linalg_vector_norm.default


def refusal(args: tuple[object, ...], traced: tuple[int, ...]) -> str:
    """Of a norm that is traced so; empty where it is taken."""
    graph = fx.Graph()
    x = graph.placeholder("x")
    x.meta["val"] = torch.empty(1, 1, 2)
    try:
        require_true_rank(graph.call_function(NORM, (x, *args)), NORM, torch.empty(traced))
    except CompileError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("args", [(3, [-3]), (3, [0], False)], ids=str)
def test_a_dimension_too_many(args):
    assert "other sizes" in refusal(args, (1, 1, 2))


@pytest.mark.parametrize(
    ("args", "traced"), [((3, [-3]), (1, 2)), ((3, [-3], True), (1, 1, 2)), ((3, []), (1, 1, 2)), ((3,), ())], ids=str
)
def test_as_eager_returns_it(args, traced):
    assert refusal(args, traced) == ""
