"""Fake tensors: sizes and types without memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from burnish.torch_private.names import PrivateName, lookup_in

if TYPE_CHECKING:
    from torch._subclasses.fake_tensor import FakeTensor as FakeTensor
    from torch._subclasses.fake_tensor import FakeTensorMode as FakeTensorMode

NAMES = (
    PrivateName("torch._subclasses.fake_tensor.FakeTensor", "what a graph's values are while it is traced"),
    PrivateName("torch._subclasses.fake_tensor.FakeTensorMode", "makes and runs them"),
)

__getattr__ = lookup_in(globals(), NAMES)
