"""The function that a repro file calls: compiles one function of ATen calls and compares it with eager and float64."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import fx

from burnish.options import Options
from burnish.tools.verify.calls import Argument, Calls, Expected
from burnish.tools.verify.judge import TensorVerdict
from burnish.tools.verify.reduce import annotated


def seeded(
    seed: int,
    shape: Sequence[int],
    dtype: torch.dtype = torch.float32,
    *,
    strides: Sequence[int] | None = None,
    low: float = 0,
    high: float = 1,
    device: str = "cpu",
) -> torch.Tensor:
    """Normally distributed floats scaled by `high`, or integers from `low` to `high`, the same on every machine."""
    generator = torch.Generator().manual_seed(seed)
    if dtype.is_floating_point or dtype.is_complex:
        values = torch.randn(tuple(shape), generator=generator, dtype=torch.float32) * high
    else:
        values = torch.randint(int(low), int(high) + 1, tuple(shape), generator=generator)
    made = torch.empty_strided(tuple(shape), tuple(strides), dtype=dtype) if strides is not None else None
    return (values.to(dtype) if made is None else made.copy_(values)).to(device)


def saved(path: str | Path) -> list[Any]:
    arguments: list[Any] = torch.load(path, weights_only=True)
    return arguments


def traced(graph: Callable[..., Any], arguments: Sequence[Argument], options: Options | None = None) -> Calls:
    """A function written as ATen calls, as the graph it was printed from."""
    module = annotated(fx.symbolic_trace(graph), arguments)
    return Calls(module, list(arguments), "inference", options or Options())


def check(
    graph: Callable[..., Any], arguments: Sequence[Argument], *, fuel: int | None = None, culprit: str = ""
) -> int:
    """Print what is wrong, and return the exit status: 1 while it is wrong, 0 once it is right."""
    calls = traced(graph, arguments)
    expected = Expected.of(calls)
    if fuel:
        before = expected.judge(calls.run(calls.compiled(fuel - 1).run), calls.written())
        _print(f"with {fuel - 1} optimisations", before)
    verdicts = expected.judge(calls.run(calls.compiled(fuel).run), calls.written())
    _print("as compiled" if fuel is None else f"with {fuel} optimisations", verdicts)
    is_wrong = not all(verdict.ok for verdict in verdicts.values())
    if culprit:
        print(f"culprit: {culprit}" if is_wrong else f"it was: {culprit}")
    print("WRONG" if is_wrong else "right now: nothing to see any more")
    return int(is_wrong)


def _print(title: str, verdicts: dict[str, TensorVerdict]) -> None:
    print(f"{title}:")
    for name, verdict in verdicts.items():
        numbers = f"error {verdict.error.largest:.2e}, eager's {verdict.eager.largest:.2e}"
        print(f"  {name}: {'right' if verdict.ok else 'WRONG: ' + verdict.reason} ({numbers})")
