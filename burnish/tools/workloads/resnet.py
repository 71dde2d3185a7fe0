"""ResNet-50 (v1.5: the stride sits on the 3×3 convolution), in plain torch.nn."""

from __future__ import annotations

import torch
from torch import nn

from burnish.tools.workloads.registry import Inputs, Workload

EXPANSION = 4


def conv_bn(inputs: int, outputs: int, kernel: int, stride: int = 1) -> nn.Sequential:
    conv = nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(outputs))


class Bottleneck(nn.Module):
    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        outputs = width * EXPANSION
        self.reduce = conv_bn(inputs, width, 1)
        self.spatial = conv_bn(width, width, 3, stride)
        self.expand = conv_bn(width, outputs, 1)
        self.shortcut = conv_bn(inputs, outputs, 1, stride) if stride != 1 or inputs != outputs else nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(self.reduce(x))
        y = torch.relu(self.spatial(y))
        return torch.relu(self.expand(y) + self.shortcut(x))


class ResNet(nn.Module):
    def __init__(self, depths: tuple[int, ...], width: int, classes: int) -> None:
        super().__init__()
        self.stem = nn.Sequential(conv_bn(3, width, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, padding=1))
        blocks: list[nn.Module] = []
        inputs = width
        for stage, depth in enumerate(depths):
            for index in range(depth):
                blocks.append(Bottleneck(inputs, width << stage, stride=2 if stage > 0 and index == 0 else 1))
                inputs = (width << stage) * EXPANSION
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Linear(inputs, classes)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        return self.head(self.blocks(self.stem(image)).mean(dim=(2, 3)))


def build(size: str) -> tuple[nn.Module, Inputs]:
    if size == "tiny":
        model, image = ResNet((1, 1), width=8, classes=10), torch.randn(1, 3, 32, 32)
    else:
        model, image = ResNet((3, 4, 6, 3), width=64, classes=1000), torch.randn(1, 3, 224, 224)
    # Untrained statistics are 0 and 1; real ones are not, and folding them must be tested on numbers that matter.
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            assert module.running_mean is not None and module.running_var is not None
            nn.init.normal_(module.running_mean, std=0.1)
            nn.init.uniform_(module.running_var, 0.5, 1.5)
    return model.eval(), (image,)


RESNET50 = Workload("resnet50", "ResNet-50, batch 1, 224 × 224, fp32", build)
