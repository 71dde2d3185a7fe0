"""Floating-point operations on the device mean what eager's kernels mean there, at the ends of every type."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import burnish
from tests.gpu.on_device import DEVICE, compiled
from tests.lower.test_floats import BINARY, FLOATS, UNARY, differences, edges, pairs

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_one_operand(dtype: torch.dtype) -> None:
    x = edges(dtype).to(DEVICE)
    ours = compiled(lambda x: [op(x) for op in UNARY.values()])
    assert differences(UNARY, ours(x), x) == []
    assert burnish.stats(ours).fallbacks == ()


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_two_operands(dtype: torch.dtype) -> None:
    a, b = (x.to(DEVICE) for x in pairs(dtype))
    ours = compiled(lambda a, b: [op(a, b) for op in BINARY.values()])
    assert differences(BINARY, ours(a, b), a, b) == []
    assert burnish.stats(ours).fallbacks == ()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_pools_of_rows_of_two(dtype: torch.dtype) -> None:
    """Whose windows reach past the row at known places: the assembler sees what is there as a constant."""
    x = torch.tensor([[-1.0, -0.5], [2.0, -0.5]], dtype=dtype, device=DEVICE)
    assert torch.equal(compiled(lambda x: F.max_pool1d(x, 2, 2, 1))(x), x)
