"""Every form a kernel takes, under Triton's interpreter, against what the loop means."""

from __future__ import annotations

import math

import pytest
import torch

from burnish.codegen.triton.body import NotPrintable
from burnish.codegen.triton.loop import LoopPrinter, TritonKernel, print_loop
from burnish.codegen.triton.module import generate
from burnish.ir.body import (
    Apply,
    BodyBuilder,
    Checked,
    Load,
    Loop,
    Position,
    Reduced,
    Store,
    make_axis,
    value_symbol,
)
from burnish.ir.dtypes import DType
from burnish.ir.expr import Expr, sym
from burnish.schedule.axes import normalise
from burnish.schedule.kernels import LoopKernel, Schedule
from tests.codegen.triton.compiler import Compiler
from tests.codegen.triton.interpreter import Buffers, Interpreter
from tests.codegen.triton.loops import (
    Writer,
    at,
    axes,
    biased,
    column_sums,
    linear,
    reduced,
    row_and_column_sums,
    scanned,
    softmax,
    transposed,
)

N, M = sym("s0", 2), sym("s1", 2)


def form(loop: Loop) -> str:
    return LoopPrinter(normalise(loop)).plan.form


def rand(*shape: int, dtype: DType = DType.f32) -> torch.Tensor:
    n = 1
    for d in shape:
        n *= d
    if dtype.is_float:
        return torch.randn(n).to(dtype.torch)
    return torch.randint(0, 2 if dtype is DType.bool else 100, (n,)).to(dtype.torch)


def zeros(n: int, dtype: DType = DType.f32) -> torch.Tensor:
    return torch.zeros(n, dtype=dtype.torch)


# --- maps -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [DType.f32, DType.bf16, DType.f16, DType.f64], ids=lambda d: d.value)
def test_map(interpreter: Interpreter, dtype: DType) -> None:
    loop = biased(7, 96, dtype)
    assert form(loop) == "map"
    interpreter.check(loop, {"x": rand(7, 96, dtype=dtype), "b": rand(96, dtype=dtype), "y": zeros(7 * 96, dtype)})


def test_a_map_that_blocks_divide_has_no_masks(interpreter: Interpreter) -> None:
    loop = biased(8, 128)
    assert "mask" not in print_loop(loop).text and "xm" not in print_loop(loop).text
    interpreter.check(loop, {"x": rand(8, 128), "b": rand(128), "y": zeros(1024)})


def test_map_of_symbolic_size(interpreter: Interpreter) -> None:
    loop = biased(N, M)
    interpreter.check(
        loop, {"x": rand(11, 37), "b": rand(37), "y": zeros(11 * 37)}, {"s0": 11, "s1": 37}, forms=1
    )  # fmt: skip


def test_map_over_nothing_but_a_number(interpreter: Interpreter) -> None:
    w = Writer()
    w.store("y", 0, w.apply("div", w.load("x", 0), w.load("z", 3)))
    interpreter.check(w.loop(()), {"x": rand(1), "z": rand(4), "y": zeros(1)})


def test_map_with_axes_in_another_order(interpreter: Interpreter) -> None:
    """Heads moved before positions: contiguous runs stay, divisions recover the rest."""
    space, w = axes(2, 3, 5, 8), Writer()
    b, h, s, d = (at(a) for a in space)
    w.store("y", linear(space), w.load("x", b * 120 + s * 24 + h * 8 + d))
    interpreter.check(w.loop(space), {"x": rand(240), "y": zeros(240)})


@pytest.mark.parametrize("dtype", [DType.f32, DType.bf16, DType.i64], ids=lambda d: d.value)
def test_transpose_is_a_tile(interpreter: Interpreter, dtype: DType) -> None:
    loop = transposed(2, 70, 40, dtype)
    assert form(loop) == "tile"
    interpreter.check(loop, {"x": rand(2, 70, 40, dtype=dtype), "y": zeros(5600, dtype)})


def test_tile_of_several_outer_axes(interpreter: Interpreter) -> None:
    space, w = axes(2, 3, 20, 32), Writer()
    a, b, i, j = (at(x) for x in space)
    w.store("y", b * 1280 + a * 640 + j * 20 + i, w.load("x", linear(space)))
    loop = w.loop(space)
    assert form(loop) == "tile"
    interpreter.check(loop, {"x": rand(3840), "y": zeros(3840)})


def test_guarded_loads_read_the_fill_past_the_edge(interpreter: Interpreter) -> None:
    """Padding: index - 1 is out of range at both ends."""
    space, w = axes(12), Writer()
    here = w.emit(Position(at(space[0]) - 1))
    low = w.apply("ge", here, w.const(0, DType.i64), dtype=DType.bool)
    inside = w.apply("and", low, w.apply("lt", here, w.const(10, DType.i64), dtype=DType.bool), dtype=DType.bool)
    w.store("y", at(space[0]), w.load("x", at(space[0]) - 1, guard=inside, fill=-2.5))
    w.store("z", at(space[0]), w.load("c", 0, guard=inside, fill=9.0))  # a place that does not vary, a guard that does
    interpreter.check(w.loop(space), {"x": rand(10), "c": rand(1), "y": zeros(12), "z": zeros(12)})


@pytest.mark.parametrize("dtype", [DType.f16, DType.bf16])
def test_no_negative_fill_among_halves(interpreter: Interpreter, dtype: DType) -> None:
    """CUDA's assembler in Triton 3.6 lost its sign: half of a `max_pool1d(x, 2, 2, 1)` over rows of two was -inf."""
    space, w = axes(3, 2), Writer()
    i, j = map(at, space)
    inside = w.apply("lt", w.emit(Position(2 * j)), w.const(2, DType.i64), dtype=DType.bool)
    after = w.apply("ge", w.emit(Position(2 * j - 1)), w.const(0, DType.i64), dtype=DType.bool)
    a = w.load("x", 2 * i + 2 * j, dtype, guard=inside, fill=-math.inf)
    b = w.load("x", 2 * i + 2 * j - 1, dtype, guard=after, fill=-math.inf)
    w.store("y", 2 * i + j, w.apply("where", w.apply("gt", a, b, dtype=DType.bool), a, b), dtype)
    interpreter.check(w.loop(space), {"x": rand(6, dtype=dtype), "y": zeros(6, dtype)})
    assert "other=" not in print_loop(w.loop(space)).text


def test_positions_and_negative_quotients(interpreter: Interpreter) -> None:
    space, w = axes(20), Writer()
    i = at(space[0])
    w.store("q", i, w.emit(Position((i - 7) // 3)), DType.i64)
    w.store("m", i, w.emit(Position((i - 7) % 3)), DType.i64)
    w.store("n", i, w.emit(Position(N * 2)), DType.i64)
    interpreter.check(w.loop(space), {k: zeros(20, DType.i64) for k in "qmn"}, {"s0": 5})


# --- gathers and scatters ---------------------------------------------------------------------------------------


def embedding(rows: int, width: int, count: int, dtype: DType = DType.i64) -> Loop:
    space, w = axes(count, width), Writer()
    row = w.emit(Checked(w.load("k", at(space[0]), dtype), rows))
    w.store("y", linear(space), w.load("x", value_symbol(row) * width + at(space[1])))
    return w.loop(space)


def scatter(rows: int, width: int, count: int, mode: str, dtype: DType, places: DType = DType.i64) -> Loop:
    space, w = axes(count, width), Writer()
    row = w.emit(Checked(w.load("k", at(space[0]), places), rows))
    index = value_symbol(row) * width + at(space[1])
    w.store("y", index, w.load("x", linear(space), dtype), dtype, mode)
    return w.loop(space, sequential=True)


@pytest.mark.parametrize("dtype", [DType.i64, DType.i32], ids=lambda d: d.value)
def test_gather(interpreter: Interpreter, dtype: DType) -> None:
    places = torch.randint(0, 10, (7,)).to(dtype.torch)
    interpreter.check(embedding(10, 24, 7, dtype), {"k": places, "x": rand(240), "y": zeros(168)})


def test_a_bad_index_raises_the_flag_and_reads_nothing(interpreter: Interpreter) -> None:
    for wrong in (10, -1):
        buffers = {"k": torch.tensor([1, wrong, 3]), "x": rand(240), "y": zeros(72)}
        assert interpreter.run_loop(embedding(10, 24, 3), buffers) == 1
        assert torch.equal(buffers["y"][:24], buffers["x"][24:48])


@pytest.mark.parametrize("dtype", [DType.f32, DType.f64, DType.i32, DType.i64], ids=lambda d: d.value)
def test_scatter_add(interpreter: Interpreter, dtype: DType) -> None:
    buffers = {"k": torch.tensor([3, 1, 3, 3, 0]), "x": rand(5, 24, dtype=dtype), "y": rand(96, dtype=dtype)}
    interpreter.check(scatter(4, 24, 5, "add", dtype), buffers)


def test_scatter_set_and_integer_extremes(interpreter: Interpreter) -> None:
    for mode in ("set", "max", "min"):
        buffers = {"k": torch.tensor([2, 0, 3]), "x": rand(72, dtype=DType.i32), "y": rand(96, dtype=DType.i32)}
        interpreter.check(scatter(4, 24, 3, mode, DType.i32), buffers, forms=1)


def test_scatter_by_indices_of_eight_bits_over_more_rows_than_they_reach(interpreter: Interpreter) -> None:
    buffers = {"k": torch.tensor([2, 0, 127], dtype=torch.int8), "x": rand(12), "y": rand(800)}
    interpreter.check(scatter(200, 4, 3, "set", DType.f32, DType.i8), buffers, forms=1)


@pytest.mark.parametrize("mode", ["set", "add"])
@pytest.mark.parametrize("wrong", [1000, -1])
def test_a_bad_index_raises_the_flag_and_writes_nothing(interpreter: Interpreter, mode: str, wrong: int) -> None:
    buffers = {"k": torch.tensor([2, wrong, 3]), "x": rand(72) + 9, "y": zeros(96)}
    assert interpreter.run_loop(scatter(4, 24, 3, mode, DType.f32), buffers) == 1
    want = zeros(96)
    want[48:72], want[72:] = buffers["x"][:24], buffers["x"][48:]
    assert torch.equal(buffers["y"], want)


def test_every_point_of_a_scatter_add_counts(interpreter: Interpreter) -> None:
    """Neither the place nor the value varies along the second axis."""
    space, w = axes(3, 50), Writer()
    w.store("y", at(space[0]), w.load("x", at(space[0])), mode="add")
    interpreter.check(w.loop(space), {"x": rand(3), "y": zeros(3)}, forms=1)


@pytest.mark.parametrize(("mode", "dtype"), [("prod", DType.f32), ("max", DType.f32), ("add", DType.i8)])
def test_stores_without_an_atomic_are_refused(mode: str, dtype: DType) -> None:
    with pytest.raises(NotPrintable, match=mode):
        print_loop(scatter(4, 24, 5, mode, dtype))


# --- rows -------------------------------------------------------------------------------------------------------


def softmax_buffers(rows: int, width: int, dtype: DType = DType.f32) -> Buffers:
    return {"x": rand(rows, width, dtype=dtype), "y": zeros(rows * width, dtype), "z": zeros(rows)}


@pytest.mark.parametrize("dtype", [DType.f32, DType.bf16, DType.f16], ids=lambda d: d.value)
@pytest.mark.parametrize("width", [64, 100])
def test_whole_rows(interpreter: Interpreter, dtype: DType, width: int) -> None:
    loop = softmax(5, width, dtype)
    assert form(loop) == "row"
    interpreter.check(loop, softmax_buffers(5, width, dtype))


def test_a_row_is_asked_for_before_the_first_reduction(interpreter: Interpreter) -> None:
    space, w = axes(6, 100, reduce=(1,)), Writer()
    total = w.reduce("sum", w.load("x", linear(space)))
    w.store("y", linear(space), w.apply("add", w.load("z", linear(space)), total))
    loop = w.loop(space)
    text = print_loop(loop).text
    assert form(loop) == "row" and text.rindex("tl.load") < text.index("tl.sum")
    interpreter.check(loop, {"x": rand(6, 100), "z": rand(6, 100), "y": zeros(600)}, tolerance=1e-5)


@pytest.mark.parametrize("width", [128, 200])
def test_rows_one_after_the_other_with_sums_of_columns(interpreter: Interpreter, width: int) -> None:
    loop = row_and_column_sums(3, 6, width, DType.bf16)
    assert form(loop) == "mixed"
    buffers = {"x": rand(18, width, dtype=DType.bf16), "w": rand(width), "y": zeros(18 * width, DType.bf16)}
    interpreter.check(loop, {**buffers, "sums": zeros(3 * width) + 7, "squares": zeros(3 * width)}, tolerance=1e-5)


def test_several_rows_in_one_program(interpreter: Interpreter) -> None:
    loop = softmax(N, 10)
    (_, rows), _ = print_loop(loop).launch.blocks
    assert form(loop) == "row" and rows > 1
    interpreter.check(loop, softmax_buffers(150, 10), {"s0": 150})


def test_long_rows_are_read_in_chunks(interpreter: Interpreter) -> None:
    loop = softmax(2, 20000)
    assert form(loop) == "long" and print_loop(loop).text.count("for start") == 2  # the sum takes no pass of its own
    interpreter.check(loop, softmax_buffers(2, 20000), tolerance=1e-5)


def test_sums_of_exponentials_know_infinities_as_two_passes_do(interpreter: Interpreter) -> None:
    width, inf = 20001, float("inf")
    x = (rand(8, width) * 30).view(8, width)
    x[0, :9000] = x[1, 9000:] = x[2] = -inf  # before the first finite one, after the last, everywhere
    x[3, 7], x[4, 8] = inf, float("nan")
    x[5] = torch.linspace(-200, 200, width)  # a new maximum at every step
    x[6] = -3.4028234663852886e38
    x[7, 5] = 3e38
    interpreter.check(softmax(8, width), {"x": x.flatten(), "y": zeros(8 * width), "z": zeros(8)}, tolerance=1e-5)


def test_rows_of_symbolic_length(interpreter: Interpreter) -> None:
    loop = softmax(N, M)
    assert form(loop) == "long"
    for width in (5, 2500):
        interpreter.check(loop, softmax_buffers(3, width), {"s0": 3, "s1": width}, tolerance=1e-5, forms=1)


def test_row_over_separate_axes(interpreter: Interpreter) -> None:
    """Batch norm: channels are kept between two reduced axes."""
    space, w = axes(4, 3, 25, reduce=(0, 2)), Writer()
    x = w.load("x", linear(space))
    mean = w.apply("div", w.reduce("sum", x), w.const(100.0))
    d = w.apply("sub", x, mean)
    w.store("v", at(space[1]), w.reduce("sum", w.apply("mul", d, d)))
    w.store("y", linear(space), d)
    interpreter.check(w.loop(space), {"x": rand(300), "v": zeros(3), "y": zeros(300)})


def test_reduction_over_everything(interpreter: Interpreter) -> None:
    space, w = axes(700, reduce=(0,)), Writer()
    w.store("y", 0, w.apply("sqrt", w.reduce("sum", w.load("x", at(space[0])))))
    interpreter.check(w.loop(space), {"x": rand(700).abs(), "y": zeros(1)})


def test_reduction_of_a_value_that_does_not_vary(interpreter: Interpreter) -> None:
    for width in (12, 20000):
        space, w = axes(3, width, reduce=(1,)), Writer()
        w.store("y", at(space[0]), w.reduce("sum", w.load("x", at(space[0]))))
        w.store("z", linear(space), w.load("x", at(space[0])))
        buffers = {"x": rand(3), "y": zeros(3), "z": zeros(3 * width)}
        interpreter.check(w.loop(space), buffers, tolerance=1e-5, forms=1)


@pytest.mark.parametrize("columns", [False, True], ids=["rows", "columns"])
@pytest.mark.parametrize("length", [20, 20000])
def test_gathers_along_a_row(interpreter: Interpreter, length: int, columns: bool) -> None:
    """Checked positions in a reduction, past whose end the tile reaches."""
    length = min(length, 700) if columns else length
    space, w = axes(length, 4, reduce=(0,)) if columns else axes(4, length, reduce=(1,)), Writer()
    along, kept = (space[0], space[1]) if columns else (space[1], space[0])
    place = w.emit(Checked(w.load("k", at(along), DType.i64), 9))
    w.store("y", at(kept), w.reduce("sum", w.load("x", value_symbol(place) + at(kept) * 9)))
    buffers = {"k": torch.randint(0, 9, (length,)), "x": rand(36), "y": zeros(4)}
    interpreter.check(w.loop(space), buffers, tolerance=1e-5, forms=1)


# --- columns ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [DType.f32, DType.bf16], ids=lambda d: d.value)
@pytest.mark.parametrize(("rows", "expected"), [(20, "row"), (700, "long")])
def test_columns(interpreter: Interpreter, dtype: DType, rows: int, expected: str) -> None:
    loop = column_sums(rows, 72, dtype)
    assert form(loop) == expected
    interpreter.check(loop, {"x": rand(rows, 72, dtype=dtype), "y": zeros(72)}, tolerance=1e-5)


def test_columns_with_a_store_at_every_element(interpreter: Interpreter) -> None:
    """An activation's gradient and the sum of it for the bias."""
    space, w = axes(300, 40, reduce=(0,)), Writer()
    d = w.apply("mul", w.load("g", linear(space)), w.load("b", at(space[1])))
    w.store("d", linear(space), d)
    w.store("s", at(space[1]), w.reduce("sum", d))
    buffers = {"g": rand(12000), "b": rand(40), "d": zeros(12000), "s": zeros(40)}
    interpreter.check(w.loop(space), buffers, tolerance=1e-5)


# --- kinds of reductions ----------------------------------------------------------------------------------------

KINDS = [
    *((kind, dtype, dtype) for kind in ("sum", "max", "min") for dtype in (DType.f32, DType.f64, DType.i64, DType.i32)),
    *((kind, dtype, dtype) for kind in ("max", "min") for dtype in (DType.i8, DType.u8, DType.bool)),
    ("sum", DType.bf16, DType.f32),
    ("prod", DType.f32, DType.f32), ("prod", DType.i64, DType.i64),
    ("any", DType.bool, DType.bool), ("all", DType.bool, DType.bool),
]  # fmt: skip


@pytest.mark.parametrize("length", [20, 17000])
def test_kinds(interpreter: Interpreter, length: int) -> None:
    """All kinds in one kernel: whole rows, and rows read in chunks."""
    space, w = axes(2, length, reduce=(1,)), Writer()
    buffers: Buffers = {}
    for n, (kind, dtype, result) in enumerate(KINDS):
        buffers |= {f"x{n}": rand(2, length, dtype=dtype), f"y{n}": zeros(2, result)}
        if kind == "prod":
            buffers[f"x{n}"] = (1 + (rand(2 * length) > 3)).to(dtype.torch)
        w.store(f"y{n}", at(space[0]), w.reduce(kind, w.load(f"x{n}", linear(space), dtype), result), result)
    interpreter.check(w.loop(space), buffers, tolerance=1e-4 if length > 1000 else 1e-5, forms=1)


def test_extremes_propagate_nan(interpreter: Interpreter) -> None:
    x = torch.randn(3, 100)
    x[1, 7] = float("nan")
    x[2, :] = float("-inf")
    for kind in ("max", "min"):
        interpreter.check(reduced(kind, 3, 100, DType.f32, DType.f32), {"x": x.flatten(), "y": zeros(3)}, forms=1)


@pytest.mark.parametrize("columns", [False, True], ids=["rows", "columns"])
@pytest.mark.parametrize("length", [100, 20000])
@pytest.mark.parametrize("kind", ["argmax", "argmin"])
def test_first_place_of_an_extreme(interpreter: Interpreter, kind: str, length: int, columns: bool) -> None:
    """Ties, NaN and rows of infinities: torch takes the first."""
    length = min(length, 700) if columns else length
    x = torch.randint(-5, 5, (5, length)).float()
    x[1, 7] = x[1, 60] = float("nan")
    x[2] = float("-inf")
    x[3] = float("inf")
    loop = reduced(kind, *((length, 5) if columns else (5, length)), DType.f32, DType.i64, columns)
    held = x.t().contiguous() if columns else x
    interpreter.check(loop, {"x": held.flatten(), "y": zeros(5, DType.i64)}, forms=1)


@pytest.mark.parametrize("dtype", [DType.i64, DType.u8, DType.bf16], ids=lambda d: d.value)
def test_place_of_an_extreme_in_other_types(interpreter: Interpreter, dtype: DType) -> None:
    for kind in ("argmax", "argmin"):
        buffers = {"x": rand(3, 70, dtype=dtype), "y": zeros(3, DType.i64)}
        interpreter.check(reduced(kind, 3, 70, dtype, DType.i64), buffers, forms=1)


def test_place_along_two_axes(interpreter: Interpreter) -> None:
    space, w = axes(6, 3, 5, reduce=(0, 2)), Writer()
    place = at(space[0]) * 5 + at(space[2])
    w.store("y", at(space[1]), w.emit(Reduced("argmax", w.load("x", linear(space)), DType.i64, place)), DType.i64)
    buffers = {"x": torch.randint(0, 4, (90,)).float(), "y": zeros(3, DType.i64)}
    interpreter.check(w.loop(space), buffers, forms=1)


# --- scans ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["sum", "prod"])
@pytest.mark.parametrize("length", [37, 20000])
def test_scans(interpreter: Interpreter, kind: str, length: int) -> None:
    x = torch.randn(2, length) if kind == "sum" else 1 + torch.randn(2, length) / 1000
    interpreter.check(
        scanned(kind, 2, length), {"x": x.flatten(), "y": zeros(2 * length)}, tolerance=2e-4, forms=1
    )  # fmt: skip


def test_scan_of_symbolic_length(interpreter: Interpreter) -> None:
    buffers = {"x": rand(3, 2500, dtype=DType.i64), "y": zeros(7500, DType.i64)}
    interpreter.check(scanned("sum", 3, N, DType.i64), buffers, {"s0": 2500}, forms=1)


def test_a_long_scan_beside_a_reduction_is_refused() -> None:
    w = Writer()
    long = scanned("sum", 2, 20000)
    for i in long.body:
        w.emit(i)
    w.store("z", at(long.axes[0]), w.reduce("sum", 0))
    with pytest.raises(NotPrintable, match="scan"):
        print_loop(w.loop(long.axes))


# --- indices ----------------------------------------------------------------------------------------------------


def wide(kernel: TritonKernel) -> bool:
    return "tl.int64" in kernel.text


def test_indices_are_64_bit_only_where_an_offset_needs_it() -> None:
    assert not wide(print_loop(biased(1 << 15, 1 << 15)))
    assert wide(print_loop(biased(1 << 16, 1 << 15)))
    assert not print_loop(biased(1 << 16, 1 << 15)).reach


def test_symbolic_sizes_decide_the_index_type_at_launch(interpreter: Interpreter) -> None:
    kernel = print_loop(biased(N, 100))
    assert "INDEX" in kernel.text and [str(r) for r in kernel.reach]
    buffers = {"x": rand(5, 100), "b": rand(100), "y": zeros(500)}
    want = {n: t.clone() for n, t in buffers.items()}
    for kind in ("int32", "int64"):
        assert interpreter.run_loop(biased(N, 100), buffers, {"s0": 5}, index=kind) == 0
        want["y"] = torch.tanh(2 * (want["x"].view(5, 100) + want["b"])).flatten()
        torch.testing.assert_close(buffers["y"], want["y"])


def test_equal_kernels_have_equal_text() -> None:
    a, b = biased(N, 100), biased(sym("s7", 2), 100)
    assert print_loop(a).text == print_loop(b).text
    assert print_loop(a).signature.sizes == ["s0"] and print_loop(b).signature.sizes == ["s7"]


def test_rows_of_odd_length_are_moved_in_whole_accesses(interpreter: Interpreter, compiler: Compiler) -> None:
    """Rows apart from one another, as in a padded matrix; the mask is only on the last chunk."""
    length, apart = 16401, 16448
    rows, columns = make_axis("i0", 3), make_axis("i1", length)
    place = Expr({(rows.sym,): apart, (columns.sym,): 1})
    body = BodyBuilder()
    doubled = body.emit(Apply("add", (body.emit(Load("x", place, DType.f32)),) * 2, DType.f32))
    body.emit(Store("y", place, doubled, "set", DType.f32))
    loop = Loop((rows, columns), tuple(body.instrs))
    interpreter.check(loop, {"x": torch.randn(3 * apart), "y": torch.zeros(3 * apart)})
    unit = generate(Schedule({}, [LoopKernel(loop)], []))
    assert "ld.global.v4" in compiler.compile(unit, 0, 90)
