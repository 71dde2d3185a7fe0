"""Every form compiles for each generation of GPU with Triton's own compiler, which needs none of them."""

from __future__ import annotations

import re

import pytest

from burnish.codegen.triton.module import generate
from burnish.ir.body import Checked, Loop, value_symbol
from burnish.ir.dtypes import DType
from burnish.ir.expr import sym
from burnish.schedule.kernels import LoopGroup, LoopKernel, Schedule
from tests.codegen.triton.compiler import Compiler
from tests.codegen.triton.loops import (
    Writer,
    at,
    axes,
    biased,
    column_sums,
    reduced,
    row_and_column_sums,
    scanned,
    softmax,
    transposed,
)
from tests.codegen.triton.test_forms import embedding, scatter
from tests.codegen.triton.test_scalars import FLOATS, INTEGERS, every_operation

N, M = sym("s0", 2), sym("s1", 2)
LOOPS: dict[str, Loop] = {
    "map": biased(512, 768, DType.bf16),
    "map_symbolic": biased(N, M),
    "map_wide": biased(1 << 16, 1 << 15),
    "tile": transposed(4, 512, 768, DType.bf16),
    "row": softmax(512, 768, DType.bf16),
    "long": softmax(8, 50257, DType.bf16),
    "mixed": row_and_column_sums(8, 16, 768, DType.bf16),
    "long_symbolic": softmax(N, M),
    "columns": column_sums(64, 768),
    "columns_long": column_sums(8192, 768, DType.bf16),
    "argmax": reduced("argmax", 8, 1000, DType.f32, DType.i64),
    "argmax_long": reduced("argmax", 8, 50257, DType.bf16, DType.i64),
    "min_f64": reduced("min", 8, 1000, DType.f64, DType.f64),
    "prod_long": reduced("prod", 8, 50257, DType.f32, DType.f32),
    "any_long": reduced("any", 8, 50257, DType.bool, DType.bool),
    "scan": scanned("sum", 8, 1000),
    "scan_long": scanned("prod", 8, N),
    "gather": embedding(1000, 768, 64),
    "scatter": scatter(1000, 768, 64, "add", DType.f32),
    "scatter_half": scatter(1000, 768, 64, "add", DType.bf16),  # the interpreter has no such atomic
}
UNIT = generate(Schedule({}, [LoopKernel(loop) for loop in LOOPS.values()], []))


@pytest.mark.parametrize("capability", [80, 90, 100])
def test_forms(compiler: Compiler, capability: int) -> None:
    for number in range(len(LOOPS)):
        assert compiler.compile(UNIT, number, capability)


@pytest.mark.parametrize("name", ["map_symbolic", "long_symbolic", "scan_long"])
def test_sizes_known_at_launch(compiler: Compiler, name: str) -> None:
    """Offsets past 2**31, and a size of 1, which Triton compiles in."""
    number = list(LOOPS).index(name)
    assert compiler.compile(UNIT, number, 90, index="int64")
    assert compiler.compile(UNIT, number, 90, ones=("s0",))


@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS, DType.bool], ids=lambda d: d.value)
def test_operations(compiler: Compiler, dtype: DType) -> None:
    loop, _ = every_operation(dtype, 1024)
    assert compiler.compile(generate(Schedule({}, [LoopKernel(loop)], [])), 0, 90)


@pytest.mark.parametrize("name", ["map", "row", "columns_long", "tile"])
def test_accesses_are_16_bytes(compiler: Compiler, name: str) -> None:
    """Rows of 768 half numbers: each thread moves eight at once."""
    ptx = compiler.compile(UNIT, list(LOOPS).index(name), 90)
    assert re.search(r"ld\.global\.v4\.b32", ptx), ptx
    assert name == "columns_long" or re.search(r"st\.global\.v4\.b32", ptx), ptx


def test_loops_side_by_side_with_a_stride_known_at_launch(compiler: Compiler) -> None:
    """What is looked up in a dimension of one element has its stride, and no size that varies."""
    space, w = axes(64), Writer()
    row = w.emit(Checked(w.load("k", at(space[0]), DType.i64), 1))
    w.store("z", at(space[0]), w.load("x", value_symbol(row) * N))
    unit = generate(Schedule({}, [LoopGroup((LoopKernel(w.loop(space)), LoopKernel(softmax(4, 64))))], []))
    assert unit.calls[0].sizes == ("s0",) and compiler.compile(unit, 0, 90)
