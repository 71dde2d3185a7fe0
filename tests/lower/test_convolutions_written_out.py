"""Convolutions that a CPU's own kernels compute: products of one tap, and small ones of each channel by itself."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import burnish
from tests.against_eager import check

ATEN = {"aten::convolution.default": 1}


def compiled(function: Any) -> Any:
    return burnish.compile(function, dynamic=False, options={"verify": "off", "gate": False})


def left_to_aten(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, **how: Any) -> dict[str, int]:
    def call(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        return F.conv2d(x, weight, bias, **how).clamp(-2, 2)

    return dict(check(call, x, weight, bias, mode=torch.no_grad, dynamic=False).aten_calls)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("stride", [1, 2, (1, 3)])
@pytest.mark.parametrize("images", [1, 3])
def test_one_tap_is_a_product(images: int, stride: Any, bias: bool) -> None:
    x, weight = torch.randn(images, 5, 11, 8), torch.randn(7, 5, 1, 1)
    assert left_to_aten(x, weight, torch.randn(7) if bias else None, stride=stride) == {}


@pytest.mark.parametrize(
    "how",
    [
        {},
        {"padding": 1},
        {"padding": (0, 2), "stride": 2},
        {"padding": 2, "dilation": 2},
        {"padding": 1, "stride": (2, 1), "dilation": (1, 3)},
    ],
    ids=str,
)
@pytest.mark.parametrize("size", [(3, 3), (1, 5), (2, 2)], ids=str)
def test_each_channel_by_itself(how: dict[str, Any], size: tuple[int, int]) -> None:
    x, weight = torch.randn(2, 6, 13, 17), torch.randn(6, 1, *size)
    assert left_to_aten(x, weight, None, groups=6, **how) == {}
    assert left_to_aten(x, weight, torch.randn(6), groups=6, **how) == {}


def test_what_was_padded_before_is_stored_once() -> None:
    weight = torch.randn(6, 1, 3, 3)

    def call(x: torch.Tensor) -> torch.Tensor:
        return F.conv2d(F.pad(x.relu(), (0, 1, 0, 1)), weight, stride=2, groups=6)

    ours, x = compiled(call), torch.randn(1, 6, 8, 8)
    with torch.no_grad():
        torch.testing.assert_close(ours(x), call(x))
    stats = burnish.stats(ours)
    assert stats.aten_calls == {} and stats.kernels == 3, "relu, what is padded, the convolution"


@pytest.mark.parametrize(
    ("x", "weight", "how"),
    [
        ((1, 6, 9, 9), (6, 1, 5, 5), {"groups": 6}),
        ((1, 6, 9, 9), (12, 1, 3, 3), {"groups": 6}),
        ((1, 6, 9, 9), (4, 6, 3, 3), {}),
        ((1, 6, 9, 9), (4, 6, 1, 1), {"padding": 1}),
        ((2, 512, 4, 4), (512, 512, 1, 1), {}),
    ],
    ids=["many taps", "more results", "all channels", "padded", "small images"],
)
def test_others_are_the_librarys(x: tuple[int, ...], weight: tuple[int, ...], how: dict[str, Any]) -> None:
    assert left_to_aten(torch.randn(x), torch.randn(weight), None, **how) == ATEN


@pytest.mark.parametrize("weight", [(4, 6, 1, 1), (6, 1, 3, 3)], ids=str)
def test_so_are_those_whose_channels_lie_together(weight: tuple[int, ...]) -> None:
    x = torch.randn(2, 6, 9, 9).to(memory_format=torch.channels_last)
    assert left_to_aten(x, torch.randn(weight), None, groups=6 // weight[1]) == ATEN


def test_they_are_trained() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(4, 8, 1), nn.BatchNorm2d(8), nn.ReLU6(), nn.Conv2d(8, 8, 3, padding=1, groups=8))
    x = torch.randn(2, 4, 9, 9)
    model(x).square().mean().backward()
    expected = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    model.zero_grad()
    compiled(model)(x).square().mean().backward()
    for found, wanted in zip((p.grad for p in model.parameters()), expected, strict=True):
        torch.testing.assert_close(found, wanted)
