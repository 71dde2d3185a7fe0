"""ATen's operators as objects."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from burnish.torch_private.names import PrivateName, lookup_in

if TYPE_CHECKING:
    from torch._C import DispatchKey as DispatchKey
    from torch._ops import HigherOrderOperator as HigherOrderOperator
    from torch._ops import OpOverload as OpOverload
    from torch._ops import OpOverloadPacket as OpOverloadPacket
    from torch.utils import _pytree as pytree


def _add() -> object:
    return torch.ops.aten.add.Tensor


def _cond() -> object:
    return torch.ops.higher_order.cond


NAMES = (
    PrivateName("torch._ops.OpOverload", "one overload of an operator"),
    PrivateName("torch._ops.OpOverloadPacket", "all overloads of one"),
    PrivateName("torch._ops.HigherOrderOperator", "an operator that takes functions"),
    PrivateName("torch._ops.OpOverload._schema", "an operator's arguments, and what it writes", on=_add),
    PrivateName("torch._ops.OpOverload._overloadname", "an operator's name", on=_add),
    PrivateName(
        "torch._ops.OpOverload._dispatch_cache", "emptied when an operation is differentiated as in eager", on=_add
    ),
    PrivateName("torch._ops.OpOverload._op_dk", "calls one kernel of an operator", on=_add),
    PrivateName("torch._ops.HigherOrderOperator._name", "a higher-order operator's name", on=_cond),
    PrivateName("torch.utils._pytree", "takes arguments apart into tensors"),
    PrivateName("torch._C.DispatchKey", "names autograd's own kernels"),
)

__getattr__ = lookup_in(globals(), NAMES)


def _of_aten(name: str) -> Any:
    """An operator that graphs contain and no function of torch is called after; None if this torch has none."""
    return getattr(getattr(torch.ops.aten, name, None), "default", None)


TO_COPY = _of_aten("_to_copy")
UNSAFE_VIEW = _of_aten("_unsafe_view")
CPU_ATTENTION = _of_aten("_scaled_dot_product_flash_attention_for_cpu")
