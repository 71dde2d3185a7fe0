"""A denoising loop: one network, called once for each step, compiled once."""

from __future__ import annotations

import math

import torch
from torch import nn

import burnish


class Denoiser(nn.Module):
    """Down, middle and up with a skip connection, told the step by an embedding: a UNet in small."""

    def __init__(self, channels: int = 16) -> None:
        super().__init__()
        self.embed = nn.Sequential(nn.Linear(channels, channels), nn.SiLU(), nn.Linear(channels, channels))
        self.enter = nn.Conv2d(3, channels, 3, padding=1)
        self.down = nn.Conv2d(channels, channels, 3, stride=2, padding=1)
        self.middle = nn.Sequential(nn.GroupNorm(4, channels), nn.SiLU(), nn.Conv2d(channels, channels, 3, padding=1))
        self.up = nn.Upsample(scale_factor=2)
        self.leave = nn.Conv2d(2 * channels, 3, 3, padding=1)

    def forward(self, image: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
        width = self.enter.out_channels // 2
        frequencies = torch.exp(-math.log(10000.0) * torch.arange(width, device=image.device) / width)
        angles = time[:, None] * frequencies
        condition = self.embed(torch.cat([angles.sin(), angles.cos()], dim=1))
        entered = self.enter(image) + condition[:, :, None, None]
        low = self.middle(self.down(entered))
        return self.leave(torch.cat([self.up(low), entered], dim=1))


@torch.inference_mode()
def sample(model: nn.Module, steps: int = 20, size: int = 16) -> torch.Tensor:
    image = torch.randn(1, 3, size, size)
    for step in range(steps, 0, -1):
        time = torch.full((1,), step / steps)  # a tensor: a Python number would be a guard, and a recompile for each
        image = image - model(image, time) / steps
    return image


def main() -> None:
    torch.manual_seed(0)
    model = burnish.compile(Denoiser().eval())
    image = sample(model)
    stats = burnish.stats(model)
    assert stats.compiles == 1
    print(f"{tuple(image.shape)} in 20 steps: {stats.compiles} compile, {stats.kernels} kernels")


if __name__ == "__main__":
    main()
