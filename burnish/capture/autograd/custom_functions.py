"""Custom autograd functions of a captured graph, run in eager so that their gradients can be differentiated.

Dynamo keeps such a function as one operation, with a graph for its forward and one for its backward. It traces the
backward as in a plain backward, under no_grad, and the graph contains that no_grad. Run in eager with
`create_graph=True`, such a backward records nothing, and the second derivative is silently zero. The eager form of a
graph therefore keeps the grad mode that autograd sets. (Backwards that change grad mode themselves are not traced.)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import fx
from torch.autograd.function import once_differentiable

from burnish.capture.graphs.called import function_name
from burnish.capture.graphs.subgraphs import rewritten

_OPERATION, _SETTING = "autograd_function_apply", "_set_grad_enabled"
_ONCE = "burnish_once_differentiable"


def recording_custom_backwards(graph: fx.GraphModule) -> fx.GraphModule:
    """The graph, or a copy, whose custom functions (nested ones and those in checkpointed regions included) have
    backwards that autograd can record."""
    return rewritten(graph, lambda node: function_name(node) == _OPERATION, _record)


def _record(node: fx.Node, graph: fx.GraphModule) -> None:
    named = node.args[1]
    assert isinstance(named, fx.Node) and isinstance(named.target, str)
    backward = graph.get_submodule(named.target)
    assert isinstance(backward, fx.GraphModule)
    computed = [node for node in backward.graph.nodes if node.op == "call_function"]
    settings = [node for node in computed if function_name(node) == _SETTING]
    if (
        len(settings) >= 2
        and settings[0] is computed[0]
        and settings[0].args == (False,)
        and settings[-1].args == (True,)
    ):
        backward.graph.erase_node(settings[0])
        backward.graph.erase_node(settings[-1])
        backward.recompile()
    gradients = backward.meta.pop(_ONCE, None)
    if gradients is not None:
        graph.set_submodule(named.target, _differentiated_once(backward, gradients))


def note_once_differentiable(backward: fx.GraphModule, gradients: int) -> None:
    """Record that a function is marked `once_differentiable`. The first `gradients` inputs of its backward are
    gradients."""
    backward.meta[_ONCE] = gradients


def _differentiated_once(backward: fx.GraphModule, gradients: int) -> fx.GraphModule:
    """A graph that calls the backward under `once_differentiable`, as the user's decorator does."""
    graph = fx.Graph()
    inner = graph.get_attr("backward")
    inputs = [graph.placeholder(node.name) for node in backward.graph.find_nodes(op="placeholder")]
    graph.output(graph.call_function(_call_once, (inner, gradients, *inputs)))
    return fx.GraphModule({"backward": backward}, graph)


def _call_once(backward: Callable[..., Any], gradients: int, *inputs: Any) -> Any:
    def run(ctx: None, *given: Any) -> Any:
        return backward(*given, *inputs[gradients:])

    return once_differentiable(run)(None, *inputs[:gradients])
