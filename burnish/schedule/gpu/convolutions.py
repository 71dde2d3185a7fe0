"""Backend selection for each convolution on a GPU: our kernel, our kernel with split-K, or the vendor's library.

Our kernel is a matrix product whose rows are the positions of the result and whose columns are its channels, so the
considerations for products (products.py) apply. It runs where
- channels lie next to one another in memory, in x and in the weights, and their number is a multiple of 16, or so
  small that those of a row of taps are taken together (an image's three, `takes_rows`); and
- 64 x 64 tiles are few, and so are the steps that each multiprocessor would take through them, so that latency bounds
  the time; or the sum at each position is short (up to 256 elements: a 1 x 1 convolution of a few channels), so that
  memory bounds the time and a fused epilogue saves a pass over it (except for rows of taps, whose loads are slow); or
  it is a large matrix product (1 x 1, stride 1) with an epilogue beyond rounding, which then overlaps with the products
  (`is_persistent`); or it has few channels, which are padded first (`few_channels.py`). With few tiles and long sums,
  split-K is used: the next kernel adds the partial sums. All other convolutions use the library: large ones are bound
  by the tensor cores, and other layouts by its copies. The library computes the epilogue in the same call where it can
  (`convolution_epilogues.py`), which saves a pass over the result.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from burnish.device import Gpu
from burnish.ir.body import Apply, BodyBuilder, Load
from burnish.ir.expr import Dim, contiguous_strides, product
from burnish.ir.graph import Extern, Ref
from burnish.schedule.epilogue import (
    accumulator_loads,
    is_cast,
    looks_up,
    uses,
    with_values,
)
from burnish.schedule.form import LIBRARY, Form, ours
from burnish.schedule.gpu.convolution_epilogues import FUSED, Epilogue, fused_call, library_epilogue
from burnish.schedule.gpu.few_channels import ROOMY, room_for, with_room
from burnish.schedule.gpu.limits import describable, most_tiles
from burnish.schedule.gpu.split_k import Sums, in_splits, tiles_of
from burnish.schedule.kernels import (
    Buffer,
    ConvolveKernel,
    ExternKernel,
    Kernel,
    LoopKernel,
    Operand,
    Schedule,
    channels_last_strides,
)

_SHORT = 256  # elements of a sum up to which memory bounds the time
_MOST_WORK = 2048  # tiles times elements of their sums, a multiprocessor: a few microseconds, latency included
_LARGE = 1 << 29  # multiplications of a product from which tensor cores bound the time
_DEEPEST = 128
_WIDEST_ROW = 64  # elements of a row of taps that is taken as a whole
_MOST_TAPS = 256  # elements of rows of taps taken at a time: all loads of a 7 x 7 convolution at once


@dataclass
class ConvolutionBackend:
    schedule: Schedule
    kernel: ConvolveKernel

    def kernels(self, form: Form) -> list[Kernel]:
        schedule, kernel = self.schedule, self.kernel
        if form == LIBRARY:
            return _Library(schedule, kernel).kernels()
        if form == FUSED:
            return _Library(schedule, kernel).fused()
        if form == ROOMY:
            room = room_for(kernel)
            assert room is not None, "a form that is none of its forms"
            return with_room(schedule, kernel, room)
        splits = form["splits"]
        if splits == 1:
            return [kernel]
        return in_splits(schedule, kernel, splits, lambda acc, loop: replace(kernel, acc=acc, loop=loop, splits=splits))

    def forms(self) -> list[Form]:
        kernel, sums = self.kernel, _sums(self.kernel)
        if sums is None:
            return [self.rule()]
        splits = [1] if is_readable(kernel) and not looks_up(kernel.loop) else []
        splits += sums.to_measure(self.schedule.gpu) if splits and not takes_rows(kernel) else []
        fused = [FUSED] if _Library(self.schedule, kernel).can_fuse() else []
        roomy = [ROOMY] if _can_have_room(kernel) else []
        return list(dict.fromkeys([self.rule(), LIBRARY, *fused, *roomy, *map(ours, splits)]))

    def rule(self) -> Form:
        kernel, gpu = self.kernel, self.schedule.gpu
        if is_ours(kernel, gpu):
            return ours(splits_of(kernel, gpu))
        if _can_have_room(kernel) and _is_many(kernel, gpu):
            return ROOMY
        return FUSED if _Library(self.schedule, kernel).can_fuse() else LIBRARY


# --- the rule ---------------------------------------------------------------------------------------------------


def _can_have_room(kernel: ConvolveKernel) -> bool:
    return room_for(kernel) is not None and not looks_up(kernel.loop)


def is_ours(kernel: ConvolveKernel, gpu: Gpu) -> bool:
    if not is_readable(kernel) or looks_up(kernel.loop):
        return False
    tiles, each = _tiles(kernel), length(kernel)
    if each <= _SHORT and not takes_rows(kernel):
        return True
    if tiles is not None and tiles <= most_tiles(gpu) and tiles * each <= _MOST_WORK * gpu.multiprocessors:
        return True
    return is_persistent(kernel, gpu) and any(isinstance(i, Apply) and i.fn != "cast" for i in kernel.loop.body)


def is_persistent(kernel: ConvolveKernel, gpu: Gpu) -> bool:
    """Whether it is a matrix product, large enough for 128 x 128 tiles through tensor descriptors."""
    found = matrices(kernel)
    if found is None or kernel.splits > 1 or length(kernel) <= _SHORT or not all(map(describable, found)):
        return False
    rows, columns = found[0].shape[0], found[1].shape[1]
    if not isinstance(rows, int) or not isinstance(columns, int) or columns % 128 != 0:
        return False
    tiles = -(-rows // 128) * (columns // 128)
    return 2 * tiles >= gpu.multiprocessors and rows * columns * length(kernel) >= _LARGE


def matrices(kernel: ConvolveKernel) -> tuple[Operand, Operand] | None:
    """x as positions by channels and the weights as channels by outputs, if the convolution is their product."""
    x, k, op = kernel.x, kernel.k, kernel.op
    (_, c, h, w), (b_step, _, h_step, w_step) = x.shape, x.strides
    flat = (h == 1 or h_step == w * w_step) and (x.shape[0] == 1 or b_step == h * w * w_step) and w != 1
    if k.shape[2:] != (1, 1) or op.stride != (1, 1) or op.padding != (0, 0) or not flat:
        return None
    places = product((x.shape[0], h, w))
    return (
        Operand(x.buffer, x.offset, (places, c), (w_step, 1), x.dtype),
        Operand(k.buffer, k.offset, (c, k.shape[0]), (1, k.strides[0]), k.dtype),
    )


def is_readable(kernel: ConvolveKernel) -> bool:
    """Whether our kernel supports the operands' layouts."""
    channels = kernel.k.shape[1]
    return _has_channels_last(kernel) and ((isinstance(channels, int) and channels % 16 == 0) or takes_rows(kernel))


def _has_channels_last(kernel: ConvolveKernel) -> bool:
    """Whether both operands can be read along their channels, the weights along all of a sum at once."""
    (_, c, *taps), (_, channel, *steps) = kernel.k.shape, kernel.k.strides
    dense = all(size == 1 or step == want for size, step, want in zip(taps, steps, _tap_steps(kernel), strict=True))
    static = all(isinstance(s, int) for s in (*kernel.x.strides[1:], *kernel.k.strides, kernel.k.offset))
    return (kernel.x.strides[1] == channel == 1 or c == 1) and dense and static


def takes_rows(kernel: ConvolveKernel) -> bool:
    """Whether the channels are few, and those of a whole row of taps lie next to one another in x."""
    _, channels, _, across = kernel.k.shape
    assert isinstance(channels, int) and isinstance(across, int)
    side_by_side = kernel.x.strides[3] == channels and kernel.op.dilation[1] == 1
    return channels % 16 != 0 and channels * across <= _WIDEST_ROW and side_by_side


def row_of_taps(kernel: ConvolveKernel) -> tuple[int, int]:
    """How many elements a row of taps has, and how much room in a step: a power of two."""
    elements = product((kernel.k.shape[1], kernel.k.shape[3]))
    assert isinstance(elements, int)
    return elements, max(16, 1 << (elements - 1).bit_length())


def _tap_steps(kernel: ConvolveKernel) -> tuple[Dim, Dim]:
    _, c, _, across = kernel.k.shape
    return (across * c, c)


def length(kernel: ConvolveKernel) -> int:
    """Elements of the sum at each place."""
    total = product(kernel.k.shape[1:])
    assert isinstance(total, int)
    return total


def depth(kernel: ConvolveKernel) -> int:
    """Elements of the sum taken at a time: a power of two of one tap's channels, or several rows of taps."""
    _, channels, down, _ = kernel.k.shape
    assert isinstance(channels, int) and isinstance(down, int)
    if takes_rows(kernel):
        room = row_of_taps(kernel)[1]
        return min(1 << (down - 1).bit_length(), _MOST_TAPS // room) * room
    return min(channels & -channels, _DEEPEST)


def _tiles(kernel: ConvolveKernel) -> int | None:
    b, o, h, w = kernel.result_shape
    return tiles_of(product((b, h, w)), o)


def _sums(kernel: ConvolveKernel) -> Sums | None:
    tiles = _tiles(kernel)
    return None if tiles is None else Sums(tiles, length(kernel), depth(kernel))


def _is_many(kernel: ConvolveKernel, gpu: Gpu) -> bool:
    tiles = _tiles(kernel)
    return tiles is None or tiles > most_tiles(gpu)


def splits_of(kernel: ConvolveKernel, gpu: Gpu) -> int:
    sums = None if takes_rows(kernel) else _sums(kernel)
    return 1 if sums is None else sums.splits(gpu)


# --- the library ------------------------------------------------------------------------------------------------


@dataclass
class _Library:
    schedule: Schedule
    kernel: ConvolveKernel

    def kernels(self) -> list[Kernel]:
        """The call, whose result is rounded, and the epilogue as a loop that reads it."""
        kernel, half = self.kernel, self.kernel.x.dtype
        assert half is not None
        values = accumulator_loads(kernel)
        after = [u for n in values for u in uses(kernel.loop, n)]
        if all(is_cast(kernel.loop.body[u], half) for u in after):
            values = after
        strides = self._strides()
        pairs = [list(v) for v in (kernel.op.stride, kernel.op.padding, kernel.op.dilation)]
        args = (Ref(0), Ref(1), None, *pairs, False, [0, 0], 1)
        op = Extern(torch.ops.aten.convolution.default, args, (), (strides,), "aten::convolution.default")
        inputs = (kernel.x, kernel.k)
        place = self._place(strides)
        stored = self._copy(values, place)
        if stored is not None:
            self.schedule.buffers[stored] = replace(self.schedule.buffers[stored], role="extern")
            return [ExternKernel(op, inputs, (stored,))]
        result = Buffer(f"{kernel.acc}_product", half, kernel.result_shape, strides, "extern")
        self.schedule.buffers[result.name] = result
        body = BodyBuilder()
        read = body.emit(Load(result.name, place, half))
        replaced = dict.fromkeys([*accumulator_loads(kernel), *values], read)
        return [ExternKernel(op, inputs, (result.name,)), LoopKernel(with_values(kernel.loop, replaced, body))]

    def can_fuse(self) -> bool:
        """Whether one library call can compute the whole epilogue, and write the result in its layout."""
        return self._fusable() is not None

    def fused(self) -> list[Kernel]:
        found = self._fusable()
        if found is None:
            return self.kernels()
        epilogue, result = found
        self.schedule.buffers[result] = replace(self.schedule.buffers[result], role="extern")
        return fused_call(self.schedule, self.kernel, epilogue, result)

    def _fusable(self) -> tuple[Epilogue, str] | None:
        epilogue = library_epilogue(self.kernel) if _has_channels_last(self.kernel) else None
        place = self._place(channels_last_strides(self.kernel.result_shape))
        result = self._copy([epilogue.store.value], place) if epilogue is not None else None
        return (epilogue, result) if epilogue is not None and result is not None else None

    def _strides(self) -> tuple[Dim, ...]:
        """The strides of the library's result: like its operands'."""
        kernel = self.kernel
        last = any(o.strides[1] == 1 and o.shape[1] != 1 for o in (kernel.x, kernel.k))
        return channels_last_strides(kernel.result_shape) if last else contiguous_strides(kernel.result_shape)

    def _place(self, strides: tuple[Dim, ...]) -> Dim:
        place: Dim = 0
        for axis in self.kernel.loop.axes:
            place = place + strides[int(axis.name[1:])] * axis.expr
        return place

    def _copy(self, values: list[int], place: Dim) -> str | None:
        """The buffer that only receives the result, in the order the library writes it."""
        stores = self.kernel.loop.stores
        if len(stores) != 1 or stores[0].value not in values or stores[0].mode != "set":
            return None
        store, buffer = stores[0], self.schedule.buffers[stores[0].buffer]
        fits = store.index == place and buffer.role in ("temp", "output") and store.dtype is self.kernel.x.dtype
        written = sum(buffer.name in k.writes for k in self.schedule.kernels)
        return buffer.name if fits and buffer.shape == self.kernel.result_shape and written == 1 else None
