"""Reference evaluation of a Schedule in torch: kernels in order over flat buffers. Fused and unfused schedules must
agree."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from burnish.ir.evaluate import evaluate_loop
from burnish.ir.expr import Dim, evaluate
from burnish.ir.reference import attention, convolution, evaluate_extern, split_attention_results
from burnish.schedule.kernels import (
    AttendKernel,
    AttendSplits,
    Buffer,
    ContractGroup,
    ContractKernel,
    ConvolveKernel,
    ExternKernel,
    Kernel,
    LoopGroup,
    LoopKernel,
    Operand,
    ResultBuffer,
    Schedule,
)


def evaluate_schedule(
    schedule: Schedule, inputs: Sequence[torch.Tensor | int | None], sizes: Mapping[str, int] | None = None
) -> list[torch.Tensor | int | None]:
    """The schedule's results in their strides; inputs it writes are changed in place."""
    return ScheduleEvaluation(schedule, inputs, sizes or {}).run()


class ScheduleEvaluation:
    """One run over a schedule: buffers in `memory`, kernels one at a time."""

    def __init__(
        self, schedule: Schedule, inputs: Sequence[torch.Tensor | int | None], sizes: Mapping[str, int]
    ) -> None:
        self.schedule, self.inputs, self.sizes = schedule, inputs, sizes
        self.memory = {name: self._memory(b) for name, b in schedule.buffers.items() if b.dtype is not None}
        self.foreign: dict[str, torch.Tensor] = {}  # results of ATen calls of types no kernel computes in

    def _memory(self, b: Buffer) -> torch.Tensor:
        assert b.dtype is not None
        extent = evaluate(b.extent, self.sizes)
        held = self.inputs[b.position] if b.role == "input" else self.schedule.constants.get(b.name)
        if isinstance(held, torch.Tensor):
            return held.as_strided((extent,), (1,), held.storage_offset())
        # Unwritten memory must not look like a result.
        return torch.full((extent,), float("nan") if b.dtype.is_float else 77, dtype=b.dtype.torch)

    def _dims(self, dims: Sequence[Dim]) -> list[int]:
        return [evaluate(d, self.sizes) for d in dims]

    def window(self, o: Operand) -> torch.Tensor:
        if o.buffer in self.foreign:
            return self.foreign[o.buffer]
        memory = self.memory[o.buffer]
        start = memory.storage_offset() + evaluate(o.offset, self.sizes)
        return memory.as_strided(self._dims(o.shape), self._dims(o.strides), start)

    def run(self) -> list[torch.Tensor | int | None]:
        for kernel in self.schedule.kernels:
            self.run_kernel(kernel)
        return [self._result(r) for r in self.schedule.results]

    def run_kernel(self, kernel: Kernel) -> None:
        match kernel:
            case LoopKernel(loop):
                evaluate_loop(loop, self.memory, self.sizes)
            case ContractKernel(a=a, dtype=dtype, loop=loop):
                left = self.window(a).to(dtype.torch)
                sums = {acc: (left @ self.window(b).to(dtype.torch)).flatten() for acc, b in kernel.products.items()}
                evaluate_loop(loop, {**self.memory, **sums}, self.sizes)
            case ConvolveKernel(acc=acc, loop=loop):
                product = self._convolved(kernel).movedim(-3, -1)
                evaluate_loop(loop, {**self.memory, acc: product.flatten()}, self.sizes)
            case ContractGroup(parts) | LoopGroup(parts):
                for part in parts:
                    self.run_kernel(part)
            case AttendSplits(op, operands):
                results = split_attention_results(op, [self.window(o) for o in operands], kernel.length)
                for o, value in zip((kernel.sums, kernel.most, kernel.totals), results, strict=True):
                    self.window(o).copy_(value)
            case AttendKernel(op, operands, out, lse):
                results = attention(op, [self.window(o) for o in operands])
                self.window(out).copy_(results[0])
                self.window(lse).copy_(results[1])
            case ExternKernel(op, operands, outputs):
                for name, value in zip(
                    outputs, evaluate_extern(op, [self.window(o) for o in operands], self.sizes), strict=True
                ):
                    self._keep(name, value)

    def _convolved(self, kernel: ConvolveKernel) -> torch.Tensor:
        wide = kernel.dtype.torch
        x, k = self.window(kernel.x).to(wide), self.window(kernel.k).to(wide)
        if kernel.splits == 1:
            return convolution(kernel.op, x, k)
        flat = k.permute(0, 2, 3, 1).flatten(1)
        split = torch.arange(flat.shape[1]) // (flat.shape[1] // kernel.splits)
        shape = [k.shape[d] for d in (0, 2, 3, 1)]
        alone = [(flat * (split == p)).reshape(shape).permute(0, 3, 1, 2) for p in range(kernel.splits)]
        return torch.stack([convolution(kernel.op, x, part) for part in alone])

    def _keep(self, name: str, value: torch.Tensor) -> None:
        b = self.schedule.buffers.get(name)
        if b is None or b.dtype is None:
            self.foreign[name] = value
        else:
            self.memory[name].as_strided(self._dims(b.shape), self._dims(b.strides)).copy_(value)

    def _result(self, r: ResultBuffer | Dim | None) -> torch.Tensor | int | None:
        if not isinstance(r, ResultBuffer):
            return None if r is None else evaluate(r, self.sizes)
        if r.alias_of is None:
            return self.window(r.operand)
        base = self.inputs[r.alias_of]
        assert isinstance(base, torch.Tensor)
        o = r.operand
        start = base.storage_offset() + evaluate(o.offset, self.sizes)
        return base.as_strided(self._dims(o.shape), self._dims(o.strides), start)
