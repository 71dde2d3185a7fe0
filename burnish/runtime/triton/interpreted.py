"""What Triton's interpreter lacks: CUDA's math library, computed by torch on the interpreter's arrays."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
import triton.language as tl
from triton.runtime.interpreter import TensorHandle

from burnish.codegen.triton.scalar import LIBDEVICE
from burnish.ir.scalar import SCALAR_OPS


def _in_torch(reference: Callable[..., torch.Tensor]) -> Callable[..., Any]:
    def call(*args: Any) -> Any:
        scalar = args[0].type.scalar
        result = reference(*(torch.from_numpy(a.handle.data) for a in args)).numpy()
        block = any(a.type.is_block() for a in args)
        return tl.tensor(TensorHandle(result, scalar), tl.block_type(scalar, list(result.shape)) if block else scalar)

    return call


libdevice = SimpleNamespace(
    sub_rn=_in_torch(torch.sub), **{name: _in_torch(SCALAR_OPS[op].reference) for op, name in LIBDEVICE.items()}
)
