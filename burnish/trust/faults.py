"""Fault injection, to test that burnish notices: pass one as `options={"fault": WrongBy(0.01)}`.

A fault stands between a compiled program and its variant. It knows the variant's number within its object, counted from
1, so that it can select the variants to affect.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

Call = Callable[..., Any]


class Fault:
    """No fault. Subclasses override the methods that should fail."""

    def compiling(self, variant: int) -> None:
        """Called before a graph is compiled: raise to make that fail."""

    def program(self, variant: int, call: Call) -> Call:
        """The replacement of a compiled program."""
        return call


class WrongBy(Fault):
    """Every floating-point result is off by a fraction of itself."""

    def __init__(self, fraction: float, *, after: int = 0) -> None:
        self.fraction = fraction
        self.after = after  # calls of a variant before the fault starts

    def program(self, variant: int, call: Call) -> Call:
        calls = 0

        def wrong(*args: Any) -> Any:
            nonlocal calls
            calls += 1
            result = call(*args)
            return result if calls <= self.after else _each(result, lambda x: x * (1 + self.fraction))

        return wrong


class NotANumber(Fault):
    """One element of every floating-point result is NaN."""

    def __init__(self, *, after: int = 0) -> None:
        self.after = after

    def program(self, variant: int, call: Call) -> Call:
        calls = 0

        def spoil(x: torch.Tensor) -> torch.Tensor:
            x = x.clone()
            x.view(-1)[0] = float("nan")
            return x

        def wrong(*args: Any) -> Any:
            nonlocal calls
            calls += 1
            result = call(*args)
            return result if calls <= self.after else _each(result, spoil)

        return wrong


class RaisesInCompile(Fault):
    """The pipeline fails on one variant, or on all."""

    def __init__(self, variant: int | None = None) -> None:
        self.variant = variant

    def compiling(self, variant: int) -> None:
        if self.variant in (None, variant):
            raise RuntimeError(f"injected: variant {variant} does not compile")


class RaisesAtRun(Fault):
    """The program fails when it is called."""

    def __init__(self, variant: int | None = None, *, after: int = 0) -> None:
        self.variant = variant
        self.after = after

    def program(self, variant: int, call: Call) -> Call:
        if self.variant not in (None, variant):
            return call
        calls = 0

        def failing(*args: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls > self.after:
                raise RuntimeError(f"injected: call {calls} of variant {variant} fails")
            return call(*args)

        return failing


class Slower(Fault):
    """The program does its work many times over."""

    def __init__(self, times: int = 200) -> None:
        self.times = times

    def program(self, variant: int, call: Call) -> Call:
        def slow(*args: Any) -> Any:
            for _ in range(self.times - 1):
                call(*args)
            return call(*args)

        return slow


def _each(result: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    if isinstance(result, torch.Tensor):
        return change(result) if result.is_floating_point() else result
    return type(result)(_each(item, change) for item in result) if isinstance(result, (tuple, list)) else result
