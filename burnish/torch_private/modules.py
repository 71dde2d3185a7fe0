"""Attributes of modules and of compiled functions."""

from __future__ import annotations

import torch

from burnish.torch_private.names import PrivateName

_WITH_WRAPPER = "calls that eager serves go through one wrapper more"


def _module() -> object:
    return torch.nn.Identity()


NAMES = (
    PrivateName("torch.nn.Module._modules", "a module's children", on=_module),
    PrivateName("torch.nn.Module._parameters", "its own parameters", on=_module),
    PrivateName("torch.nn.Module._buffers", "its own buffers", on=_module),
    PrivateName("torch.nn.Module._call_impl", "its call, less a wrapper", fallback=_WITH_WRAPPER),
    PrivateName(
        "torch.nn.Module._compiled_call_impl", "whether Module.compile was called", on=_module, fallback=_WITH_WRAPPER
    ),
    PrivateName(
        "torch.nn.Module._apply",
        "a workload's own way to be moved",
        on=_module,
        fallback="that workload cannot be moved",
    ),
)
