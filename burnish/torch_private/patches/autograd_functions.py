"""What Dynamo makes of `apply` of a custom autograd function otherwise than autograd does."""

from __future__ import annotations

import contextlib
import types
from collections.abc import Callable, Iterator
from typing import Any

import torch

from burnish.torch_private.aot import DynamoAutogradFunctionTraceHelper
from burnish.torch_private.dynamo import Unsupported, graph_break
from burnish.torch_private.guards import AttrSource, GuardBuilder, install_guard
from burnish.torch_private.patches.replacing import replaced
from burnish.torch_private.variables import (
    AutogradFunctionContextVariable,
    AutogradFunctionVariable,
    TensorVariable,
    TupleVariable,
    UserDefinedClassVariable,
    UserMethodVariable,
    VariableTracker,
)

_APPLIES, _TRACES_FORWARD = "call_apply", "fwd_trace_helper"


@contextlib.contextmanager
def applying_functions() -> Iterator[None]:
    """While open, a custom autograd function that is applied where nothing is recorded (no argument requires a
    gradient, or under no_grad) is traced as autograd calls it. Dynamo inlines its forward, as if no autograd function
    were there: with gradients on, without its `setup_context`, with its context if the number of arguments says so."""
    ordinary = getattr(AutogradFunctionVariable, _APPLIES, None)
    if ordinary is None:
        yield
        return

    def applied(variable: Any, tx: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
        given = [each.realize() for each in args]
        if torch.is_grad_enabled() and any(_may_require_grad(each) for each in (*given, *kwargs.values())):
            if _are_some_the_same(given):  # torch 2.11 gives such a tensor one of its gradients
                raise Unsupported("an autograd function that is given a tensor twice")
            return ordinary(variable, tx, args, kwargs)
        if kwargs:
            resolve = getattr(variable, "_resolve_kwargs", None)
            if resolve is None or (given := resolve(given, kwargs)) is None:
                raise Unsupported("an autograd function that is given arguments by name")
        return _unrecorded(variable, tx, given)

    with replaced(AutogradFunctionVariable, _APPLIES, applied):
        yield


def _may_require_grad(variable: Any) -> bool:
    """Autograd looks at tensors that are arguments, not into what else is given."""
    tensor = variable.realize()
    return isinstance(tensor, TensorVariable) and tensor.requires_grad is not False


def _are_some_the_same(variables: list[Any]) -> bool:
    values = [id(_value(each)) for each in variables if isinstance(each, TensorVariable)]
    return len(set(values)) < len(values)


def _value(tensor: Any) -> Any:
    return tensor.as_proxy().node.meta.get("example_value")


def _is_view(tensor: Any) -> bool:
    value = _value(tensor)
    return isinstance(value, torch.Tensor) and value._is_view()


def _unrecorded(variable: Any, tx: Any, args: list[Any]) -> Any:
    function, source = variable.fn_cls, variable.source
    context = AutogradFunctionContextVariable.create(tx, args, {})
    forward = function.forward
    origin = source and AttrSource(source, "forward")
    if isinstance(forward, types.FunctionType):
        called = VariableTracker.build(tx, forward, origin).realize()
    elif isinstance(forward, types.MethodType):
        called = UserMethodVariable(forward.__func__, UserDefinedClassVariable(function), source=origin)
    else:
        raise Unsupported("an autograd function whose forward is no function of Python's")
    if function.setup_context is torch.autograd.Function.setup_context:
        result = VariableTracker.build(tx, _apply).call_function(tx, [called, context, *args], {})
    else:
        setup = VariableTracker.build(tx, function.setup_context, source and AttrSource(source, "setup_context"))
        if source is not None:
            install_guard(AttrSource(source, "setup_context").make_guard(GuardBuilder.CLOSURE_MATCH))
        result = VariableTracker.build(tx, _apply_in_two_steps).call_function(tx, [called, setup, context, *args], {})
    results = result.items if isinstance(result, TupleVariable) else [result]
    if any(_may_require_grad(each) and not _is_view(each) for each in results):
        raise Unsupported("an autograd function that returns a tensor with a history: autograd takes it away")
    return result


def _apply(forward: Callable[..., Any], context: Any, *args: Any) -> Any:
    """What autograd's C++ does, for Dynamo to trace."""
    with torch.no_grad():
        return _as_results(forward(context, *args), args)


def _apply_in_two_steps(
    forward: Callable[..., Any], setup_context: Callable[..., Any], context: Any, *args: Any
) -> Any:
    with torch.no_grad():
        made = forward(*args)
        setup_context(context, args, made)
        return _as_results(made, args)


def _as_results(made: Any, args: tuple[Any, ...]) -> Any:
    if isinstance(made, tuple):
        return tuple([_as_result(each, args) for each in made])
    return _as_result(made, args)


def _as_result(made: Any, args: tuple[Any, ...]) -> Any:
    """An argument is not returned itself."""
    if not isinstance(made, torch.Tensor) or all(made is not each for each in args):
        return made
    return made.detach() if made.requires_grad else made.view_as(made)


@contextlib.contextmanager
def recording_results() -> Iterator[None]:
    """While open, Dynamo breaks the graph at an autograd function that is recorded and returns something that autograd
    passes on as it is, without a history, and in which Dynamo finds tensors: a list, a tuple in a tuple."""
    ordinary = getattr(DynamoAutogradFunctionTraceHelper, _TRACES_FORWARD, None)
    if ordinary is None:
        yield
        return

    def helper(forward: Callable[..., Any]) -> Any:
        def checked(*args: Any, **kwargs: Any) -> Any:
            made = forward(*args, **kwargs)
            for each in made if isinstance(made, tuple) else (made,):
                if not isinstance(each, (torch.Tensor, int, float, str, type(None))):
                    graph_break()
            return made

        return ordinary(checked)

    with replaced(DynamoAutogradFunctionTraceHelper, _TRACES_FORWARD, staticmethod(helper)):
        yield
