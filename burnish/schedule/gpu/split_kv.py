"""Split-KV attention on a GPU: for few queries over many keys, the keys are cut into splits for all multiprocessors.

A decoding step has one query for each head and reads the whole cache. A program takes one split of the keys of one key
head, for all query heads that share it; a loop then combines the splits. The mask decides which keys a query sees; a
block of keys that no query sees is not read.

Alternative: the last program of a head to finish could combine the splits. On an H200 that was slower (0.86 ms for a
step of a model of 16 layers against 0.82): waiting for a counter in memory takes longer than waiting for a kernel that
is already launched.
"""

from __future__ import annotations

from dataclasses import dataclass

from burnish.ir.body import Apply, BodyBuilder, Load, Loop, Reduced, Store, const, make_axis
from burnish.ir.dtypes import DType
from burnish.ir.expr import Dim, contiguous_strides, product
from burnish.lower.contractions import FEWEST_QUERIES
from burnish.schedule.kernels import (
    KEY_BLOCK,
    AttendKernel,
    AttendSplits,
    Buffer,
    Kernel,
    LoopKernel,
    Operand,
    Schedule,
    split_length,
)

_MOST_SPLITS = 32


def split_attention(schedule: Schedule) -> Schedule:
    schedule = schedule.copy()
    kernels: list[Kernel] = []
    for kernel in schedule.kernels:
        if isinstance(kernel, AttendKernel) and _has_few_queries(kernel):
            kernels += _Split(schedule, kernel).kernels()
        else:
            kernels.append(kernel)
    return schedule.with_kernels(kernels)


def _has_few_queries(kernel: AttendKernel) -> bool:
    (batch, _, queries, _), (_, shared, keys, _) = (o.shape for o in kernel.inputs[:2])
    known = all(isinstance(d, int) for d in (batch, queries, shared, keys))
    return known and isinstance(queries, int) and queries < FEWEST_QUERIES


@dataclass
class _Split:
    schedule: Schedule
    kernel: AttendKernel

    def kernels(self) -> list[Kernel]:
        q, out = self.kernel.inputs[0], self.kernel.out
        splits = self._splits()
        sums = self._made("sums", (splits, *q.shape))
        most, totals = (self._made(name, (splits, *q.shape[:-1])) for name in ("most", "totals"))
        return [
            AttendSplits(self.kernel.op, self.kernel.inputs, sums, most, totals),
            LoopKernel(_put_together(sums, most, totals, out)),
        ]

    def _splits(self) -> int:
        """As many as run at once, two programs on each multiprocessor, and none so short that it is not worth its
        programs: of a few more, most would wait for nearly all the others to end."""
        batch, heads, keys, _ = self.kernel.inputs[1].shape
        programs = product((batch, heads))
        assert isinstance(keys, int)
        wanted = 2 * self.schedule.gpu.multiprocessors // programs if isinstance(programs, int) else 1
        wanted = max(1, min(wanted, _MOST_SPLITS, -(-keys // KEY_BLOCK)))
        return -(-keys // split_length(keys, wanted))  # none is empty

    def _made(self, name: str, shape: tuple[Dim, ...]) -> Operand:
        buffer = Buffer(f"{self.kernel.out.buffer}_{name}", DType.f32, shape, contiguous_strides(shape), "temp")
        self.schedule.buffers[buffer.name] = buffer
        return Operand(buffer.name, 0, shape, buffer.strides, DType.f32)


def _put_together(sums: Operand, most: Operand, totals: Operand, out: Operand) -> Loop:
    """Each split is weighted by the distance of its highest score from the highest of all."""
    splits, *shape = sums.shape
    along = make_axis("i0", splits, reduce=True)
    axes = [make_axis(f"i{d}", size) for d, size in enumerate(shape, 1) if size != 1]
    place: dict[int, Dim] = {int(a.name[1:]): a.expr for a in ((along, *axes) if splits != 1 else axes)}
    body = BodyBuilder()

    def load(o: Operand) -> int:
        return body.emit(Load(o.buffer, _offset(o, place), DType.f32))

    def apply(fn: str, *args: int, dtype: DType = DType.f32) -> int:
        return body.emit(Apply(fn, args, dtype))

    zero, one, nothing = (body.emit(const(x, DType.f32)) for x in (0.0, 1.0, float("-inf")))
    highest = load(most)
    level = body.emit(Reduced("max", highest, DType.f32)) if splits != 1 else highest
    level = apply("where", apply("eq", level, nothing, dtype=DType.bool), zero, level)  # a query may see no key at all
    weight = apply("exp2", apply("sub", highest, level))
    total, value = (apply("mul", weight, load(o)) for o in (totals, sums))
    if splits != 1:
        total, value = (body.emit(Reduced("sum", x, DType.f32)) for x in (total, value))
    result = apply("div", value, apply("where", apply("eq", total, zero, dtype=DType.bool), one, total))
    assert out.dtype is not None
    at = out.offset + _offset(out, {d - 1: p for d, p in place.items()})
    body.emit(Store(out.buffer, at, result, "set", out.dtype))
    return Loop((along, *axes) if splits != 1 else tuple(axes), tuple(body.instrs))


def _offset(o: Operand, place: dict[int, Dim]) -> Dim:
    offset: Dim = 0
    for d, stride in enumerate(o.strides):
        offset = offset + stride * place.get(d, 0)
    return offset
