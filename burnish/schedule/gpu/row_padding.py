"""Row padding for the library's products: its fast kernels need rows whose length is a multiple of 16 bytes.

Odd k: the library sums all but the last few elements, in full precision, and the epilogue adds those. An odd number of
rows that are interleaved in memory: a few additional rows are computed from the memory between them, and never read.
"""

from __future__ import annotations

from dataclasses import replace

from burnish.ir.body import Apply, BodyBuilder, Load
from burnish.ir.dtypes import DType
from burnish.ir.expr import Dim
from burnish.schedule.kernels import Buffer, ContractKernel, Operand, Schedule

_EVEN = 8  # elements of two bytes that fill an access


def is_ragged(kernel: ContractKernel) -> bool:
    """Whether a row of an operand or of the result ends between the multiples of 16 bytes that the library's quick
    kernels move."""
    a, b = kernel.a, kernel.b
    along = [o.shape[d] for o in (a, b) for d in (-2, -1) if o.strides[d] == 1]
    return any(isinstance(size, int) and size % _EVEN != 0 for size in (*along, b.shape[-1]))


def even_part(kernel: ContractKernel) -> tuple[Operand, Operand] | None:
    """The operands without the last few elements of each sum, where those are all that is odd."""
    a, b = kernel.a, kernel.b
    sizes = _plain_sizes(kernel)
    if sizes is None or {axis.name for axis in kernel.loop.axes} != {"i0", "i1"}:
        return None
    m, k, n = sizes
    even = k // _EVEN * _EVEN
    if even in (0, k) or n % _EVEN or (a.strides[0] == 1 and m % _EVEN) or not _even_steps(kernel):
        return None
    return _of(a, (m, even)), _of(b, (even, n))


def rest_of_sum(kernel: ContractKernel, body: BodyBuilder, load: Load, product: Buffer, first: int) -> int:
    """The replacement of the accumulator: the library's sum plus the products from the `first` element on."""
    length = kernel.a.shape[1]
    assert isinstance(length, int)
    total = body.emit(Load(product.name, load.index, kernel.dtype))
    row, column = (axis.expr for axis in sorted(kernel.loop.axes, key=lambda axis: axis.name))
    for k in range(first, length):
        factors = [_element(body, kernel.a, row, k), _element(body, kernel.b, k, column)]
        total = body.emit(Apply("add", (total, body.emit(Apply("mul", tuple(factors), kernel.dtype))), kernel.dtype))
    return total


def with_more_rows(schedule: Schedule, kernel: ContractKernel) -> tuple[Operand, Buffer] | None:
    """The left operand with an even number of rows, where only their number is odd and its memory, which is ours, has
    room for them between the columns; and that memory, which has to go on behind the last one, too."""
    a, sizes, memory = kernel.a, _plain_sizes(kernel), schedule.buffers[kernel.a.buffer]
    if sizes is None or a.strides[0] != 1 or not _even_steps(kernel):
        return None
    m, k, n = sizes
    more = -(-m // _EVEN) * _EVEN
    is_row = memory.role == "temp" and memory.strides[-1] == 1 and memory.shape[-1] == m and a.offset == 0
    if not is_row or n % _EVEN or more == m or more > a.strides[1]:  # type: ignore[operator]
        return None
    return _of(a, (more, k)), replace(memory, shape=(*memory.shape[:-1], more))


def _plain_sizes(kernel: ContractKernel) -> tuple[int, int, int] | None:
    a, b = kernel.a, kernel.b
    if len(a.shape) != 2 or a.dtype is None or a.dtype.itemsize != 2 or kernel.dtype is not DType.f32:
        return None
    numbers = (*a.shape, *b.shape, *a.strides, *b.strides)
    if not all(isinstance(number, int) for number in numbers):
        return None
    return a.shape[0], a.shape[1], b.shape[1]  # type: ignore[return-value]


def _even_steps(kernel: ContractKernel) -> bool:
    steps = [s for o in (kernel.a, kernel.b) for s in o.strides if s != 1]
    starts = [kernel.a.offset, kernel.b.offset]
    return len(steps) == 2 and all(isinstance(x, int) and x % _EVEN == 0 for x in (*steps, *starts))


def _of(o: Operand, shape: tuple[int, int]) -> Operand:
    return Operand(o.buffer, o.offset, shape, o.strides, o.dtype)


def _element(body: BodyBuilder, o: Operand, row: Dim, column: Dim) -> int:
    assert o.dtype is not None
    place = o.offset + row * o.strides[0] + column * o.strides[1]
    return body.emit(Apply("cast", (body.emit(Load(o.buffer, place, o.dtype)),), DType.f32))
