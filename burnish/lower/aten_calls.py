"""Questions about captured ATen calls that only torch's private names answer."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from burnish.torch_private.operators import OpOverload
from burnish.torch_private.tensors import neg_view


def is_aten_call(target: Any) -> bool:
    """A call of an operator, not of Python's own getitem or arithmetic on sizes."""
    return isinstance(target, OpOverload)


def spelling(target: Any) -> str:
    """How the operator is written in Python: torch.ops.aten.add.Tensor."""
    return f"torch.ops.{target._schema.name.replace('::', '.')}.{target._overloadname}"


def mutates(node: fx.Node) -> bool:
    """Whether an operation writes to something that it is given."""
    schema = getattr(node.target, "_schema", None)
    return schema is not None and schema.is_mutable


def blank_like(x: torch.Tensor) -> torch.Tensor:
    """Memory of its own with x's form and bits."""
    return with_bits_of(x, torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=x.device))


def with_bits_of(x: torch.Tensor, made: torch.Tensor) -> torch.Tensor:
    """A view whose memory means what x's does: its values, or their negatives or conjugates."""
    made = torch.conj(made) if x.is_conj() else made
    return neg_view(made) if x.is_neg() else made


def in_memory(gradient: Any) -> Any:
    """A gradient whose values lie in memory as they are, which is where compiled code reads them. Autograd also hands
    on zeros that lie nowhere (the gradient of `sgn`), and hooks what is negated or conjugated lazily."""
    if not isinstance(gradient, torch.Tensor):
        return gradient
    if gradient._is_zerotensor():
        return torch.zeros(gradient.shape, dtype=gradient.dtype, device=gradient.device)
    return gradient.resolve_neg().resolve_conj()  # itself where neither is so


def memory_of(tensor: torch.Tensor) -> int:
    """Equal for tensors, fake ones too, that share memory."""
    return int(tensor.untyped_storage()._cdata)


def memory_of_node(node: Any) -> int | None:
    """The same for a node of a traced graph; None where it is no tensor with memory of its own kind."""
    value = node.meta.get("val") if isinstance(node, fx.Node) else None
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
        return None
    return memory_of(value)
