"""What a tensor does not tell in public: its version, its memory, its base."""

from __future__ import annotations

from typing import TYPE_CHECKING

from burnish.torch_private.names import PrivateName, lookup_in

if TYPE_CHECKING:
    from torch import _debug_has_internal_overlap as debug_has_internal_overlap
    from torch import _foreach_copy_ as foreach_copy_
    from torch import _neg_view as neg_view
    from torch._C import TensorBase as TensorBase
    from torch._C import _dispatch_keys as dispatch_keys
    from torch._C import _storage_Use_Count as storage_Use_Count

NAMES = (
    PrivateName("torch.Tensor._version", "whether a tensor was written to"),
    PrivateName("torch.Tensor._is_view", "whether it is a view"),
    PrivateName("torch.Tensor._base", "what it is a view of"),
    PrivateName("torch.Tensor._backward_hooks", "whether somebody waits for its gradient"),
    PrivateName("torch.Tensor._post_accumulate_grad_hooks", "whether somebody waits until it has a gradient"),
    PrivateName("torch.Tensor._is_zerotensor", "whether it stands for zeros that lie in no memory"),
    PrivateName(
        "torch.Tensor._cdata", "where the C++ tensor is", fallback="the host's part of a call is done in Python"
    ),
    PrivateName("torch.Tensor._has_symbolic_sizes_strides", "whether its sizes are symbols"),
    PrivateName("torch.UntypedStorage._cdata", "tells tensors that share memory"),
    PrivateName(
        "torch._C.TensorBase", "the class of tensors in C", fallback="the host's part of a call is done in Python"
    ),
    PrivateName("torch._C._dispatch_keys", "what kind of tensor it is"),
    PrivateName("torch._debug_has_internal_overlap", "whether elements of a result share memory"),
    PrivateName("torch._neg_view", "a view that is lazily negated"),
    PrivateName("torch._foreach_copy_", "copies many tensors at once"),
    PrivateName("torch._C._storage_Use_Count", "whether results of a CUDA graph are still in use"),
)

__getattr__ = lookup_in(globals(), NAMES)
