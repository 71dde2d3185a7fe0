"""Names of the functions that a captured graph's nodes call."""

from __future__ import annotations

from torch import fx


def function_name(node: fx.Node) -> str:
    """The name of the function that a node calls; empty if it calls none."""
    return str(getattr(node.target, "__name__", node.target)) if node.op == "call_function" else ""


def operation_name(node: fx.Node) -> str:
    """The name in the user's code: of a function, a method, or an attribute that is read."""
    if node.op == "call_method":
        return str(node.target)
    return str(node.args[1]) if node.target is getattr else function_name(node)


def enters_contexts(graph: fx.Graph) -> bool:
    """Whether it enters dispatch state (autocast, functorch's layers) with plain calls, so that an exception would not
    leave the context."""
    return any("_enter_" in name or "_nesting" in name for name in map(function_name, graph.nodes))
