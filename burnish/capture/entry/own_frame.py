"""The code object that an entrance enters, and the source location of its target."""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable
from typing import Any

import torch

from burnish.capture.entry.calling_frame import frame_calling, frame_copying, name_of
from burnish.capture.entry.diagnosis import Place
from burnish.torch_private.dynamo import check as is_skipped


def own_frame(target: Callable[..., Any]) -> types.FunctionType:
    """A function that calls `target`, with its own code object."""
    return frame_copying(target) if _is_traceable_function(target) else frame_calling(target)


def _is_traceable_function(target: Callable[..., Any]) -> bool:
    return isinstance(target, types.FunctionType) and not is_skipped(target)


def runs_outside_its_call(target: Callable[..., Any]) -> str:
    """The reason why a function cannot be compiled for any arguments."""
    written = target.forward if isinstance(target, torch.nn.Module) else target
    if inspect.isgeneratorfunction(written) or inspect.isasyncgenfunction(written):
        return "a generator function: its body runs when it is iterated, after the call, in eager"
    if inspect.iscoroutinefunction(written):
        return "a coroutine: its body runs when it is awaited, after the call, in eager"
    return ""


def place_of(target: Any) -> Place:
    """The source location: a module's forward, or the function."""
    is_module = isinstance(target, torch.nn.Module)
    name = type(target).__name__ if is_module else name_of(target)
    written = type(target).forward if is_module else inspect.unwrap(target)
    code = getattr(getattr(written, "__func__", written), "__code__", None)
    if code is None:
        return Place("<unknown>", 0, name)
    return Place(code.co_filename, code.co_firstlineno, name, _positional(target.forward if is_module else target))


def _positional(function: Callable[..., Any]) -> tuple[str, ...]:
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return ()
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return tuple(parameter.name for parameter in parameters if parameter.kind in kinds)
