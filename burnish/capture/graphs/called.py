"""Names of the functions that a captured graph's nodes call."""

from __future__ import annotations

from torch import fx

_ATTRIBUTES = {"numpy_T": "T", "matrix_H": "H"}  # the operations that some Dynamos have for them


def function_name(node: fx.Node) -> str:
    """The name of the function that a node calls; empty if it calls none."""
    return str(getattr(node.target, "__name__", node.target)) if node.op == "call_function" else ""


def operation_name(node: fx.Node) -> str:
    """The name in the user's code: of a function, a method, or an attribute that is read."""
    if node.op == "call_method":
        return str(node.target)
    if node.target is getattr:
        return str(node.args[1])
    name = function_name(node)
    return _ATTRIBUTES.get(name, name)


def enters_contexts(graph: fx.Graph) -> bool:
    """Whether it enters dispatch state (autocast, functorch's layers) with plain calls, so that an exception would not
    leave the context."""
    return any("_enter_" in name or "_nesting" in name for name in map(function_name, graph.nodes))
