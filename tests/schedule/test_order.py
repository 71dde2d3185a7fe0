"""The order of reads and writes of one memory: between kernels, and between the points of one loop."""

from __future__ import annotations

import pytest
import torch

from burnish.errors import CompileError
from burnish.ir.body import Apply, Axis, BodyBuilder, Instr, Load, Loop, Reduced, Store, make_axis
from burnish.ir.dtypes import DType
from burnish.ir.evaluate import evaluate_loop
from burnish.ir.expr import Dim, Expr
from burnish.schedule.fuse import join
from burnish.schedule.kernels import LoopKernel, Schedule
from burnish.schedule.order import dependences, order_of, require_kept, side_by_side

F32 = DType.f32
ROWS, COLUMNS = make_axis("i0", 3), make_axis("i1", 4)


def at(axis: Axis) -> Expr:
    return Expr({(axis.sym,): 1})


PLACE: Dim = 4 * at(ROWS) + at(COLUMNS)


def copying(source: str, target: str, read: Dim = PLACE, write: Dim = PLACE) -> Loop:
    """target[write] = 2 * source[read]."""
    return Loop((ROWS, COLUMNS), doubled(source, target, read, write))


def doubled(source: str, target: str, read: Dim, write: Dim) -> tuple[Instr, ...]:
    body = BodyBuilder()
    value = body.emit(Load(source, read, F32))
    body.emit(Store(target, write, body.emit(Apply("add", (value, value), F32))))
    return tuple(body.instrs)


def summing(source: str, target: str, again: str) -> Loop:
    """target[i] = sum of source's row i; again[i, j] = source[i, j] + that sum."""
    along = make_axis("i1", 4, reduce=True)
    body = BodyBuilder()
    value = body.emit(Load(source, 4 * at(ROWS) + at(along), F32))
    total = body.emit(Reduced("sum", value, F32))
    body.emit(Store(target, at(ROWS), total))
    body.emit(Store(again, 4 * at(ROWS) + at(along), body.emit(Apply("add", (value, total), F32))))
    return Loop((ROWS, along), tuple(body.instrs))


# --- between kernels --------------------------------------------------------------------------------------------


def test_one_launch_has_nothing_that_waits_for_another_of_it() -> None:
    """c reads what b writes, and goes beside neither it nor what b went beside; d may go to c or to a, but once."""
    a, b, c, d = (LoopKernel(copying(*pair)) for pair in ("xa", "xb", "bc", "xd"))
    assert side_by_side([a, b, c, d], "kkkk") == [[a, b, d], [c]]
    assert side_by_side([a, b, c, d], "kkkk", most=2) == [[a, b], [c, d]]
    assert side_by_side([a, b, c, d], [None, "k", "l", "k"]) == [[a], [b, d], [c]]
    overwriting = LoopKernel(copying("x", "b"))
    assert side_by_side([a, c, overwriting], "kkk") == [[a, c], [overwriting]]  # c would read the new b


def test_what_must_wait() -> None:
    kernels = [LoopKernel(copying(*pair)) for pair in ("xa", "xb", "ab", "cx", "xd", "ea")]
    assert dependences(kernels) == [
        set(),
        set(),  # both read x: any order
        {0, 1},  # reads a, which 0 writes; writes b, which 1 writes
        {0, 1},  # writes x, which both read
        {3},
        {0, 2},
    ]


@pytest.mark.parametrize("order", [[[0], [1]], [[0, 1]]])
def test_an_order_that_is_kept(order: list[list[int]]) -> None:
    require_kept([set(), {0}], order)


@pytest.mark.parametrize("order", [[[1], [0]], [[1, 0]], [[1, 2], [0]]])
def test_an_order_that_is_broken(order: list[list[int]]) -> None:
    with pytest.raises(CompileError, match="kernel 1 must follow kernel 0"):
        require_kept([set(), {0}, set()], order if any(2 in o for o in order) else [*order, [2]])


# --- within a loop ----------------------------------------------------------------------------------------------


def test_an_element_read_by_the_point_that_overwrites_it() -> None:
    loop = copying("x", "x")
    assert loop.hazard() is None
    loop.verify()


@pytest.mark.parametrize(
    ("loop", "why"),
    [
        (copying("x", "x", read=PLACE + 1), "other points"),
        (copying("x", "x", read=at(COLUMNS), write=at(COLUMNS)), "several points"),
        (Loop((ROWS, COLUMNS), doubled("x", "x", PLACE, PLACE), sequential=True), "other points"),
        (Loop((ROWS, COLUMNS), (*doubled("x", "y", PLACE, PLACE), Store("y", PLACE, 0))), "written twice"),
        (Loop((ROWS, COLUMNS), (*doubled("x", "y", PLACE, PLACE), Load("y", PLACE, F32))), "after it was written"),
        (summing("x", "s", "x"), "in one pass over a row"),
    ],
    ids=["shifted", "broadcast", "sequential", "twice", "late", "rows"],
)
def test_hazards(loop: Loop, why: str) -> None:
    assert why in (loop.hazard() or "")
    with pytest.raises(AssertionError, match=why):
        loop.verify()


def test_joining_never_makes_a_hazard() -> None:
    """An update in place whose result a softmax reads: its second pass would double what is doubled already."""
    update = Loop((ROWS, COLUMNS), (*doubled("x", "x", PLACE, PLACE), Store("t", PLACE, 1)))
    assert join(update, summing("t", "s", "out")) is None
    assert join(copying("x", "t"), copying("y", "x", write=4 * at(ROWS) + 3 - at(COLUMNS))) is None
    assert join(copying("x", "t"), copying("y", "t")) is None


def test_a_join_over_a_later_overwrite_keeps_the_old_value() -> None:
    first, second = copying("x", "t"), copying("y", "x")
    joined = join(first, second)
    assert joined is not None
    apart, together = ({n: torch.randn(12, generator=torch.Generator().manual_seed(k)) for k, n in enumerate("xyt")}
                       for _ in range(2))  # fmt: skip
    for loop in (first, second):
        evaluate_loop(loop, apart, {})
    evaluate_loop(joined, together, {})
    assert all(torch.equal(apart[n], together[n]) for n in "xyt")


# --- what a pass must keep --------------------------------------------------------------------------------------


def order(*loops: Loop):
    return order_of(Schedule({}, [LoopKernel(loop) for loop in loops], []))


def test_a_read_that_moves_past_a_write_is_noticed() -> None:
    """b is made of x before x is overwritten, and c of b."""
    before = order(copying("x", "b"), copying("y", "x"), copying("b", "c"))
    before.require(order(copying("x", "b"), copying("b", "c"), copying("y", "x")), "a pass")
    with pytest.raises(CompileError, match="a pass: x would be read after it is written"):
        before.require(order(copying("y", "x"), copying("x", "b"), copying("b", "c")), "a pass")
    with pytest.raises(CompileError, match="a pass: b would be read before it is written"):
        before.require(order(copying("b", "c"), copying("x", "b"), copying("y", "x")), "a pass")


def test_what_is_computed_again_elsewhere_reads_what_it_read() -> None:
    """c takes over what made b: it may not where x is another by then."""
    before = order(copying("x", "b"), copying("y", "x"), copying("b", "c"))
    with pytest.raises(CompileError, match="x would be read after"):
        before.require(order(copying("y", "x"), copying("x", "c")), "a pass")
    before.require(order(copying("x", "c"), copying("y", "x")), "a pass")


def test_who_writes_where_it_reads_keeps_its_place() -> None:
    before = order(copying("x", "x"), copying("x", "b"))
    before.require(order(copying("x", "x"), copying("x", "b")), "a pass")
    with pytest.raises(CompileError, match="x would be read before it is written"):
        before.require(order(copying("x", "b"), copying("x", "x")), "a pass")
