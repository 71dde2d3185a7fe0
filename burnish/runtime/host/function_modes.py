"""Function modes (`torch.overrides.TorchFunctionMode`) around a call.

A mode of the user's own sees and may change every torch function that the original calls, and nothing that compiled
code calls. So calls under such modes run in eager. The mode behind `torch.set_default_device` and `with torch.device`
only places new tensors; Dynamo traces and guards on it. Whatever we do ourselves around a call, a mode must not see.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch

from burnish.torch_private.dispatch import (
    DeviceContext,
    DisableTorchFunction,
    get_current_function_mode_stack,
    len_torch_function_stack,
)

A = TypeVar("A")
R = TypeVar("R")


def default_devices() -> tuple[torch.device, ...] | None:
    """The devices of the active modes, if all of them only place new tensors."""
    modes = get_current_function_mode_stack()
    if all(type(mode) is DeviceContext for mode in modes):
        return tuple(mode.device for mode in modes)
    return None


def users_modes_are_active() -> bool:
    return len_torch_function_stack() > 0 and default_devices() is None


def unseen(function: Callable[[A], R], argument: A) -> R:
    """Call it without any mode."""
    with DisableTorchFunction():
        return function(argument)
