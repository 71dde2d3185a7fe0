"""The functions that an entrance enters, each with a code object of its own. Nothing here needs TorchDynamo."""

from __future__ import annotations

import itertools
import types
from collections.abc import Callable
from typing import Any

import torch

_serial = itertools.count(1)


def frame_calling(target: Callable[..., Any]) -> types.FunctionType:
    def call(*args: Any, **kwargs: Any) -> Any:
        return target(*args, **kwargs)

    call.__name__ = type(target).__name__ if isinstance(target, torch.nn.Module) else name_of(target)
    return _renamed(call)


def frame_copying(function: Any) -> types.FunctionType:
    """The same code, under another name."""
    copy = types.FunctionType(
        function.__code__, function.__globals__, function.__name__, function.__defaults__, function.__closure__
    )
    copy.__kwdefaults__ = function.__kwdefaults__
    return _renamed(copy)


def _renamed(function: Any) -> types.FunctionType:
    # The name is part of Dynamo's key for recorded sizes (file, line, name).
    function.__code__ = function.__code__.replace(co_name=f"{function.__name__}__{next(_serial)}")
    renamed: types.FunctionType = function
    return renamed


def name_of(target: Callable[..., Any]) -> str:
    return getattr(target, "__name__", type(target).__name__)
