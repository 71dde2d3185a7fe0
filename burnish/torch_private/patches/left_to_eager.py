"""What Dynamo traces as if it were something else: it breaks the graph there, or leaves the call to eager."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

from burnish.torch_private.aot import tag_activation_checkpoint
from burnish.torch_private.dynamo import Unsupported
from burnish.torch_private.operators import pytree
from burnish.torch_private.patches.replacing import replaced
from burnish.torch_private.variables import (
    AutogradFunctionContextVariable,
    CheckpointHigherOrderVariable,
    RandomVariable,
    TensorVariable,
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
    ask, call = (getattr(context, name, None) for name in ("var_getattr", "call_method"))
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

    with replaced(context, "var_getattr", asked), replaced(context, "call_method", called):
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


def _requires_grad(variable: Any) -> bool:
    tensor = variable.realize()
    if not isinstance(tensor, TensorVariable):
        return False
    value = tensor.as_proxy().node.meta.get("example_value")
    return isinstance(value, torch.Tensor) and value.requires_grad


def _makes_gradients(graph: torch.fx.Graph) -> bool:
    """Whether what the last of a graph's regions returns requires a gradient."""
    regions = graph.find_nodes(op="call_function", target=tag_activation_checkpoint)
    values = pytree.tree_leaves(regions[-1].meta.get("example_value")) if regions else [None]
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
