"""Questions about captured ATen calls that only torch's private names answer."""

from __future__ import annotations

from typing import Any

import torch


def is_aten_call(target: Any) -> bool:
    """A call of an operator, not of Python's own getitem or arithmetic on sizes."""
    return isinstance(target, torch._ops.OpOverload)


def spelling(target: Any) -> str:
    """How the operator is written in Python: torch.ops.aten.add.Tensor."""
    return f"torch.ops.{target._schema.name.replace('::', '.')}.{target._overloadname}"


def memory_of(tensor: torch.Tensor) -> int:
    """Equal for tensors, fake ones too, that share memory."""
    return int(tensor.untyped_storage()._cdata)
