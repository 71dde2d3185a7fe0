"""What torch 2.11 traces with other dimensions (reductions of one element each) or types than eager gives it."""

from __future__ import annotations

import pytest
import torch
from torch import fx

import burnish
from burnish.errors import CompileError
from burnish.lower.importer import require_true_rank, require_true_types

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


@pytest.mark.parametrize("kept", [torch.float32, torch.float64])
def test_attention_to_doubles(kept: torch.dtype) -> None:
    traced = (torch.empty(1, dtype=torch.float64), torch.empty(1, dtype=kept))
    attention = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
    if kept is torch.float64:
        require_true_types(attention, traced)
    else:
        with pytest.raises(CompileError, match="another type"):
            require_true_types(attention, traced)


def test_gradients_of_attention_to_doubles_are_eagers() -> None:
    def attend(x: torch.Tensor) -> torch.Tensor:
        mask = torch.ones(x.shape[-2], x.shape[-2]).tril().bool()
        return torch.nn.functional.scaled_dot_product_attention(x, x, x, attn_mask=mask)

    found = []
    for call in (attend, burnish.compile(attend)):
        x = torch.arange(24.0, dtype=torch.float64).reshape(1, 2, 3, 4).div(24).requires_grad_()
        call(x).sum().backward()
        found.append(x.grad)
    torch.testing.assert_close(found[1], found[0])
