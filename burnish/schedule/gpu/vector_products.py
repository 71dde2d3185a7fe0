"""Products of one row with a matrix, on a GPU: bound by the time to read the matrix, so they are lowered to loops.

`as_loops` writes such a contraction as a reduction over k, which fuses with its neighbours like any loop. `inline_rows`
then lets each program compute by itself the vector it multiplies with, where that is one pass over the vector (a
normalisation): it reads a few thousand more elements from the cache beside the matrix rows from memory, and saves a
kernel.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from burnish.fuel import Fuel
from burnish.ir.body import Apply, BodyBuilder, Load, Loop, Reduced, make_axis, prune
from burnish.ir.dtypes import DType
from burnish.ir.expr import Dim, Expr
from burnish.schedule.epilogue import reading
from burnish.schedule.gpu.prologues import inline_matrices, read_narrow, side_by_side
from burnish.schedule.gpu.vector_loops import is_vector_product, matrices
from burnish.schedule.kernels import ContractKernel, Kernel, LoopKernel, Operand, Schedule, made_by
from burnish.schedule.splice import Readers, splice

_LONGEST = 1 << 14  # elements of the vector: a program holds its share of several rows in registers


def as_loops(schedule: Schedule, fuel: Fuel | None = None) -> Schedule:
    fuel = fuel or Fuel()
    found = [_vector_product(k) if isinstance(k, ContractKernel) else None for k in schedule.kernels]
    found = [k if k and fuel.spend(f"vector products: {made_by(k)}") else None for k in found]
    written = schedule.with_kernels([loop or k for k, loop in zip(schedule.kernels, found, strict=True)])
    return read_narrow(inline_matrices(written, [loop for loop in found if loop is not None], fuel), fuel)


def _vector_product(kernel: ContractKernel) -> LoopKernel | None:
    """The contraction as a loop, if one of its operands is one row, of each of a batch, and what it is multiplied with
    lies in memory row by row."""
    a, b = kernel.a, kernel.b
    *batch, m, k = a.shape
    n = b.shape[-1]
    matrix = b.strides[-2] if m == 1 else a.strides[-1]
    if (m == 1) == (n == 1) or matrix != 1 or a.dtype is DType.f64 or not all(isinstance(d, int) for d in batch):
        return None
    if not isinstance(k, int) or not isinstance(m, int) or not isinstance(n, int) or k > _LONGEST or k == 1:
        return None
    along = make_axis(f"i{len(a.shape)}", k, reduce=True)
    place = {x.name: x.expr for x in (*kernel.loop.axes, along)}

    def offset(o: Operand, over: Sequence[str]) -> Dim:
        steps = zip(o.strides, over, strict=True)
        return o.offset + sum((stride * place.get(name, 0) for stride, name in steps), start=0)

    *outer, row, column = (f"i{d}" for d in range(len(a.shape)))

    def total(body: BodyBuilder, load: Load) -> int:
        assert a.dtype is not None and b.dtype is not None
        left = body.emit(Load(a.buffer, offset(a, [*outer, row, along.name]), a.dtype))
        right = body.emit(Load(b.buffer, offset(b, [*outer, along.name, column]), b.dtype))
        return body.emit(Reduced("sum", body.emit(Apply("mul", (left, right), kernel.dtype)), kernel.dtype))

    loop = reading(kernel, total)
    return LoopKernel(replace(loop, axes=(*loop.axes, along)))


# --- vectors made where they are used ---------------------------------------------------------------------------


def inline_rows(schedule: Schedule, fuel: Fuel | None = None) -> Schedule:
    """Fuse every kernel whose vector only vector products read into each of them."""
    fuel = fuel or Fuel()
    kernels = list(schedule.kernels)
    readers_of = Readers(schedule, kernels)
    for producer in schedule.kernels:
        if not isinstance(producer, LoopKernel) or not _makes_one_row(producer.loop):
            continue
        (made,) = producer.writes
        readers = readers_of(made)
        if not readers_of.are_all(made) or not readers:
            continue
        joined = [_with_row(kernels[n], producer.loop) for n in readers]
        at = kernels.index(producer)
        if any(loop is None for loop in joined) or not readers_of.can_compute(at, max(readers)):
            continue
        if not fuel.spend(f"rows: {made}"):
            continue
        for n, loop in zip(readers, joined, strict=True):
            assert loop is not None
            kernels[n] = LoopKernel(loop)
        del kernels[at]
    return schedule.with_kernels(kernels)


def _makes_one_row(loop: Loop) -> bool:
    """Whether a loop is one row with one result, an element for each of its points."""
    plain = not loop.sequential and not loop.parallel and len(loop.reduction) == 1
    if not plain or len(loop.stores) != 1 or loop.scans:
        return False
    (store,) = loop.stores
    return store.mode == "set" and store.index == Expr({(loop.reduction[0].sym,): 1})


def _with_row(kernel: Kernel, row: Loop) -> Loop | None:
    """The vector product with the loop that makes its vector in front."""
    if not isinstance(kernel, LoopKernel) or not is_vector_product(kernel.loop) or len(kernel.loop.reduction) != 1:
        return None
    loop, (store,) = kernel.loop, row.stores
    along, length = loop.reduction[0], row.reduction[0].size
    if not isinstance(along.size, int) or not isinstance(length, int) or length % along.size != 0:
        return None
    count = length // along.size  # of a row that the product takes side by side
    here = [along.expr + k * along.size for k in range(count)]
    loads = [i for i in loop.loads if i.buffer == store.buffer]
    if any(i.index not in here or i.guard is not None for i in loads):
        return None
    body = BodyBuilder()
    sides = side_by_side(body, row, along, count)
    if sides is None:
        return None
    splice(body, loop.body, {}, (store.buffer,), lambda load: sides[here.index(load.index)][store.value])
    return replace(loop, body=prune(body.instrs))


__all__ = ["as_loops", "inline_rows", "is_vector_product", "matrices"]
