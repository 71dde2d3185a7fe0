"""Attention of few queries over many keys, on a GPU: the keys are cut into pieces, and all multiprocessors read some.

A step of decoding has one query for each head and all of the cache to read. A program takes one piece of the keys of
one key head, for all the query heads that share it; the last one of a head puts the pieces together. Which keys a query
sees is up to the mask: a block of them that none sees is not read.

All this is little for the memory to do, and much to wait for. So the parameters that are read next are asked for in the
meantime, as much of them as the cache can hold beside everything else.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from burnish.ir.body import BodyBuilder, Load, Loop, Store, const, make_axis
from burnish.ir.dtypes import DType
from burnish.ir.expr import Dim, Expr, mentions, product
from burnish.lower.builder import contiguous_strides
from burnish.lower.contractions import FEWEST_QUERIES
from burnish.schedule.gpu import MULTIPROCESSORS
from burnish.schedule.kernels import (
    KEY_BLOCK,
    AttendKernel,
    AttendPieces,
    Buffer,
    ExternKernel,
    Kernel,
    LoopGroup,
    LoopKernel,
    Operand,
    Schedule,
    piece_length,
)
from burnish.schedule.vectors import is_vector_product

_MOST_PIECES = 32
_AHEAD = 20 << 20  # bytes of parameters: two fifths of the cache of an H100 or H200


def split_attention(schedule: Schedule) -> Schedule:
    kernels: list[Kernel] = []
    counts: dict[Dim, list[str]] = {}  # by how many
    for kernel in schedule.kernels:
        if isinstance(kernel, AttendKernel) and _has_few_queries(kernel):
            made = _Split(schedule, kernel).pieces_of_it()
            counts.setdefault(product(made.counts.shape), []).append(made.counts.buffer)
            kernels.append(made)
        else:
            kernels.append(kernel)
    schedule.kernels = [*(_zeros(names, size) for size, names in counts.items()), *kernels]
    schedule.drop_unused_buffers()
    return schedule


def _has_few_queries(kernel: AttendKernel) -> bool:
    (batch, _, queries, _), (_, shared, keys, _) = (o.shape for o in kernel.inputs[:2])
    known = all(isinstance(d, int) for d in (batch, queries, shared, keys))
    return known and isinstance(queries, int) and queries < FEWEST_QUERIES


def _zeros(names: list[str], size: Dim) -> LoopKernel:
    """One loop for all of them, before anything else."""
    axis, body = make_axis("i0", size), BodyBuilder()
    zero = body.emit(const(0, DType.i32))
    for name in names:
        body.emit(Store(name, Expr({(axis.sym,): 1}) if size != 1 else 0, zero, "set", DType.i32))
    return LoopKernel(Loop((axis,) if size != 1 else (), tuple(body.instrs)))


@dataclass
class _Split:
    schedule: Schedule
    kernel: AttendKernel

    def pieces_of_it(self) -> AttendPieces:
        q, k, *_ = self.kernel.inputs
        pieces = self._pieces()
        sums = self._made("sums", (pieces, *q.shape))
        most, totals = (self._made(name, (pieces, *q.shape[:-1])) for name in ("most", "totals"))
        counts = self._made("counts", k.shape[:2], DType.i32)
        return AttendPieces(self.kernel.op, self.kernel.inputs, self.kernel.out, sums, most, totals, counts)

    def _pieces(self) -> int:
        """Enough of them to keep the machine busy, and none so short that it is not worth its programs."""
        batch, heads, keys, _ = self.kernel.inputs[1].shape
        programs = product((batch, heads))
        assert isinstance(keys, int) and isinstance(programs, int)
        wanted = max(1, min(-(-2 * MULTIPROCESSORS // programs), _MOST_PIECES, -(-keys // KEY_BLOCK)))
        return -(-keys // piece_length(keys, wanted))  # none is empty

    def _made(self, name: str, shape: tuple[Dim, ...], dtype: DType = DType.f32) -> Operand:
        buffer = Buffer(f"{self.kernel.out.buffer}_{name}", dtype, shape, contiguous_strides(shape), "temp")
        self.schedule.buffers[buffer.name] = buffer
        return Operand(buffer.name, 0, shape, buffer.strides, dtype)


# --- what comes next --------------------------------------------------------------------------------------------


def fetch_ahead(schedule: Schedule) -> Schedule:
    """Attention asks for the parameters of the products after it."""
    written = frozenset().union(*(k.writes for k in schedule.kernels))
    steady = {n for n, b in schedule.buffers.items() if b.role == "input"} - written
    schedule.kernels = [
        replace(k, ahead=tuple(_next_parameters(schedule, n, steady))) if isinstance(k, AttendPieces) else k
        for n, k in enumerate(schedule.kernels)
    ]
    return schedule


def _next_parameters(schedule: Schedule, at: int, steady: set[str]) -> Iterator[Operand]:
    """From each matrix of the next products its first rows, as far as they go into the cache."""
    left = _AHEAD
    for kernel in schedule.kernels[at + 1 :]:
        if left <= 0 or isinstance(kernel, AttendPieces | ExternKernel):
            return
        parts = kernel.parts if isinstance(kernel, LoopGroup) else (kernel,)
        loads = [i for p in parts if isinstance(p, LoopKernel) for i in _matrices(p.loop) if i.buffer in steady]
        buffers = [schedule.buffers[name] for name in dict.fromkeys(i.buffer for i in loads)]
        sizes = [b.elements * b.dtype.itemsize for b in buffers if isinstance(b.elements, int) and b.dtype]
        total = sum(n for n in sizes if isinstance(n, int))
        for buffer in buffers:
            if isinstance(buffer.elements, int) and buffer.dtype is not None and total:
                share = buffer.elements * min(left, total) // total
                yield Operand(buffer.name, 0, (share,), (1,), buffer.dtype)
        left -= total


def _matrices(loop: Loop) -> list[Load]:
    if not is_vector_product(loop):
        return []
    kept, reduced = ({a.name for a in axes} for axes in (loop.parallel, loop.reduction))
    return [i for i in loop.loads if mentions(i.index, kept) and mentions(i.index, reduced)]
