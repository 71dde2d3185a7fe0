"""Attributes of modules and of compiled functions."""

from __future__ import annotations

import torch

from burnish.torch_private.names import LAZY_WEIGHTS, PrivateName

_WITH_WRAPPER = "calls that eager serves go through one wrapper more"


def _module() -> object:
    return torch.nn.Identity()


def _lazy_module() -> object:
    return torch.nn.LazyLinear(1)


NAMES = (
    PrivateName(
        "torch.nn.modules.lazy.LazyModuleMixin._initialize_hook",
        "whether a lazy module has still to make its weights",
        on=_lazy_module,
        fallback=LAZY_WEIGHTS,
    ),
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
