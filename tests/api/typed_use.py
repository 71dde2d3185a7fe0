"""What a type checker makes of burnish: read by test_types.py, never run. Each comment is what it must say."""

from __future__ import annotations

from typing import reveal_type

from torch import nn

import burnish


class Net(nn.Module):
    def describe(self) -> str:
        return "net"


def scale(x: float, *, by: int = 2) -> float:
    return x * by


@burnish.compile
def bare(x: float) -> str:
    return str(x)


@burnish.compile(mode="reduce-overhead", dynamic=True)
def with_arguments(x: float, times: int = 1) -> str:
    return str(x) * times


class Steps:
    @burnish.compile
    def step(self, x: float) -> int:
        return int(x)


@burnish.disable
def outside(x: float) -> str:
    return str(x)


reveal_type(burnish.compile(Net()))  # Net
reveal_type(burnish.compile(Net(), mode="max-autotune").describe())  # str
reveal_type(burnish.compile(scale))  # def (x: float, *, by: int =) -> float
reveal_type(bare)  # def (x: float) -> str
reveal_type(with_arguments)  # def (x: float, times: int =) -> str
reveal_type(Steps().step)  # def (x: float) -> int
reveal_type(burnish.disable(Net()))  # Net
reveal_type(outside)  # def (x: float) -> str
