"""The epilogue of a product that another backend computes: a loop that reads results instead of the accumulator."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from burnish.ir.body import Apply, BodyBuilder, Instr, Load, Loop, Store, instr_args, make_axis, prune, rebuild
from burnish.ir.dtypes import DType
from burnish.ir.expr import Dim, product
from burnish.schedule.kernels import Buffer, Product


def accumulator_loads(kernel: Product) -> list[int]:
    return [n for n, i in enumerate(kernel.loop.body) if isinstance(i, Load) and i.buffer == kernel.acc]


def uses(loop: Loop, value: int) -> list[int]:
    return [n for n, i in enumerate(loop.body) if value in instr_args(i)]


def is_cast(i: Instr, dtype: DType) -> bool:
    return isinstance(i, Apply) and i.fn == "cast" and i.dtype is dtype


def looks_up(loop: Loop) -> bool:
    """Whether a body has indirect loads, which are better placed in a separate loop."""
    return any(not isinstance(i, Load | Store | Apply) and instr_args(i) for i in loop.body)


def with_values(loop: Loop, values: Mapping[int, int], body: BodyBuilder) -> Loop:
    """The loop with the values of these numbers replaced by `values`, which `body` already has."""
    rebuild(loop.body, {}, body, values)
    return replace(loop, body=prune(body.instrs))


def reading(kernel: Product, read: Callable[[BodyBuilder, Load], int]) -> Loop:
    """The epilogue as a loop, with `read(body, load)` in place of each load of the accumulator."""
    body = BodyBuilder()
    values: dict[int, int] = {}
    for n in accumulator_loads(kernel):
        load = kernel.loop.body[n]
        assert isinstance(load, Load)
        values[n] = read(body, load)
    return with_values(kernel.loop, values, body)


# --- sums in splits ---------------------------------------------------------------------------------------------


def parts_of(kernel: Product, splits: int) -> tuple[Buffer, Loop]:
    """Memory for the parts of a product's sums, each in the accumulator's order, and the epilogue that fills it."""
    shape = (splits, *kernel.product_shape)
    strides = (product(kernel.product_shape), *kernel.acc_strides)
    parts = Buffer(f"{kernel.acc}_parts", kernel.dtype, shape, strides, "temp")
    axes = tuple(make_axis(f"i{d}", size) for d, size in enumerate(shape) if size != 1)
    place: Dim = 0
    for axis in axes:
        place = place + parts.strides[int(axis.name[1:])] * axis.expr
    body = BodyBuilder()
    part = body.emit(Load(f"{kernel.acc}_part", place, kernel.dtype))
    body.emit(Store(parts.name, place, part, "set", kernel.dtype))
    return parts, Loop(axes, tuple(body.instrs))


def sum_of_parts(body: BodyBuilder, load: Load, parts: Buffer) -> int:
    splits, stride = parts.shape[0], parts.strides[0]
    assert isinstance(splits, int)
    total = body.emit(Load(parts.name, load.index, load.dtype))
    for p in range(1, splits):
        part = body.emit(Load(parts.name, load.index + stride * p, load.dtype))
        total = body.emit(Apply("add", (total, part), load.dtype))
    return total
