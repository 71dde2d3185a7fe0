"""The value that one body stores, where another one loads it."""

from __future__ import annotations

import pytest
import torch

from burnish.ir.body import Apply, BodyBuilder, Load, Loop, Store, const, make_axis, prune
from burnish.ir.dtypes import DType
from burnish.ir.evaluate import evaluate_loop
from burnish.ir.expr import Dim, Expr
from burnish.schedule.kernels import Buffer, LoopKernel, Operand, ResultBuffer, Schedule
from burnish.schedule.splice import Producer, Readers, Written, sets_each_once, splice

F32 = DType.f32
ROW, COLUMN = make_axis("i0", 4), make_axis("i1", 6)
R, C = Expr({(ROW.sym,): 1}), Expr({(COLUMN.sym,): 1})


def doubled(source: str, into: str, index: Dim = R * 6 + C, guarded: bool = False, mode: str = "set") -> Loop:
    """`into` is twice `source`, looked at in `index` or, guarded, nowhere."""
    body = BodyBuilder()
    guard = body.emit(const(False, DType.bool)) if guarded else None
    value = body.emit(Load(source, index, F32, guard, 0))
    two = body.emit(const(2.0, F32))
    body.emit(Store(into, R * 6 + C, body.emit(Apply("mul", (value, two), F32)), mode, F32))
    return Loop((ROW, COLUMN), tuple(body.instrs))


def run(loop: Loop, **memory: torch.Tensor) -> None:
    evaluate_loop(loop, memory, {})


def schedule(*loops: Loop, result: str) -> Schedule:
    roles = {"x": "input"}
    names = {name for loop in loops for name in (*(i.buffer for i in loop.loads), *(s.buffer for s in loop.stores))}
    buffers = {n: Buffer(n, F32, (4, 6), (6, 1), roles.get(n, "temp")) for n in sorted(names)}
    kept = ResultBuffer(Operand(result, 0, (4, 6), (6, 1), F32))
    return Schedule(buffers, [LoopKernel(loop) for loop in loops], [kept])


def test_a_value_at_hand_takes_the_place_of_its_load() -> None:
    first, second = doubled("x", "y"), doubled("y", "z")
    body = BodyBuilder()
    assert splice(body, first.body, {}, (), lambda load: None) is not None
    written = Written(body.instrs)
    assert splice(body, second.body, {}, written, written.value) is not None
    joined = Loop(first.axes, tuple(body.instrs))
    assert [i.buffer for i in joined.loads] == ["x"]
    x, y, z = torch.randn(24), torch.zeros(24), torch.zeros(24)
    run(joined, x=x, y=y, z=z)
    assert torch.equal(y, 2 * x) and torch.equal(z, 4 * x)


@pytest.mark.parametrize(
    "store", [doubled("x", "y", mode="add"), doubled("x", "y", index=C * 4 + R)], ids=["added to", "elsewhere"]
)
def test_what_is_not_there_for_certain_is_refused(store: Loop) -> None:
    body = BodyBuilder()
    splice(body, store.body, {}, (), lambda load: None)
    written = Written(body.instrs)
    reader = doubled("y", "z", index=R * 6 + C if store.stores[0].mode == "add" else C * 4 + R)
    assert splice(body, reader.body, {}, written, written.value) is None


def test_a_producer_is_computed_at_the_place_that_is_read() -> None:
    producer, reader = doubled("x", "y"), doubled("y", "z", index=(3 - R) * 6 + (5 - C))
    found = Producer(0, producer, producer.stores[0])
    body = BodyBuilder()
    assert splice(body, reader.body, {}, ("y",), lambda load: found.value(body, load.index)) is not None
    joined = Loop(reader.axes, prune(body.instrs))
    x, z = torch.randn(24), torch.zeros(24)
    run(joined, x=x, z=z)
    assert torch.equal(z, 4 * x.flip(0))


def test_only_loops_that_set_each_element_once_are_producers() -> None:
    assert sets_each_once(doubled("x", "y"))
    assert not sets_each_once(doubled("x", "y", mode="add"))


def test_a_temporary_that_one_kernel_reads_has_its_producers() -> None:
    made = schedule(doubled("x", "y"), doubled("y", "z"), result="z")
    readers = Readers(made, made.kernels)
    assert readers("y") == [1] and readers.are_all("y")
    assert [p.at for p in readers.producers("y", 1)] == [0]


@pytest.mark.parametrize(
    "made",
    [
        schedule(doubled("x", "y"), doubled("y", "z"), result="y"),
        schedule(doubled("x", "y"), doubled("y", "z"), doubled("y", "w"), result="z"),
        schedule(doubled("x", "y"), doubled("w", "x"), doubled("y", "z"), result="z"),
    ],
    ids=["a result", "another reader", "what it reads has changed"],
)
def test_a_buffer_that_must_be_in_memory_has_none(made: Schedule) -> None:
    reader = next(n for n, kernel in enumerate(made.kernels) if "z" in kernel.writes)
    assert Readers(made, made.kernels).producers("y", reader) == []


def test_a_kernel_that_is_gone_reads_nothing() -> None:
    made = schedule(doubled("x", "y"), doubled("y", "z"), doubled("y", "w"), result="z")
    kernels = [made.kernels[0], made.kernels[1], None]
    assert Readers(made, kernels)("y") == [1]
