"""Loop bodies: built without repeats, verified, moved between iteration spaces, pruned; and what they mean."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from burnish.ir.body import (
    Apply,
    Axis,
    BodyBuilder,
    Checked,
    Instr,
    Load,
    Loop,
    Position,
    Reduced,
    Scanned,
    Store,
    const,
    make_axis,
    prune,
    rebuild,
    value_symbol,
)
from burnish.ir.dtypes import DType
from burnish.ir.evaluate import evaluate_loop
from burnish.ir.expr import Dim, Expr, sym

F32, I64, BOOL = DType.f32, DType.i64, DType.bool


def at(axis: Axis) -> Expr:
    return Expr({(axis.sym,): 1})


ROW, COL = make_axis("i0", 4), make_axis("i1", 6, reduce=True)
SOFTMAX = Loop(
    (ROW, COL),
    (
        Load("x", at(ROW) * 6 + at(COL), F32),
        Reduced("max", 0, F32),
        Apply("sub", (0, 1), F32),
        Apply("exp", (2,), F32),
        Reduced("sum", 3, F32),
        Apply("div", (3, 4), F32),
        Store("y", at(ROW) * 6 + at(COL), 5, dtype=F32),
        Store("top", at(ROW), 1, dtype=F32),
    ),
)


def run(loop: Loop, **buffers: torch.Tensor) -> dict[str, torch.Tensor]:
    loop.verify()
    evaluate_loop(loop, buffers, {})
    return buffers


def test_softmax() -> None:
    x = torch.randn(24)
    out = run(SOFTMAX, x=x, y=torch.empty(24), top=torch.empty(4))
    torch.testing.assert_close(out["y"].view(4, 6), x.view(4, 6).softmax(1))
    assert torch.equal(out["top"], x.view(4, 6).amax(1))


def test_levels_tell_rows_from_elements() -> None:
    assert SOFTMAX.element_level() == [True, False, True, True, False, True, True, False]
    assert [a.name for a in SOFTMAX.parallel] == ["i0"]
    assert [a.name for a in SOFTMAX.reduction] == ["i1"]


def test_loops_are_data() -> None:
    same = Loop(SOFTMAX.axes, tuple(replace(i) for i in SOFTMAX.body))
    assert same == SOFTMAX
    assert hash(same) == hash(SOFTMAX)
    assert {same: 1}[SOFTMAX] == 1
    other = replace(SOFTMAX, body=(*SOFTMAX.body[:-1], Store("top", at(ROW), 4, dtype=F32)))
    assert other != SOFTMAX


def test_printed_form() -> None:
    assert str(SOFTMAX).splitlines() == [
        "loop [i0<4, i1<6 reduce]",
        "  %0 = load x[(6*i0 + i1)]: f32",
        "  %1 = reduce_max(%0): f32",
        "  %2 = sub(%0, %1): f32",
        "  %3 = exp(%2): f32",
        "  %4 = reduce_sum(%3): f32",
        "  %5 = div(%3, %4): f32",
        "  y[(6*i0 + i1)] = %5",
        "  top[i0] = %1",
    ]


# --- building ---------------------------------------------------------------------------------------------------


def test_builder_reuses_values_and_never_stores() -> None:
    body = BodyBuilder()
    x = body.emit(Load("x", at(ROW), F32))
    assert body.emit(Load("x", at(ROW), F32)) == x
    assert body.emit(Load("x", at(ROW) + 1, F32)) != x
    assert body.emit(const(0.0, F32)) != body.emit(const(-0.0, F32))
    assert body.emit(const(1, I64)) != body.emit(const(True, BOOL))
    assert body.emit(Store("y", 0, x)) != body.emit(Store("y", 0, x))


def test_prune_keeps_the_meaning() -> None:
    body = list(SOFTMAX.body)
    body[6] = const(False, BOOL)  # the element-wise store is not wanted: only the row's largest remains
    kept = prune(body)
    assert [type(i) for i in kept] == [Load, Reduced, Store]
    x = torch.randn(24)
    out = run(Loop(SOFTMAX.axes, kept), x=x, top=torch.empty(4))
    assert torch.equal(out["top"], x.view(4, 6).amax(1))


def test_a_split_axis_keeps_the_meaning() -> None:
    """The row's axis of 6 becomes 2 x 3, as when fusion lays it on a loop that has those."""
    outer, inner = make_axis("j1", 2, True), make_axis("j2", 3, True)
    env: dict[str, Dim] = {"i1": at(outer) * 3 + at(inner)}
    body = BodyBuilder()
    rebuild(SOFTMAX.body, env, body)
    x = torch.randn(24)
    buffers = [{"x": x, "y": torch.empty(24), "top": torch.empty(4)} for _ in range(2)]
    run(SOFTMAX, **buffers[0])
    run(Loop((ROW, outer, inner), tuple(body.instrs)), **buffers[1])
    for name in ("y", "top"):
        torch.testing.assert_close(buffers[0][name], buffers[1][name])


# --- verification -----------------------------------------------------------------------------------------------


def test_verify_refuses() -> None:
    load, store = Load("x", at(ROW), F32), Store("y", at(ROW), 0, dtype=F32)
    good = (load, store)
    Loop((ROW,), good).verify()
    bad: dict[str, tuple[Instr, ...]] = {
        "stores nothing": (load,),
        "uses %1": (Apply("neg", (1,), F32), load, store),  # a later value
        "uses %0": (Store("y", 0, 0), store),  # itself
        "mentions j": (Load("x", sym("j"), F32), store),
        "reduces over no axis": (load, Reduced("sum", 0, F32), store),
    }
    for why, body in bad.items():
        with pytest.raises(AssertionError, match=why):
            Loop((ROW,), body).verify()


# --- meaning of each instruction --------------------------------------------------------------------------------


def test_guarded_load_does_not_touch_memory_outside() -> None:
    wide = make_axis("i0", 6)
    body: tuple[Instr, ...] = (
        Position(at(wide) - 1),
        const(0, I64),
        Apply("ge", (0, 1), BOOL),
        const(4, I64),
        Apply("lt", (0, 3), BOOL),
        Apply("and", (2, 4), BOOL),
        Load("x", at(wide) - 1, F32, guard=5, fill=9.0),
        Store("y", at(wide), 6, dtype=F32),
    )
    out = run(Loop((wide,), body), x=torch.arange(4.0), y=torch.empty(6))
    assert out["y"].tolist() == [9, 0, 1, 2, 3, 9]


def test_gather_and_its_check() -> None:
    body: tuple[Instr, ...] = (
        Load("at", at(ROW), I64),
        Checked(0, 3),
        Load("x", value_symbol(1) * 2, F32),
        Store("y", at(ROW), 2, dtype=F32),
    )
    loop = Loop((ROW,), body)
    out = run(loop, x=torch.arange(6.0), at=torch.tensor([2, 0, 1, 2]), y=torch.empty(4))
    assert out["y"].tolist() == [4, 0, 2, 4]
    with pytest.raises(IndexError, match="size 3"):
        run(loop, x=torch.arange(6.0), at=torch.tensor([2, 3, 1, 2]), y=torch.empty(4))


@pytest.mark.parametrize(
    ("mode", "want"), [("set", [4, 9, 3, 9]), ("add", [7, 9, 12, 9]), ("prod", [0, 9, 27, 9]), ("max", [4, 9, 9, 9])]
)
def test_scatter(mode: str, want: list[int]) -> None:
    body: tuple[Instr, ...] = (
        Load("at", at(ROW), I64),
        Load("x", at(ROW), I64),
        Store("y", value_symbol(0), 1, mode, I64),
    )
    out = run(
        Loop((ROW,), body, sequential=True),
        at=torch.tensor([0, 0, 2, 0]),
        x=torch.tensor([1, 2, 3, 4]),
        y=torch.tensor([0, 9, 9, 9]),
    )
    assert out["y"].tolist() == want


def test_argmax_returns_the_position_asked_for() -> None:
    body: tuple[Instr, ...] = (
        Load("x", at(ROW) * 6 + at(COL), F32),
        Reduced("argmax", 0, I64, at(COL) * 10 + 1),
        Store("y", at(ROW), 1, dtype=I64),
    )
    x = torch.randn(4, 6)
    out = run(Loop((ROW, COL), body), x=x.flatten(), y=torch.empty(4, dtype=torch.int64))
    assert torch.equal(out["y"], x.argmax(1) * 10 + 1)


def test_scan() -> None:
    body: tuple[Instr, ...] = (
        Load("x", at(ROW) * 6 + at(COL), F32),
        Scanned("sum", 0, F32),
        Store("y", at(ROW) * 6 + at(COL), 1, dtype=F32),
    )
    x = torch.randn(4, 6)
    out = run(Loop((ROW, COL), body), x=x.flatten(), y=torch.empty(24))
    torch.testing.assert_close(out["y"].view(4, 6), x.cumsum(1))


@pytest.mark.parametrize("dtype", [DType.bf16, DType.f16])
def test_half_types_round_only_where_stored_or_cast(dtype: DType) -> None:
    """(x + y) - x in float keeps y; rounded after the sum it would not."""

    def loop(rounded: bool) -> Loop:
        body: list[Instr] = [Load("x", at(ROW), dtype), Load("y", at(ROW), dtype), Apply("add", (0, 1), F32)]
        body.append(Apply("cast", (2,), dtype) if rounded else Apply("cast", (2,), F32))
        body += [Apply("sub", (3, 0), F32), Store("z", at(ROW), 4, dtype=dtype)]
        return Loop((ROW,), tuple(body))

    x, y = torch.full((4,), 4096.0, dtype=dtype.torch), torch.full((4,), 0.25, dtype=dtype.torch)
    fused = run(loop(False), x=x, y=y, z=torch.empty(4, dtype=dtype.torch))
    assert fused["z"].tolist() == [0.25] * 4
    rounded = run(loop(True), x=x, y=y, z=torch.empty(4, dtype=dtype.torch))
    assert rounded["z"].tolist() == [0.0] * 4


ARITHMETIC: list[tuple[str, Callable[..., torch.Tensor]]] = [
    ("add", torch.add), ("mod", torch.remainder), ("floordiv", torch.floor_divide), ("maximum", torch.maximum),
]  # fmt: skip


@pytest.mark.parametrize(("fn", "reference"), ARITHMETIC, ids=[name for name, _ in ARITHMETIC])
def test_apply(fn: str, reference: Callable[..., torch.Tensor]) -> None:
    body: tuple[Instr, ...] = (
        Load("x", at(ROW), I64),
        Load("y", at(ROW), I64),
        Apply(fn, (0, 1), I64),
        Store("z", at(ROW), 2, dtype=I64),
    )
    x, y = torch.tensor([7, -7, 7, -7]), torch.tensor([3, 3, -3, -3])
    out = run(Loop((ROW,), body), x=x, y=y, z=torch.empty(4, dtype=torch.int64))
    assert torch.equal(out["z"], reference(x, y))
