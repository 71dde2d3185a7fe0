"""What Dynamo traces as if it were something else: it breaks the graph there, or leaves the call to eager."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import fx
from torch.autograd.function import once_differentiable

from burnish.torch_private.aot import tag_activation_checkpoint
from burnish.torch_private.dispatch import get_dynamic_layer_stack_depth
from burnish.torch_private.dynamo import Unsupported
from burnish.torch_private.operators import pytree
from burnish.torch_private.patches.replacing import name_in, replaced
from burnish.torch_private.variables import (
    AutogradFunctionApplyVariable,
    AutogradFunctionContextVariable,
    AutogradFunctionVariable,
    BuiltinVariable,
    CheckpointHigherOrderVariable,
    ExceptionVariable,
    GradModeVariable,
    RandomVariable,
    TensorVariable,
    TorchCtxManagerClassVariable,
    TorchInGraphFunctionVariable,
    UserDefinedObjectVariable,
    nn_module,
    user_defined,
)


class MakesItsWeights(BaseException):
    """Leaves the trace of a frame that calls a lazy module for the first time: this call is eager's. Not an Exception,
    which Dynamo would take for a failure."""


_LAZY = "initialize_lazy_module"


@contextlib.contextmanager
def leaving_lazy_modules() -> Iterator[None]:
    """While open, tracing a lazy module that has no weights raises MakesItsWeights."""
    ordinary = getattr(nn_module, _LAZY, None)
    if ordinary is None:
        yield
        return

    def refuse(tx: Any, module: torch.nn.Module, *call: Any) -> None:
        if hasattr(module, "_initialize_hook"):
            raise MakesItsWeights
        ordinary(tx, module, *call)

    with replaced(nn_module, _LAZY, refuse):
        yield


# Methods of a custom autograd function's context that decide what its backward is given: None, or zeros; and whether an
# input has another history after the call. Dynamo traces some of them as if they did nothing.
_OF_CONTEXTS = ("set_materialize_grads", "mark_dirty")
_MARKS = "mark_non_differentiable"  # of a context that autograd has made: Dynamo takes a note that nobody reads
_FIELD = "materialize_grads"


@contextlib.contextmanager
def leaving_contexts() -> Iterator[None]:
    """While open, Dynamo breaks the graph at an autograd function that asks this of its context: eager calls it."""
    context = AutogradFunctionContextVariable
    asks = name_in(context, "var_getattr", "tp_getattro_impl")  # the second since torch 2.14
    ask, call = (getattr(context, name, None) for name in (asks, "call_method"))
    if ask is None or call is None:
        yield
        return

    def asked(variable: Any, tx: Any, name: str) -> Any:
        # It raises at a method whose name it does not know, as it does everywhere.
        is_left = name in _OF_CONTEXTS or (name == _MARKS and variable.source is not None)
        return call(variable, tx, f"{name} of", [], {}) if is_left else ask(variable, tx, name)

    def called(variable: Any, tx: Any, name: str, args: list[Any], kwargs: dict[str, Any]) -> Any:
        sets = name == "__setattr__" and bool(args) and args[0].as_python_constant() == _FIELD
        return call(variable, tx, f"setting {_FIELD} of" if sets else name, args, kwargs)

    with replaced(context, asks, asked), replaced(context, "call_method", called):
        yield


_CALLS_REGION = "_call_function"
_UNRECORDED = "a reentrant checkpoint none of whose arguments requires a gradient: eager records nothing in it"


@contextlib.contextmanager
def leaving_unrecorded_checkpoints() -> Iterator[None]:
    """While open, Dynamo breaks the graph at a checkpoint that is reentrant in eager and whose results would require
    gradients here, and not there. Dynamo takes both kinds of checkpoint for the one that is not."""
    call = getattr(CheckpointHigherOrderVariable, _CALLS_REGION, None)
    if call is None:
        yield
        return

    def called(variable: Any, tx: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
        is_reentrant = "use_reentrant" not in kwargs or kwargs["use_reentrant"].as_python_constant() in (None, True)
        is_recorded = any(map(_requires_grad, args[1:]))  # of what is in a list or a dictionary, eager knows nothing
        result = call(variable, tx, args, kwargs)
        if is_reentrant and not is_recorded and torch.is_grad_enabled() and _makes_gradients(tx.output.graph):
            raise Unsupported(_UNRECORDED)
        return result

    with replaced(CheckpointHigherOrderVariable, _CALLS_REGION, called):
        yield


@contextlib.contextmanager
def asking_of_checkpoints(why_not: Callable[[fx.Node, fx.GraphModule, list[torch.Tensor]], str]) -> Iterator[None]:
    """While open, `why_not` is asked of each checkpointed region that Dynamo has traced: its node, its graph, and the
    values that stand for the tensors which the checkpoint is given one by one. It answers why the graph is broken
    there; nothing if it is not."""
    call = getattr(CheckpointHigherOrderVariable, _CALLS_REGION, None)
    if call is None:
        yield
        return

    def called(variable: Any, tx: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
        given = [value for value in map(_value, args[1:]) if isinstance(value, torch.Tensor)]
        result = call(variable, tx, args, kwargs)
        region = _last(tx.output.graph, tag_activation_checkpoint)
        if region is not None and (reason := why_not(region, _graph_given(tx, region.args[0]), given)):
            raise Unsupported(reason)
        return result

    with replaced(CheckpointHigherOrderVariable, _CALLS_REGION, called):
        yield


_APPLIED = "autograd_function_apply"


@contextlib.contextmanager
def asking_of_functions(why_not: Callable[[Any, fx.GraphModule, fx.GraphModule], str]) -> Iterator[None]:
    """While open, `why_not` is asked of each custom autograd function that Dynamo has traced: its backward as the
    program has it, and the graphs of its forward and its backward. It answers why the graph is broken there; nothing
    if it is not."""
    call = getattr(AutogradFunctionApplyVariable, "call_function", None)
    if call is None:
        yield
        return

    def called(variable: Any, tx: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
        result = call(variable, tx, args, kwargs)
        latest = reversed(tx.output.graph.nodes)
        applied = next((node for node in latest if getattr(node.target, "__name__", "") == _APPLIED), None)
        graphs = [_graph_given(tx, named) for named in applied.args[:2]] if applied is not None else []
        if graphs and (reason := why_not(variable.bwd_fn, *graphs)):
            raise Unsupported(reason)
        return result

    with replaced(AutogradFunctionApplyVariable, "call_function", called):
        yield


_TRACES_BACKWARD = "trace_backward_graph"
_GRAD_MODE = "a custom autograd function whose backward sets or asks for grad mode, and is traced under no_grad"
_ANOTHER = "a custom autograd function whose backward calls another, of which only the forward would be traced"
_TRANSFORMED = "a custom autograd function in a transform of torch.func: of its backward nothing would be recorded"
_MODES = (torch.no_grad, torch.enable_grad, torch.set_grad_enabled, torch.inference_mode)
_ASKS_FOR_HISTORY = "method_attr_requires_grad"
_ONCE = once_differentiable(print).__code__


@contextlib.contextmanager
def leaving_grad_modes() -> Iterator[None]:
    """While open, Dynamo breaks the graph at a custom autograd function whose backward has to do with grad mode, but
    for one that is once_differentiable. It traces a backward under no_grad: what that does to grad mode is lost, and of
    a function that it calls nothing is recorded. So does `torch.func.grad` record nothing of it; and under
    `torch.vmap` Dynamo sees no gradient required, and traces the forward alone."""
    owners = (
        (AutogradFunctionApplyVariable, _TRACES_BACKWARD),
        (AutogradFunctionVariable, "call_apply"),
        (GradModeVariable, "enter"),
        (TorchCtxManagerClassVariable, "call_function"),
        (TorchInGraphFunctionVariable, "call_function"),
    )
    trace, apply, enter, make, call = (getattr(owner, name, None) for owner, name in owners)
    if trace is None or apply is None or enter is None or make is None or call is None:
        yield
        return
    backwards: list[Any] = []  # that are being traced

    def traced(variable: Any, *arguments: Any) -> Any:
        backwards.append(variable.bwd_fn)
        try:
            return trace(variable, *arguments)
        finally:
            backwards.pop()

    def refuse(tx: Any) -> None:
        """Not what torch's decorator does around the program's own."""
        if backwards and not (tx.f_code is _ONCE and is_once_differentiable(backwards[-1])):
            raise Unsupported(_GRAD_MODE)

    def applied(variable: Any, tx: Any, *arguments: Any) -> Any:
        if backwards:
            raise Unsupported(_ANOTHER)
        if get_dynamic_layer_stack_depth():
            raise Unsupported(_TRANSFORMED)
        return apply(variable, tx, *arguments)

    def entered(variable: Any, tx: Any) -> Any:
        refuse(tx)
        return enter(variable, tx)

    def made(variable: Any, tx: Any, *arguments: Any) -> Any:
        if backwards and variable.value in _MODES:
            refuse(tx)
        return make(variable, tx, *arguments)

    def called(variable: Any, tx: Any, *arguments: Any) -> Any:
        if backwards and variable.value is torch.is_grad_enabled:
            refuse(tx)
        return call(variable, tx, *arguments)

    asked = getattr(TensorVariable, _ASKS_FOR_HISTORY, None)

    def answered(variable: Any, tx: Any) -> Any:
        """A backward that is recorded is given gradients that require some."""
        refuse(tx)
        assert asked is not None
        return asked(variable, tx)

    with contextlib.ExitStack() as stack:
        for (owner, name), replacement in zip(owners, (traced, applied, entered, made, called), strict=True):
            stack.enter_context(replaced(owner, name, replacement))
        if asked is not None:
            stack.enter_context(replaced(TensorVariable, _ASKS_FOR_HISTORY, answered))
        yield


def is_once_differentiable(backward: Any) -> bool:
    """Whether the program decorates it so, outside of all else."""
    return getattr(backward, "__code__", None) is _ONCE


def _graph_given(tx: Any, named: Any) -> Any:
    return tx.output.nn_modules[named.target]


def _last(graph: fx.Graph, target: Any) -> fx.Node | None:
    nodes = graph.find_nodes(op="call_function", target=target)
    return nodes[-1] if nodes else None


def _value(variable: Any) -> Any:
    tensor = variable.realize()
    return tensor.as_proxy().node.meta.get("example_value") if isinstance(tensor, TensorVariable) else None


def _requires_grad(variable: Any) -> bool:
    value = _value(variable)
    return isinstance(value, torch.Tensor) and value.requires_grad


def _makes_gradients(graph: fx.Graph) -> bool:
    """Whether what the last of a graph's regions returns requires a gradient."""
    region = _last(graph, tag_activation_checkpoint)
    values = pytree.tree_leaves(region.meta.get("example_value")) if region is not None else [None]
    return any(value is None or (isinstance(value, torch.Tensor) and value.requires_grad) for value in values)


_DRAWS = "call_random_fn"
_DRAWN = "a number of Python's random module: eager draws it"


@contextlib.contextmanager
def leaving_python_draws() -> Iterator[None]:
    """While open, Dynamo breaks the graph at what Python's `random` draws, and at each method of a generator. It would
    draw from a copy of the generator in the state that this had while tracing, and give a graph doubles for numbers
    whose type depends on what they are combined with."""
    if RandomVariable is None or not hasattr(user_defined, _DRAWS):
        yield
        return
    make = RandomVariable.__init__

    def made(variable: Any, *args: Any, **kwargs: Any) -> None:
        if kwargs.get("source") is None:  # by the function itself
            raise Unsupported(_DRAWN)
        make(variable, *args, **kwargs)

    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise Unsupported(_DRAWN)

    with (
        replaced(RandomVariable, "__init__", made),
        replaced(RandomVariable, "call_method", refuse),
        replaced(user_defined, _DRAWS, refuse),
    ):
        yield


_TEXT = "call_str"


@contextlib.contextmanager
def leaving_texts_of_objects() -> Iterator[None]:
    """While open, Dynamo breaks the graph at `str` of an object whose class has no `__str__` of its own: a dataclass,
    a named tuple, a module. It would ask the object itself, as it was before the call, and guard on nothing. It takes
    `str` of an exception for that of its arguments: the graph breaks where the exception's class has another."""
    ordinary = getattr(BuiltinVariable, _TEXT, None)
    if ordinary is None:
        yield
        return

    def texted(variable: Any, tx: Any, given: Any, *others: Any) -> Any:
        asked = given.realize()
        kind = getattr(asked, "exc_type", None)
        if kind is None and isinstance(asked, UserDefinedObjectVariable):
            kind = type(asked.value)
            if kind.__str__ is object.__str__:
                raise Unsupported("the text of an object")
        elif kind is not None and kind.__str__ is not BaseException.__str__:
            raise Unsupported("the text of an exception that is not its arguments' text")
        return ordinary(variable, tx, given, *others)

    with replaced(BuiltinVariable, _TEXT, texted):
        yield


_WHERE_RAISED = "python_stack"  # of an exception's variable: where the program's own `raise` is


@contextlib.contextmanager
def leaving_exceptions_of_operations() -> Iterator[None]:
    """While open, Dynamo breaks the graph where a function looks at what an operation has raised (`[].remove(1)`),
    and does not only catch it: the arguments that Dynamo gives such an exception are often not Python's."""
    variables = ExceptionVariable
    asks = name_in(variables, "var_getattr", "tp_getattro_impl")  # the second since torch 2.14
    ask, build = getattr(variables, asks, None), getattr(variables, "reconstruct", None)
    if ask is None or build is None:
        yield
        return

    def refuse(exception: Any) -> None:
        if getattr(exception, _WHERE_RAISED, True) is None:
            raise Unsupported("what an exception says that an operation has raised")

    def asked(exception: Any, tx: Any, name: str) -> Any:
        if name == "args":
            refuse(exception)
        return ask(exception, tx, name)

    def built(exception: Any, codegen: Any) -> Any:
        refuse(exception)
        return build(exception, codegen)

    with contextlib.ExitStack() as stack:
        stack.enter_context(replaced(variables, asks, asked))
        stack.enter_context(replaced(variables, "reconstruct", built))
        for name in ("call_str", "call_repr"):
            stack.enter_context(_refusing(name, refuse))
        yield


@contextlib.contextmanager
def _refusing(name: str, refuse: Callable[[Any], None]) -> Iterator[None]:
    """While open, `refuse` is asked of each exception that is an argument of this method of a built-in function."""
    ordinary = getattr(BuiltinVariable, name, None)
    if ordinary is None:
        yield
        return

    def called(variable: Any, tx: Any, given: Any, *others: Any) -> Any:
        if getattr(given.realize(), "exc_type", None) is not None:
            refuse(given.realize())
        return ordinary(variable, tx, given, *others)

    with replaced(BuiltinVariable, name, called):
        yield
