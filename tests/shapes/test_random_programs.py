"""No claim of a proof is wrong: random programs, run at their sizes and on padded inputs."""

from __future__ import annotations

import math
import warnings
from random import Random

import pytest
import torch

from burnish.errors import CompileError
from burnish.shapes.content import Number
from burnish.shapes.padding import prove
from tests.shapes.cases import BATCH, SEQUENCE, padded_to, symbols_of, traced
from tests.shapes.check import alike, unsound
from tests.shapes.random_programs import Writer

PROGRAMS, PER_TEST = 120, 20


# What longer runs have found: NaN whose sign is asked for, constants that only finite inputs make.
FOUND = (40446, 60115, 60138, 60193, 60309)


@pytest.mark.parametrize("seed", FOUND)
def test_what_was_wrong_once(seed: int) -> None:
    assert counterexample(seed) is None


@pytest.mark.parametrize("first", range(0, PROGRAMS, PER_TEST))
def test_what_is_claimed_is_so(first: int) -> None:
    for seed in range(first, first + PER_TEST):
        problem = counterexample(seed)
        assert problem is None, problem


def counterexample(seed: int) -> str | None:
    """What a proof says of a program that is not so."""
    rng = Random(seed)
    program = Writer(rng).program()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            captured = traced(program.function, *program.inputs)
        except CompileError:
            return None
    symbols = symbols_of(captured, program.inputs)
    over = rng.choice([["sequence"], ["sequence"], ["batch"], ["batch", "sequence"]])
    padded = {s: name for s, name in symbols.items() if name in over}
    fills = {k: _fill(rng, x) for k, x in enumerate(program.inputs)}
    real = {s: {"batch": BATCH, "sequence": SEQUENCE}[name] for s, name in symbols.items()}
    longer = {s: real[s] + (rng.choice([1, 2, 3, 5]) if s in padded else 0) for s in symbols}
    proof = prove(captured.graph, padded, fills)
    for finite in (True, False):
        inputs = program.inputs if finite else [_nasty(x, rng) for x in program.inputs]
        why = unsound(captured.graph, padded, inputs, real, longer, fills, finite)
        met = {"fill", "size", *(["finite", "unseen"] if finite else [])}
        if why is None and proof.safe and {n.kind for n in proof.needs} <= met:
            cuts = {o.position: o.sizes(real) for o in proof.outputs}
            why = _eager_differs(program.function, inputs, {real[s]: longer[s] for s in padded}, fills, cuts)
        if why is not None:
            return (
                f"seed {seed}, over {over}, fills {fills}, {'' if finite else 'not '}finite: {why}\n{program}\n{proof}"
            )
    return None


def _fill(rng: Random, x: torch.Tensor) -> Number:
    if rng.random() < 0.6:
        return 0
    return rng.choice([1, -1, math.nan, -math.inf]) if x.is_floating_point() else rng.choice([0, 1])


def _nasty(x: torch.Tensor, rng: Random) -> torch.Tensor:
    """With NaN and infinities among the real elements."""
    x = x.clone()
    if x.is_floating_point():
        for value in (math.nan, math.inf, -math.inf, -0.0, 1e300):
            x.view(-1)[rng.randrange(x.numel())] = value
    return x


def _eager_differs(
    fn: object, inputs: list[torch.Tensor], longer: dict[int, int], fills: dict[int, Number],
    cuts: dict[int, dict[int, int]],
) -> str | None:  # fmt: skip
    try:
        small = fn(*inputs)  # type: ignore[operator]
        large = fn(*(padded_to(x, longer, fills[k]) for k, x in enumerate(inputs)))  # type: ignore[operator]
    except (RuntimeError, IndexError, ValueError):  # in what nobody reads: `unsound` has run the rest
        return None
    for k, (x, y) in enumerate(zip(small, large, strict=True)):
        for dim, size in cuts.get(k, {}).items():
            y = y.narrow(dim, 0, size)
        if not alike(x, y):
            return f"eager's result {k} differs"
    return None
