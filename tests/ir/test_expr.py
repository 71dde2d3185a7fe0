"""Index expressions: canonical form changes how one is written, never what it is worth."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from dataclasses import dataclass
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from burnish.ir.expr import (
    Dim,
    Expr,
    coefficient,
    evaluate,
    floordiv,
    is_less,
    is_nonneg,
    lower,
    maximum,
    minimum,
    mod,
    product,
    render,
    substitute,
    sym,
    symbols,
    upper,
)
from burnish.observe.log import CompileLog
from burnish.options import Options
from burnish.runtime.build.shared_library import CSource, build_shared
from burnish.runtime.cache.store import open_cache

COMMON = settings(derandomize=True, deadline=None, max_examples=300)


@dataclass(frozen=True)
class Tree:
    """An expression as written, before anything is simplified."""

    op: str  # a symbol's name, or one of: const + - * // % max min
    args: tuple[Tree, ...] = ()
    number: int = 0


@dataclass(frozen=True)
class Space:
    """Two sizes and three axes; the last axis is as long as the first size."""

    lows: tuple[int, int]
    lengths: tuple[int, int]

    @property
    def symbols(self) -> dict[str, Expr]:
        sizes = {f"s{i}": sym(f"s{i}", low) for i, low in enumerate(self.lows)}
        axes = {f"a{i}": sym(f"a{i}", 0, n - 1) for i, n in enumerate(self.lengths)}
        return {**sizes, **axes, "a2": sym("a2", 0, sizes["s0"] - 1)}

    def point(self, rng: Random) -> dict[str, int]:
        sizes = {f"s{i}": rng.randint(max(low, 1), low + 5) for i, low in enumerate(self.lows)}
        axes = {f"a{i}": rng.randint(0, n - 1) for i, n in enumerate(self.lengths)}
        return {**sizes, **axes, "a2": rng.randint(0, sizes["s0"] - 1)}


def random_space(rng: Random) -> Space:
    return Space((rng.randint(0, 2), rng.randint(0, 3)), (rng.randint(1, 9), rng.randint(1, 5)))


def random_tree(rng: Random, space: Space, depth: int) -> Tree:
    if depth == 0 or rng.random() < 0.15:
        if rng.random() < 0.3:
            return Tree("const", number=rng.randint(-6, 12))
        return Tree(rng.choice(["a0", "a1", "a2", "a0", "a1", "s0", "s1"]))
    op = rng.choice(["+", "+", "-", "*", "*", "//", "%", "%", "max", "min"])
    left = random_tree(rng, space, depth - 1)
    if op in ("//", "%"):
        return Tree(op, (left, _divisor(rng)))
    return Tree(op, (left, random_tree(rng, space, depth - 1)))


def _divisor(rng: Random) -> Tree:
    """Sizes and whole numbers: what a divisor is where a reshape splits an axis."""
    kind = rng.randint(0, 5)
    if kind < 4:
        return Tree("const", number=rng.randint(1, 8))
    if kind == 4:
        return Tree(rng.choice(["s0", "s1"]))
    return Tree("*", (Tree("s0"), Tree("const", number=rng.randint(1, 3))))


def build(tree: Tree, names: Mapping[str, Expr]) -> Dim:
    if tree.op == "const":
        return tree.number
    if not tree.args:
        return names[tree.op]
    a, b = (build(t, names) for t in tree.args)
    match tree.op:
        case "+":
            return a + b
        case "-":
            return a - b
        case "*":
            return a * b
        case "//":
            return floordiv(a, b)
        case "%":
            return mod(a, b)
        case "max":
            return maximum(a, b)
    return minimum(a, b)


def worth(tree: Tree, point: Mapping[str, int]) -> int:
    if tree.op == "const":
        return tree.number
    if not tree.args:
        return point[tree.op]
    a, b = (worth(t, point) for t in tree.args)
    return {
        "+": lambda: a + b, "-": lambda: a - b, "*": lambda: a * b, "//": lambda: a // b, "%": lambda: a % b,
        "max": lambda: max(a, b), "min": lambda: min(a, b),
    }[tree.op]()  # fmt: skip


@dataclass(frozen=True)
class Case:
    space: Space
    tree: Tree
    expr: Dim
    points: list[dict[str, int]]


def random_case(rng: Random, depth: int = 3) -> Case:
    space = random_space(rng)
    tree = random_tree(rng, space, depth)
    return Case(space, tree, build(tree, space.symbols), [space.point(rng) for _ in range(8)])


randoms = st.integers(0, 2**32).map(Random)  # by seed: drawn choice by choice, many are repeats
cases = randoms.map(random_case)


@COMMON
@given(cases)
def test_simplified_is_worth_the_same(case: Case) -> None:
    for point in case.points:
        assert evaluate(case.expr, point) == worth(case.tree, point), (case.tree, case.expr, point)


@COMMON
@given(cases)
def test_substitution_in_two_steps(case: Case) -> None:
    for point in case.points:
        first = substitute(case.expr, {k: v for k, v in point.items() if k.startswith("s")})
        assert not any(s.name.startswith("s") for s in symbols(first))
        assert evaluate(first, point) == worth(case.tree, point), (case.tree, case.expr, first, point)


@COMMON
@given(cases, randoms)
def test_substitution_of_expressions(case: Case, rng: Random) -> None:
    """An axis split in two: a0 becomes 3 * a0' + a1, as fusion does when it lays one loop on another."""
    inner = sym("b1", 0, 2)
    outer = sym("b0", 0, max(case.space.lengths[0] // 3, 1) - 1)
    moved = substitute(case.expr, {"a0": outer * 3 + inner})
    for point in case.points:
        at = {**point, "b0": rng.randint(0, max(case.space.lengths[0] // 3, 1) - 1), "b1": rng.randint(0, 2)}
        if at["b0"] * 3 + at["b1"] < case.space.lengths[0]:
            assert evaluate(moved, at) == worth(case.tree, {**point, "a0": at["b0"] * 3 + at["b1"]})


@COMMON
@given(cases)
def test_bounds_hold(case: Case) -> None:
    low, high = lower(case.expr), upper(case.expr)
    for point in case.points:
        value = worth(case.tree, point)
        assert low is None or evaluate(low, point) <= value, (case.expr, low, point)
        assert high is None or value <= evaluate(high, point), (case.expr, high, point)
        if is_nonneg(case.expr):
            assert value >= 0, (case.expr, point)


@COMMON
@given(cases, randoms)
def test_is_less_holds(case: Case, rng: Random) -> None:
    names = case.space.symbols
    for _ in range(4):
        other_tree = random_tree(rng, case.space, 1)
        other = build(other_tree, names)
        if is_less(case.expr, other):
            for point in case.points:
                assert worth(case.tree, point) < worth(other_tree, point), (case.expr, other, point)


@COMMON
@given(cases)
def test_coefficient_is_the_slope(case: Case) -> None:
    for name in ("a0", "a1", "a2"):
        slope = coefficient(case.expr, name)
        if slope is None:
            continue
        assert name not in {s.name for s in symbols(slope)}
        for point in case.points:
            flat = worth(case.tree, {**point, name: 0})
            assert worth(case.tree, point) == evaluate(slope, point) * point[name] + flat, (case.expr, name, slope)


@COMMON
@given(cases)
def test_python_text(case: Case) -> None:
    text = render(case.expr, lambda n: f"v_{n}")
    for point in case.points:
        assert eval(text, {"max": max, "min": min}, {f"v_{k}": v for k, v in point.items()}) == worth(case.tree, point)


def test_c_text() -> None:
    rng = Random(0)
    chosen = [random_case(rng) for _ in range(300)]
    names = ["s0", "s1", "a0", "a1", "a2"]
    parameters = ", ".join(f"int64_t {n}" for n in names)
    functions = [
        f"int64_t e{k}({parameters}) {{ return {render(case.expr, python=False)}; }}" for k, case in enumerate(chosen)
    ]
    options = Options()
    text = "\n".join(['#include "bn_kernel.h"', *functions, ""])
    library = build_shared(CSource(text, "expressions"), options=options, cache=open_cache(options), log=CompileLog())
    for k, case in enumerate(chosen):
        function = getattr(library, f"e{k}")
        function.restype = ctypes.c_int64
        for point in case.points:
            assert function(*(ctypes.c_int64(point[n]) for n in names)) == worth(case.tree, point), functions[k]


# --- simplifications the rest of the compiler counts on ---------------------------------------------------------

A, B, N = sym("a", 0, 7), sym("b", 0, 3), sym("n", 1)
ROW = sym("r", 0, N - 1)


@pytest.mark.parametrize(
    ("got", "want"),
    [
        ((A * 4 + B) // 4, A),
        ((A * 4 + B) % 4, B),
        (mod(A, 8), A),
        (floordiv(A, 8), 0),
        (floordiv(floordiv(A, 2), 2), floordiv(A, 4)),
        (floordiv(A, 3) * 3 + mod(A, 3), A),
        ((A * N + ROW) // N, A),
        ((A * N + ROW) % N, ROW),
        (floordiv(A * 4 + B, 4) * 4 + mod(A * 4 + B, 4), A * 4 + B),
        (mod(mod(A, 6), 3), mod(A, 3)),
        (floordiv(mod(A, 6), 3), mod(floordiv(A, 3), 2)),
        (A - A, 0),
        (A * 0, 0),
        (maximum(A, 0), A),
        (minimum(A, 7), A),
        (product([N, 2, N]), N * N * 2),
    ],
)
def test_known_forms(got: Dim, want: Dim) -> None:
    assert got == want


def test_bounds_of_a_product_with_a_negative_factor() -> None:
    """(n - 9) // 2 may be negative: its largest value times an axis's largest is no bound."""
    x = floordiv(N - 9, 2) * A
    assert upper(x) is None
    assert not is_nonneg(x)
    assert not is_less(x, 1)


def test_a_whole_quotient_of_sizes_is_at_least_that_of_the_least() -> None:
    n, m = sym("n", 2), sym("m", 3)
    assert is_nonneg(floordiv(n * m, 2) - 3)
    assert not is_nonneg(floordiv(n * m, 2) - 4)
    assert not is_nonneg(floordiv(n * m, 7) - 1)


def test_equal_expressions_hash_alike() -> None:
    a, b = A * 4 + B + 1, 1 + B + A * 4
    assert a == b
    assert hash(a) == hash(b)
    assert A * 4 + B != A * 4 - B


def test_a_constant_is_an_int() -> None:
    assert isinstance((A + 3) - A, int)
    assert isinstance(floordiv(A, 100), int)


def test_missing_symbols_are_named() -> None:
    with pytest.raises(KeyError, match="b"):
        evaluate(A + B, {"a": 1})


def test_not_affine_has_no_coefficient() -> None:
    assert coefficient(A * A, "a") is None
    assert coefficient(floordiv(A, 3), "a") is None
    assert coefficient(A * N + B, "a") == N
    assert coefficient(B, "a") == 0
