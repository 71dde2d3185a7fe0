"""Backend selection for attention on a GPU, in `max-autotune`: our kernel and the library's are measured.

Without a measurement our kernel runs: attention for which the library is faster is already an ATen call
(`lower/contractions.py`) and does not reach this file."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from burnish.ir.graph import Extern, Ref
from burnish.schedule.form import Form
from burnish.schedule.kernels import AttendKernel, ExternKernel, Kernel, Schedule

_OURS, _FLASH, _CUDNN, _EFFICIENT = (Form(name) for name in ("ours", "flash", "cudnn", "efficient"))


@dataclass
class AttentionBackend:
    schedule: Schedule
    kernel: AttendKernel

    def rule(self) -> Form:
        return _OURS

    def forms(self) -> list[Form]:
        """Ours first. The library does not support our masks, needs one key head per query head, and returns training's
        sums of weights in its own layouts."""
        schedule, kernel = self.schedule, self.kernel
        q, k, *_ = kernel.inputs
        sums = kernel.lse.buffer
        kept = schedule.result_buffers
        wanted = sums in kept or any(sums in other.reads for other in schedule.kernels)
        static = all(isinstance(d, int) for o in kernel.inputs for d in (*o.shape, *o.strides, o.offset))
        if kernel.op.has_mask or wanted or not static or q.shape[1] != k.shape[1]:
            return [_OURS]
        return [_OURS, _FLASH, _CUDNN, _EFFICIENT]

    def kernels(self, form: Form) -> list[Kernel]:
        schedule, kernel = self.schedule, self.kernel
        if form == _OURS:
            return [kernel]
        out = schedule.buffers[kernel.out.buffer]
        causal, scale = kernel.op.causal, (("scale", kernel.op.scale),)
        refs = (Ref(0), Ref(1), Ref(2))
        aten = torch.ops.aten
        target, args = {
            _FLASH: (aten._scaled_dot_product_flash_attention.default, (*refs, 0.0, causal, False)),
            _CUDNN: (aten._scaled_dot_product_cudnn_attention.default, (*refs, None, False, 0.0, causal, False)),
            _EFFICIENT: (aten._scaled_dot_product_efficient_attention.default, (*refs, None, False, 0.0, causal)),
        }[form]
        op = Extern(target, args, scale, (out.strides,), str(target), (0,), True)
        schedule.buffers[out.name] = replace(out, role="extern")
        return [ExternKernel(op, kernel.inputs, (out.name,))]
