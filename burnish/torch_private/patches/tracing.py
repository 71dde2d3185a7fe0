"""Places where burnish takes part in what torch does while it traces."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from typing import Any

import torch

from burnish.torch_private.dynamo import OutputGraph, convert_frame
from burnish.torch_private.dynamo import guards as dynamo_guards
from burnish.torch_private.patches.replacing import replaced
from burnish.torch_private.variables import (
    LazyConstantVariable,
    ListVariable,
    TupleVariable,
    UnspecializedNNModuleVariable,
    UserFunctionVariable,
    VariableBuilder,
)

_CALLS = "call_function"


@contextlib.contextmanager
def noticing_environment(notice: Callable[[str], None]) -> Iterator[None]:
    """While open, `notice` is called with the name of each environment variable that a traced function asks for: all
    ways to one of them (`os.environ`, `os.getenv`, in the standard library, too) encode its name by one function."""
    ordinary = getattr(UserFunctionVariable, _CALLS, None)
    encode = getattr(os.environ, "encodekey", None)
    if ordinary is None or encode is None:
        yield
        return

    def called(variable: Any, tx: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
        if variable.fn is encode and args[-1].is_python_constant():
            notice(args[-1].as_python_constant())
        return ordinary(variable, tx, args, kwargs)

    with replaced(UserFunctionVariable, _CALLS, called):
        yield


@contextlib.contextmanager
def noticing_breaks(notice: Callable[[bool], None]) -> Iterator[None]:
    """While open, `notice` is told how each traced part of a frame ends: whether the graph breaks there, or the frame
    returns. (A break whose function is called last leaves no trace in Dynamo's code.)"""
    ordinary = getattr(OutputGraph, "compile_subgraph", None)
    if ordinary is None:
        yield
        return

    def compiled(output: Any, tx: Any, reason: Any, *others: Any, **named: Any) -> Any:
        notice(getattr(reason, "graph_break", True))
        return ordinary(output, tx, reason, *others, **named)

    with replaced(OutputGraph, "compile_subgraph", compiled):
        yield


def making_guards_with(manager: type[Any]) -> contextlib.AbstractContextManager[None]:
    """The class of which Dynamo makes the guards of a frame."""
    return replaced(convert_frame, "CheckFunctionManager", manager)


def writing_guards_with(change: Callable[..., Callable[..., str]]) -> contextlib.AbstractContextManager[None]:
    """How a guard is written as text, beside what it checks. `change` is given the ordinary way."""
    return replaced(dynamo_guards, "get_verbose_code_part", change(dynamo_guards.get_verbose_code_part))


def calling_modules_with(call: Callable[..., Any]) -> contextlib.AbstractContextManager[None]:
    """What Dynamo does where the function that it traces calls a module."""
    return replaced(UnspecializedNNModuleVariable, "call_function", call)


@contextlib.contextmanager
def building_constants_with(create: Callable[..., Any], build: Callable[..., Any], items: property) -> Iterator[None]:
    """How Dynamo makes a variable of a constant, and of any value, and how it reads what a list holds."""
    with (
        replaced(LazyConstantVariable, "create", staticmethod(create)),
        replaced(VariableBuilder, "__call__", build),
    ):
        for held in (ListVariable, TupleVariable):
            setattr(held, "items", items)  # noqa: B010
        try:
            yield
        finally:
            for held in (ListVariable, TupleVariable):
                delattr(held, "items")


@contextlib.contextmanager
def noticing_functions(notice: Callable[[type[Any]], None]) -> Iterator[None]:
    """`notice` is called with each class of AOTAutograd's that derives from torch.autograd.Function."""
    ordinary = torch.autograd.Function.__dict__.get("__init_subclass__")

    def noticed(cls: type[Any], **keywords: Any) -> None:
        super(torch.autograd.Function, cls).__init_subclass__(**keywords)
        if cls.__module__.startswith("torch._functorch"):
            notice(cls)

    torch.autograd.Function.__init_subclass__ = classmethod(noticed)  # type: ignore[assignment]
    try:
        yield
    finally:
        if ordinary is None:
            del torch.autograd.Function.__init_subclass__
        else:
            torch.autograd.Function.__init_subclass__ = ordinary  # type: ignore[method-assign]
