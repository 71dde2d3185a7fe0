"""A reinforcement-learning policy: so small that host overhead is all there is."""

from __future__ import annotations

import torch
from torch import nn

from burnish.tools.workloads.registry import Inputs, Workload


def build(size: str) -> tuple[nn.Module, Inputs]:
    width = {"full": 64, "tiny": 16}[size]
    model = nn.Sequential(nn.Linear(8, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 4))
    return model.eval(), (torch.randn(1, 8),)


MLP = Workload("mlp", "64-64 tanh policy network, batch 1", build)
