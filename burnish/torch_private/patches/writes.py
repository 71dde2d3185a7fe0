"""What Dynamo misses of tensors, classes and modules that a function writes."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Iterator
from typing import Any

from burnish.torch_private.dynamo import OutputGraph, Unsupported
from burnish.torch_private.patches.replacing import replaced
from burnish.torch_private.variables import (
    AttributeMutationNew,
    PythonModuleVariable,
    SideEffects,
    TensorVariable,
    UserDefinedClassVariable,
)

_NUMBERS_OUT = "remove_tensorify_specialized_graphargs"


@contextlib.contextmanager
def keeping_writes_to_numbers() -> Iterator[None]:
    """Dynamo takes out of a graph the inputs that are numbers to it and that nobody reads, and by mistake also every
    call that returns such an input: those that write to it."""
    ordinary = getattr(OutputGraph, _NUMBERS_OUT, None)
    if ordinary is None:
        yield
        return

    def of_inputs_only(output: OutputGraph) -> None:
        made = [node for node in output.graph.nodes if node.op != "placeholder" and "example_value" in node.meta]
        values = [node.meta.pop("example_value") for node in made]
        try:
            ordinary(output)
        finally:
            for node, value in zip(made, values, strict=True):
                node.meta["example_value"] = value

    with replaced(OutputGraph, _NUMBERS_OUT, of_inputs_only):
        yield


_AFTER_A_WRITE, _TAKES_ANOTHER = "_sync_if_inplace_mutation", "has_tensor_arg"


@contextlib.contextmanager
def noticing_other_shapes() -> Iterator[None]:
    """Dynamo asks what a tensor has become only after operations in place that take another: `unsqueeze_` is none."""
    ordinary = getattr(TensorVariable, _AFTER_A_WRITE, None)
    if ordinary is None or _TAKES_ANOTHER not in inspect.signature(ordinary).parameters:  # torch 2.14 asks after all
        yield
        return

    def after_any(variable: TensorVariable, tx: Any, before: int | None, has_tensor_argument: bool) -> None:
        ordinary(variable, tx, before, True)

    with replaced(TensorVariable, _AFTER_A_WRITE, after_any):
        yield


_WRITES_ATTRIBUTE = "store_attr"


@contextlib.contextmanager
def leaving_writes_to_classes() -> Iterator[None]:
    """While open, Dynamo breaks the graph at a write to an attribute of a class, which it would not see in objects of
    the class and in classes derived from it; and of the function's own module, which it would not see in its globals.
    """
    ordinary = getattr(SideEffects, _WRITES_ATTRIBUTE, None)
    if ordinary is None:
        yield
        return

    def written(effects: Any, owner: Any, name: str, value: Any, *args: Any, **kwargs: Any) -> None:
        is_new = isinstance(getattr(owner, "mutation_type", None), AttributeMutationNew)
        if isinstance(owner, UserDefinedClassVariable) and not is_new:
            raise Unsupported("a write to an attribute of a class")
        if isinstance(owner, PythonModuleVariable) and vars(owner.value) is _globals(effects):
            raise Unsupported("a write to an attribute of the module whose globals the function reads")
        ordinary(effects, owner, name, value, *args, **kwargs)

    with replaced(SideEffects, _WRITES_ATTRIBUTE, written):
        yield


def _globals(effects: Any) -> Any:
    output = effects.output_graph_weakref()
    return None if output is None else output.global_scope
