"""Weights of 8 and 4 bits on the device, whose instructions no interpreter knows: every value they have, exactly."""

from __future__ import annotations

import pytest
import torch

import burnish
from burnish.generation.quantize import EightBitLinear, FourBitLinear
from tests.gpu.on_device import DEVICE, compiled

pytestmark = pytest.mark.gpu
WIDTH, ROWS = 2048, 4096


def bfloat16(*shape: int) -> torch.Tensor:
    return torch.randn(shape, device=DEVICE).bfloat16()


def eight_bits() -> EightBitLinear:
    values = (torch.arange(ROWS * WIDTH, device=DEVICE) % 256 - 128).to(torch.int8).view(ROWS, WIDTH)
    return EightBitLinear(values, torch.rand(ROWS, device=DEVICE).bfloat16() + 0.5, None)


def four_bits() -> FourBitLinear:
    packed = (torch.arange(ROWS * WIDTH // 2, device=DEVICE) % 256).to(torch.uint8).view(ROWS, WIDTH // 2)
    return FourBitLinear(packed, bfloat16(ROWS, WIDTH // 128), bfloat16(ROWS, WIDTH // 128), None)


@pytest.mark.parametrize("make", [eight_bits, four_bits])
def test_each_value_of_a_weight(make) -> None:  # type: ignore[no-untyped-def]
    """A vector with a single one picks a column: its results are the weights themselves, rounded once."""
    layer = make()
    ours = compiled(layer)
    exact = layer.dequantized().double() if isinstance(layer, FourBitLinear) else None
    for place in (0, 1, 7, 8, 130, WIDTH // 2, WIDTH - 1):
        x = torch.zeros(1, WIDTH, device=DEVICE).bfloat16()
        x[0, place] = 1
        if exact is None:  # the scale comes after the product, which is a whole number
            assert torch.equal(ours(x), layer(x))
        else:
            wanted = exact[:, place]
            error = (ours(x)[0].double() - wanted).abs().max() / wanted.abs().max()
            assert error < 2**-8, f"column {place}: {error}"
    assert not burnish.stats(ours).fallbacks


@pytest.mark.parametrize("make", [eight_bits, four_bits])
def test_a_product_is_no_further_from_float64_than_eagers(make) -> None:  # type: ignore[no-untyped-def]
    layer = make()
    ours = compiled(layer)
    matrix = layer.dequantized().double()
    for offset in (0.0, 50.0):  # a mean that small integers hidden in large floats could drown in
        x = bfloat16(1, WIDTH) + offset
        wanted = x.double() @ matrix.T
        error, eager = ((found.double() - wanted).norm() / wanted.norm() for found in (ours(x), layer(x)))
        assert error <= 1.1 * eager + 2**-9
    assert not burnish.stats(ours).fallbacks
