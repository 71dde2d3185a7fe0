"""Bytes that kernels move between memory and the processor, counted from what they read and write."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import fx

from burnish.ir.body import Load, Loop, Store
from burnish.ir.expr import Dim, evaluate, symbols
from burnish.lower.aten_calls import is_aten_call, memory_of
from burnish.lower.symbols import Symbols
from burnish.schedule.kernels import (
    AttendKernel,
    AttendSplits,
    ContractGroup,
    ContractKernel,
    ConvolveKernel,
    ExternKernel,
    Kernel,
    LoopGroup,
    LoopKernel,
    Operand,
    Schedule,
)

Sizes = Mapping[str, int]


def schedule_bytes(schedule: Schedule, sizes: Sizes) -> int:
    return sum(kernel_bytes(kernel, schedule, sizes) for kernel in schedule.kernels)


def kernel_bytes(kernel: Kernel, schedule: Schedule, sizes: Sizes) -> int:
    """Each element a kernel touches counts once for reading and once for writing: caches do their part."""
    match kernel:
        case LoopKernel(loop):
            return _loop_bytes(loop, schedule, sizes)
        case ContractKernel(a=a, loop=loop):
            read = sum(_window_bytes(o, sizes) for o in (a, *kernel.products.values()))
            return read + _loop_bytes(loop, schedule, sizes)
        case ConvolveKernel(_, x, k, _, _, loop):
            return _window_bytes(x, sizes) + _window_bytes(k, sizes) + _loop_bytes(loop, schedule, sizes)
        case ContractGroup(parts):
            shared = (len(parts) - 1) * _window_bytes(parts[0].a, sizes)
            return sum(kernel_bytes(part, schedule, sizes) for part in parts) - shared
        case LoopGroup(parts):
            return sum(kernel_bytes(part, schedule, sizes) for part in parts)
        case AttendSplits(_, inputs, sums, most, totals):
            return sum(_window_bytes(o, sizes) for o in (*inputs, sums, most, totals))
        case AttendKernel(_, inputs, out, lse):
            return sum(_window_bytes(o, sizes) for o in (*inputs, out, lse))
        case ExternKernel(_, inputs, outputs):
            made = [schedule.buffers[name] for name in outputs if name in schedule.buffers]
            written = sum(evaluate(b.elements, sizes) * (b.dtype.itemsize if b.dtype else 0) for b in made)
            return sum(_window_bytes(o, sizes) for o in inputs) + written
    raise AssertionError(f"{type(kernel).__name__} moves nothing known")


def kernel_flops(kernel: Kernel, sizes: Sizes) -> int:
    """Multiplications and additions of a matrix product, a convolution or attention; 0 for what memory bounds."""
    match kernel:
        case ContractKernel(a, b):
            return 2 * _product((*a.shape, b.shape[-1]), sizes) * len(kernel.products)
        case ConvolveKernel():
            return 2 * _product((*kernel.result_shape, *kernel.k.shape[1:]), sizes)
        case ContractGroup(parts):
            return sum(kernel_flops(part, sizes) for part in parts)
        case AttendKernel(op, (q, k, v, *_)) | AttendSplits(op, (q, k, v, *_)):
            work = 2 * _product((*q.shape[:3], k.shape[2]), sizes) * _product((q.shape[3] + v.shape[3],), sizes)
            return work // 2 if op.causal else work
    return 0


def _loop_bytes(loop: Loop, schedule: Schedule, sizes: Sizes) -> int:
    extents = {axis.name: evaluate(axis.size, sizes) for axis in loop.axes}
    touched: dict[tuple[str, bool], int] = {}
    for i in loop.body:
        if isinstance(i, Load | Store) and i.buffer in schedule.buffers:
            key = i.buffer, isinstance(i, Store)
            touched[key] = max(touched.get(key, 0), _points(i.index, extents))
    total = 0
    for (name, _), points in touched.items():
        buffer = schedule.buffers[name]
        total += min(points, evaluate(buffer.extent, sizes)) * (buffer.dtype.itemsize if buffer.dtype else 0)
    return total


def _points(index: Dim, extents: Mapping[str, int]) -> int:
    """How many elements an offset names: one for each position along the axes in it; a gather's may be anywhere."""
    names = {s.name for s in symbols(index)} if not isinstance(index, int) else set()
    used = extents if any(name.startswith("%") for name in names) else {n: e for n, e in extents.items() if n in names}
    count = 1
    for extent in used.values():
        count *= extent
    return count


def _window_bytes(operand: Operand, sizes: Sizes) -> int:
    moving = [d for d, s in zip(operand.shape, operand.strides, strict=True) if s != 0]  # a broadcast is read once
    return _product(moving, sizes) * (operand.dtype.itemsize if operand.dtype else 0)


def _product(dims: Any, sizes: Sizes) -> int:
    count = 1
    for d in dims:
        count *= evaluate(d, sizes)
    return count


# --- the same in eager -------------------------------------------------------------------------------------------


def eager_bytes(calls: fx.GraphModule, known: Symbols, sizes: Sizes) -> int:
    """What the graph's ATen calls read and write when each is a kernel of its own; views move nothing."""
    total = 0
    for node in calls.graph.nodes:
        if node.op != "call_function":
            continue
        results = _tensors(node.meta.get("val"))
        operands = [t for x in node.all_input_nodes for t in _tensors(x.meta.get("val"))]
        memory = {memory_of(t) for t in operands}
        is_view = results and all(memory_of(t) in memory for t in results)
        if not is_view and is_aten_call(node.target):
            total += sum(_tensor_bytes(t, known, sizes) for t in (*operands, *results))
    return total


def _tensors(value: Any) -> list[torch.Tensor]:
    items = value if isinstance(value, tuple | list) else [value]
    return [t for t in items if isinstance(t, torch.Tensor) and t.layout is torch.strided]


def _tensor_bytes(tensor: torch.Tensor, known: Symbols, sizes: Sizes) -> int:
    moving = [known.dim(d) for d, s in zip(tensor.shape, tensor.stride(), strict=True) if not _is_zero(s)]
    return _product(moving, sizes) * tensor.element_size()


def _is_zero(stride: Any) -> bool:
    return isinstance(stride, int) and stride == 0
