"""Each form of our convolution on the device, with norm, residual and activation after it."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import burnish
from tests.against_eager import difference, served_by_us
from tests.gpu.on_device import DEVICE, compiled

pytestmark = pytest.mark.gpu


class Block(nn.Module):
    def __init__(self, channels: int, outputs: int, taps: int, stride: int, dilation: int, bias: bool) -> None:
        super().__init__()
        padding = dilation * (taps // 2)
        self.convolution = nn.Conv2d(channels, outputs, taps, stride, padding, dilation, bias=bias)
        self.norm = nn.BatchNorm2d(outputs)
        assert self.norm.running_mean is not None and self.norm.running_var is not None
        nn.init.normal_(self.norm.running_mean, std=0.1)
        nn.init.uniform_(self.norm.running_var, 0.5, 1.5)

    def forward(self, x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.norm(self.convolution(x)) + residual)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    ("batch", "channels", "outputs", "size", "taps", "stride", "dilation"),
    [
        (1, 64, 256, 56, 1, 1, 1),  # a matrix product bound by latency,
        (32, 64, 256, 28, 1, 1, 1),  # by memory,
        (32, 512, 256, 28, 1, 1, 1),  # by tensor cores: the persistent form
        (1, 256, 512, 28, 1, 2, 1),
        (1, 64, 64, 56, 3, 1, 1),
        (3, 48, 40, 13, 3, 2, 1),
        (2, 32, 17, 15, 3, 1, 2),
        (1, 512, 512, 7, 3, 1, 1),  # in splits
        (1, 3, 64, 64, 7, 2, 1),  # rows of taps
        (2, 3, 32, 33, 3, 2, 1),
        (16, 64, 64, 56, 3, 1, 1),  # the library's
    ],
)
def test_block(
    batch: int, channels: int, outputs: int, size: int, taps: int, stride: int, dilation: int, dtype: torch.dtype
) -> None:
    torch.manual_seed(0)
    eager = Block(channels, outputs, taps, stride, dilation, bias=taps == 3).eval()
    eager = eager.to(DEVICE, dtype).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    exact = copy.deepcopy(eager).double()
    c = compiled(eager)
    after = -(-size // stride)
    shapes = (batch, channels, size, size), (batch, outputs, after, after)
    x, residual = (torch.randn(s, device=DEVICE, dtype=dtype).to(memory_format=torch.channels_last) for s in shapes)
    with torch.no_grad():
        for _ in range(2):
            ours, theirs, truth = c(x, residual), eager(x, residual), exact(x.double(), residual.double())
            assert not (problem := difference(ours, theirs, truth)), problem
            assert ours.stride() == theirs.stride()
    served_by_us(c)


@torch.no_grad()
def test_the_library_with_what_follows_in_its_call() -> None:
    """Told to by a record, as a search may find it. What is not a number stays none."""
    torch.manual_seed(0)
    eager = Block(64, 64, 3, 1, 1, bias=False).eval().to(DEVICE, torch.bfloat16)
    eager = eager.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    exact = copy.deepcopy(eager).double()
    x, residual = (
        torch.randn(4, 64, 28, 28, device=DEVICE, dtype=torch.bfloat16).to(memory_format=torch.channels_last)
        for _ in range(2)
    )
    searched = compiled(eager, mode="max-autotune-no-cudagraphs")
    searched(x, residual)
    keys = [t.key for t in burnish.stats(searched).tuning if t.key.startswith("backend convolution")]
    c = compiled(eager, tuning=dict.fromkeys(keys, "fused"))
    ours, theirs, truth = c(x, residual), eager(x, residual), exact(x.double(), residual.double())
    assert not (problem := difference(ours, theirs, truth)), problem
    assert ours.stride() == theirs.stride()
    assert [op for op in burnish.stats(c).aten_calls if "cudnn_convolution_add_relu" in op]
    x[0, :, 5, 5] = float("nan")
    assert torch.equal(c(x, residual).isnan(), eager(x, residual).isnan())
