"""Operations that change nothing, and those that only look so."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from burnish.fuel import Fuel
from burnish.ir.dtypes import DType
from burnish.ir.graph import Node
from burnish.passes.fold import drop_identities
from burnish.passes.rewrite import rewrite
from tests.passes.start import BF16, BOOL, F32, F64, I64, SHAPE, Start, check, ops, start


def neutral(fn: str, value: float, dtype: DType, right: bool = True) -> Callable[[Start], Node]:
    def make(s: Start) -> Node:
        x = {F32: s.x, I64: s.n, BOOL: s.mask}[dtype]
        c = s.b.full(value, SHAPE, dtype)
        return s.b.map(fn, x, c) if right else s.b.map(fn, c, x)

    return make


@pytest.mark.parametrize(
    "make",
    [
        neutral("mul", 1, F32), neutral("mul", 1, F32, False), neutral("div", 1, F32), neutral("sub", 0.0, F32),
        neutral("add", -0.0, F32), neutral("add", 0, I64), neutral("sub", 0, I64), neutral("mul", 1, I64),
        neutral("and", True, BOOL), neutral("or", False, BOOL, False),
        lambda s: s.b.where(s.b.full(True, SHAPE, BOOL), s.x, s.b.map("neg", s.x)),
        lambda s: s.b.where(s.b.full(False, SHAPE, BOOL), s.b.map("neg", s.x), s.x),
        lambda s: s.b.cast(s.b.cast(s.x, F64), F32),
    ],
)  # fmt: skip
def test_identities_drop(make: Callable[[Start], Node]) -> None:
    s = start()
    s.b.graph.outputs = [make(s)]
    assert ops(check(drop_identities, s.b.graph)) == []


@pytest.mark.parametrize(
    "make",
    [
        neutral("add", 0.0, F32),  # -0.0 + 0.0 is 0.0
        neutral("sub", -0.0, F32),
        neutral("mul", 0, F32),  # NaN * 0 is NaN
        neutral("sub", 0, F32, False),  # 0 - x
        neutral("div", 1, F32, False),  # 1 / x
        lambda s: s.b.cast(s.b.cast(s.x, BF16), F32),  # rounds
        lambda s: s.b.cast(s.b.cast(s.n, F32), I64),  # float does not hold every integer
        lambda s: s.b.cast(s.b.cast(s.n, BOOL), I64),
    ],
)
def test_what_only_looks_neutral_stays(make: Callable[[Start], Node]) -> None:
    s = start()
    s.b.graph.outputs = [make(s)]
    fuel = Fuel(1)
    rewrite(s.b.graph, drop_identities, "identities", fuel)
    assert fuel.left == 1
