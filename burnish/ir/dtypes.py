"""Element types, and the type a value of each is computed in."""

from __future__ import annotations

import builtins
from enum import Enum

import torch


class DType(Enum):
    f64 = "f64"
    f32 = "f32"
    f16 = "f16"
    bf16 = "bf16"
    i64 = "i64"
    i32 = "i32"
    i16 = "i16"
    i8 = "i8"
    u8 = "u8"
    bool = "bool"

    __hash__ = object.__hash__  # each is one object; Enum's own is Python, and instructions are looked up all the time

    @property
    def is_float(self) -> builtins.bool:
        return self in _FLOATS

    @property
    def itemsize(self) -> int:
        return _TORCH[self].itemsize

    @property
    def range(self) -> tuple[int, int]:
        """The least and the greatest integer of an integer type."""
        held = torch.iinfo(_TORCH[self])
        return held.min, held.max

    @property
    def torch(self) -> torch.dtype:
        return _TORCH[self]

    @property
    def compute(self) -> DType:
        """Half types are computed in float: eager rounds after each op, a fused chain only where it is stored."""
        return DType.f32 if self in (DType.f16, DType.bf16) else self


_FLOATS = frozenset({DType.f64, DType.f32, DType.f16, DType.bf16})
_TORCH: dict[DType, torch.dtype] = {
    DType.f64: torch.float64,
    DType.f32: torch.float32,
    DType.f16: torch.float16,
    DType.bf16: torch.bfloat16,
    DType.i64: torch.int64,
    DType.i32: torch.int32,
    DType.i16: torch.int16,
    DType.i8: torch.int8,
    DType.u8: torch.uint8,
    DType.bool: torch.bool,
}
_FROM_TORCH = {t: d for d, t in _TORCH.items()}


def from_torch(dtype: torch.dtype) -> DType | None:
    """None for types no kernel of ours computes in (complex, float8, wide unsigned): they stay in ATen calls."""
    return _FROM_TORCH.get(dtype)
