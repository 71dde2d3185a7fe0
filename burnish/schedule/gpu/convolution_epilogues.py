"""Epilogues of the library's convolutions: a cuDNN call can also add a bias and a tensor and apply ReLU.

A norm after the convolution is folded into its weights: each channel's weights are multiplied by the norm's factor, and
the norm's offset is the bias. Both are computed in each call, because weights may change.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from burnish.ir.body import Apply, BodyBuilder, Const, Instr, Load, Loop, Store, instr_args, make_axis, prune, rebuild
from burnish.ir.dtypes import DType
from burnish.ir.expr import Dim, dot, symbols
from burnish.ir.graph import Extern, Ref
from burnish.schedule.epilogue import is_cast
from burnish.schedule.form import Form
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

FUSED = Form("fused")
_CHANNEL = "i1"


@dataclass(frozen=True)
class Epilogue:
    """max(0, scale * sum + shift + added), the first two by channel; None is absent."""

    store: Store
    added: Load | None
    scale: int | None
    shift: int | None


def library_epilogue(kernel: ConvolveKernel) -> Epilogue | None:
    """A convolution's epilogue, if the library can compute it in the same call."""
    half = kernel.x.dtype
    stores = kernel.loop.stores
    if half not in (DType.bf16, DType.f16) or kernel.splits > 1 or len(stores) != 1:
        return None
    (store,) = stores
    if store.mode != "set" or store.dtype is not half:
        return None
    chain = _Chain(kernel.loop.body, kernel.acc, half, store.value)
    if not chain.take_relu():
        return None
    added = chain.take_added(store.index)
    shift = chain.take_vector("add")
    scale = chain.take_vector("mul")
    last = chain.unrounded()
    return Epilogue(store, added, scale, shift) if isinstance(last, Load) and last.buffer == kernel.acc else None


@dataclass
class _Chain:
    """Decomposes a value, starting at its last operation."""

    body: Sequence[Instr]
    acc: str
    half: DType
    value: int

    def unrounded(self) -> Instr:
        """The instruction that computes the value, ignoring intermediate roundings: the call rounds once."""
        while is_cast(i := self.body[self.value], self.half):
            self.value = instr_args(i)[0]
        return i

    def _operands(self, fn: str) -> list[tuple[int, int]]:
        """Both orders of the operands of what makes the value."""
        i = self.unrounded()
        if not isinstance(i, Apply) or i.fn != fn:
            return []
        first, second = i.args
        return [(first, second), (second, first)]

    def take_relu(self) -> bool:
        for value, other in self._operands("maximum"):
            bound = self.body[other]
            if isinstance(bound, Const) and bound.value == 0:
                self.value = value
                return True
        return False

    def take_added(self, place: Dim) -> Load | None:
        """Take an added tensor with the result's strides."""
        for value, other in self._operands("add"):
            load = self.body[other]
            if not isinstance(load, Load) or load.buffer == self.acc:
                continue
            if load.guard is None and load.dtype is self.half and load.index == place:
                self.value = value
                return load
        return None

    def take_vector(self, fn: str) -> int | None:
        for value, other in self._operands(fn):
            if self._is_by_channel(other):
                self.value = value
                return other
        return None

    def _is_by_channel(self, value: int) -> bool:
        i = self.body[value]
        if isinstance(i, Load):
            return i.buffer != self.acc and i.guard is None and all(s.name == _CHANNEL for s in symbols(i.index))
        return isinstance(i, Const) or (isinstance(i, Apply) and all(map(self._is_by_channel, i.args)))


def fused_call(schedule: Schedule, kernel: ConvolveKernel, found: Epilogue, result: str) -> list[Kernel]:
    """The call, which makes the buffer `result`, after the kernels that make its weights and its bias."""
    made: list[Kernel] = []
    weights, bias = kernel.k, None
    if found.scale is not None:
        weights = _own(schedule, f"{kernel.acc}_weights", kernel.k, channels_last_strides(_four(kernel.k.shape)))
        made.append(_by_channel(kernel, found.scale, weights, times=kernel.k))
    if found.shift is not None:
        vector = Operand("", 0, kernel.k.shape[:1], (1,), kernel.k.dtype)
        bias = _own(schedule, f"{kernel.acc}_bias", vector, (1,))
        made.append(_by_channel(kernel, found.shift, bias))
    inputs = [kernel.x, weights]
    strides = channels_last_strides(kernel.result_shape)
    if found.added is not None:
        inputs.append(Operand(found.added.buffer, 0, kernel.result_shape, strides, kernel.x.dtype))
    inputs += [bias] if bias is not None else []
    refs = [Ref(n) for n in range(len(inputs))]
    last = refs.pop() if bias is not None else None
    pairs = [list(v) for v in (kernel.op.stride, kernel.op.padding, kernel.op.dilation)]
    name = "cudnn_convolution_relu" if found.added is None else "cudnn_convolution_add_relu"
    factor = [] if found.added is None else [1.0]
    target = getattr(torch.ops.aten, name).default
    op = Extern(target, (*refs, *factor, last, *pairs, 1), (), (strides,), f"aten::{name}.default")
    return [*made, ExternKernel(op, tuple(inputs), (result,))]


def _four(shape: tuple[Dim, ...]) -> tuple[Dim, Dim, Dim, Dim]:
    a, b, c, d = shape
    return a, b, c, d


def _own(schedule: Schedule, name: str, like: Operand, strides: tuple[Dim, ...]) -> Operand:
    schedule.buffers[name] = Buffer(name, like.dtype, like.shape, strides, "temp")
    return Operand(name, 0, like.shape, strides, like.dtype)


def _by_channel(kernel: ConvolveKernel, value: int, into: Operand, times: Operand | None = None) -> LoopKernel:
    """A value of the epilogue for each channel, or the weights multiplied by it; channels are the first dimension."""
    axes = tuple(make_axis(f"i{d}", size) for d, size in enumerate(into.shape) if size != 1)
    at = {a.name: a.expr for a in axes}
    index = tuple(at.get(f"i{d}", 0) for d in range(len(into.shape)))
    body = BodyBuilder()
    computed = rebuild(kernel.loop.body[: value + 1], {_CHANNEL: index[0]}, body)[value]
    assert into.dtype is not None
    if times is not None:
        weight = body.emit(Load(times.buffer, times.offset + dot(index, times.strides), into.dtype))
        computed = body.emit(Apply("mul", (weight, computed), into.dtype.compute))
    body.emit(Store(into.buffer, dot(index, into.strides), computed, "set", into.dtype))
    return LoopKernel(Loop(axes, prune(body.instrs)))
