"""Large convolutions of few channels (an image's three) on a GPU: a padded copy turns them into convolutions of many
channels.

Three adjacent channels are six bytes, which no single load can read, and tensor cores cannot sum three elements. A copy
of x pads the channels to a power of two and includes the convolution's padding. So the taps of a row are contiguous and
aligned for every position of the result, and none is out of bounds. Together they form the channels of a single tap,
and an ordinary convolution with [r, 1] taps gives the result. The weights are padded with zeros. The copy is a small
part of the memory that the convolution reads and writes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from burnish.ir.body import BodyBuilder, Load, Loop, Store, make_axis
from burnish.ir.dtypes import DType
from burnish.ir.expr import Dim, contiguous_strides, dot
from burnish.schedule.emit import inside
from burnish.schedule.form import Form
from burnish.schedule.kernels import Buffer, ConvolveKernel, Kernel, LoopKernel, Operand, Schedule

ROOMY = Form("roomy")
_MOST_CHANNELS = 8
_DEEP = 16  # elements of a sum that tensor cores take at once
_ACCESS = 8  # elements of two bytes that a load takes at once
_WIDEST = 64  # elements of a row of taps, with room


@dataclass(frozen=True)
class Room:
    """Sizes of the copy: [batch, down, across, channels], and taps of a row with those that are always zero."""

    down: int
    across: int
    channels: int
    taps: int


def room_for(kernel: ConvolveKernel) -> Room | None:
    """The copy's sizes, if the convolution is one of few channels whose taps lie side by side."""
    (_, c, h, w), (_, _, r, s) = kernel.x.shape, kernel.k.shape
    half = kernel.x.dtype is not None and kernel.x.dtype.itemsize == 2 and kernel.k.dtype is kernel.x.dtype
    if not half or kernel.splits > 1 or kernel.op.dilation[1] != 1:
        return None
    if not all(isinstance(size, int) for size in (c, h, w, r, s, kernel.k.shape[0])) or c > _MOST_CHANNELS:  # type: ignore[operator]
        return None
    assert isinstance(c, int) and isinstance(r, int) and isinstance(s, int)
    (_, _, result_h, result_w), (step_h, step_w) = kernel.result_shape, kernel.op.stride
    assert isinstance(result_h, int) and isinstance(result_w, int)
    channels = 1 << (c - 1).bit_length()
    row = max(_DEEP, 1 << (channels * s - 1).bit_length())
    if row > _WIDEST or row > 4 * c * s:
        return None
    across = (result_w - 1) * step_w + row // channels
    even = _ACCESS // channels  # columns that fill an access: every row starts at one
    down = (result_h - 1) * step_h + (r - 1) * kernel.op.dilation[0] + 1
    return Room(down, -(-across // even) * even, channels, row // channels)


def with_room(schedule: Schedule, kernel: ConvolveKernel, room: Room) -> list[Kernel]:
    """The copies of x and of the weights, and the convolution that reads them."""
    (batch, _, _, _), (o, _, r, _) = kernel.x.shape, kernel.k.shape
    c, row = room.channels, room.taps * room.channels
    x = _own(schedule, f"{kernel.acc}_x", (batch, room.down, room.across, c), kernel.x.dtype)
    k = _own(schedule, f"{kernel.acc}_k", (o, r, room.taps, c), kernel.k.dtype)
    (step_b, step_h, step_w, _), (step_o, step_r, _, _) = x.strides, k.strides
    places = (batch, row, room.down, (kernel.result_shape[3] - 1) * kernel.op.stride[1] + 1)
    convolution = replace(
        kernel,
        op=replace(kernel.op, padding=(0, 0)),
        x=Operand(x.name, 0, places, (step_b, 1, step_h, step_w), x.dtype),
        k=Operand(k.name, 0, (o, row, r, 1), (step_o, 1, step_r, row), k.dtype),
    )
    return [_copy(kernel.x, x, kernel.op.padding), _copy(kernel.k, k, (0, 0)), convolution]


def _own(schedule: Schedule, name: str, shape: tuple[Dim, ...], dtype: DType | None) -> Buffer:
    assert dtype is not None
    schedule.buffers[name] = Buffer(name, dtype, shape, contiguous_strides(shape), "temp")
    return schedule.buffers[name]


def _copy(source: Operand, into: Buffer, before: tuple[int, int]) -> LoopKernel:
    """`source` [n, c, h, w] as [n, h, w, c], shifted by this many rows and columns, and zero around it."""
    assert into.dtype is not None
    axes = tuple(make_axis(f"i{d}", size) for d, size in enumerate(into.shape) if size != 1)
    at = {a.name: a.expr for a in axes}
    index: tuple[Dim, ...] = tuple(at.get(f"i{d}", 0) for d in range(4))
    n, h, w, c = index
    place = (n, c, h - before[0], w - before[1])
    body = BodyBuilder()
    guard = inside(body, place, source.shape)
    value = body.emit(Load(source.buffer, source.offset + dot(place, source.strides), into.dtype, guard, 0))
    body.emit(Store(into.name, dot(index, into.strides), value, "set", into.dtype))
    return LoopKernel(Loop(axes, tuple(body.instrs)))
