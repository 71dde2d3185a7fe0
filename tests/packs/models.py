"""Models for packs: a pack's process finds their code by the names of this module."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

import torch


@dataclass
class Config:
    scale: float = 0.5
    squared: bool = False


class Tiny(torch.nn.Module):
    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.a, self.b = torch.nn.Linear(8, width), torch.nn.Linear(width, 4)
        self.register_buffer("shift", torch.ones(width))
        self.drop = torch.nn.Dropout(0.1)
        self.gain = 2.0
        self.config = Config()

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None, *, scale: float = 1.0) -> dict[str, Any]:
        hidden = self.drop(torch.tanh(self.a(x) + self.shift)) * self.gain
        if self.config.squared:
            hidden = hidden * hidden
        if mask is not None:
            hidden = hidden * mask
        return {"out": self.b(hidden) * scale * self.config.scale, "hidden": hidden}


class Output(OrderedDict[str, Any]):
    """A dict with attributes, as transformers' outputs."""

    def __init__(self, out: torch.Tensor, count: int) -> None:
        super().__init__(out=out, count=count)
        self.out = out
        self.count = count


class Structured(torch.nn.Module):
    """Repeated layers, and a result that is an object."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(8, 8) for _ in range(3))

    def forward(self, x: torch.Tensor) -> Output:
        for layer in self.layers:
            x = torch.nn.functional.gelu(layer(x)) + x
        return Output(x, 3)


class Tied(torch.nn.Module):
    """Two layers with one weight."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)
        self.b.weight = self.a.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.b(torch.tanh(self.a(x)))


class Broken(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        print(end="")  # a graph break
        return y + 1


SCALE = 3.0
TABLE = torch.arange(8.0)


def scaled(x: torch.Tensor, by: float = 2.0) -> torch.Tensor:
    return torch.sin(x) * by * SCALE


def scaled_and_shifted(x: torch.Tensor, *, by: float = 1.0, shift: float = 0.0) -> torch.Tensor:
    return torch.sin(x) * by - shift


def scaling(by: float) -> Any:
    def scale(x: torch.Tensor) -> torch.Tensor:
        return torch.sin(x) * by

    return scale


def scaling_and_shifting(by: float, shift: float) -> Any:
    def scale(x: torch.Tensor) -> torch.Tensor:
        return torch.sin(x) * by + shift

    return scale


def scaling_by_nothing_yet() -> Any:
    def scale(x: torch.Tensor) -> torch.Tensor:
        return torch.sin(x) * by

    if not scale:
        by = 1.0
    return scale


class Elsewhere(torch.nn.Module):
    """Reads a tensor of its module's."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * TABLE


def tiny(seed: int = 0, **settings: Any) -> Tiny:
    torch.manual_seed(seed)
    return Tiny(**settings).eval()


def an_input(rows: int = 3) -> torch.Tensor:
    return torch.linspace(-1, 1, rows * 8).reshape(rows, 8)
