"""Custom autograd functions of a captured graph, run in eager so that their gradients can be differentiated.

Dynamo keeps such a function as one operation, with a graph for its forward and one for its backward. It traces the
backward as a plain backward runs, under no_grad, and that stands in the graph: run in eager with `create_graph=True`,
it records nothing, and the second derivative is silently zero. The eager form of a graph leaves grad mode as autograd
sets it; what the user's backward itself does under no_grad stays so.
"""

from __future__ import annotations

from torch import fx

from burnish.capture.graphs.called import function_name

_OPERATION, _SETTING = "autograd_function_apply", "_set_grad_enabled"


def recording_custom_backwards(graph: fx.GraphModule) -> fx.GraphModule:
    """The graph, or one like it, whose custom functions have backwards that autograd records if it is asked to."""
    applied = [node for node in graph.graph.nodes if function_name(node) == _OPERATION]
    if not applied:
        return graph
    like = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    like.output(like.graph_copy(graph.graph, copies))
    made = fx.GraphModule(graph, like)
    for node in applied:
        backward = copies[node].args[1]
        assert isinstance(backward, fx.Node) and isinstance(backward.target, str)
        backward.target = _add(made, backward.target, _recorded(graph.get_submodule(backward.target)))
    made.recompile()
    return made


def _recorded(backward: object) -> fx.GraphModule:
    assert isinstance(backward, fx.GraphModule)
    inner = recording_custom_backwards(backward)
    like = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    like.output(like.graph_copy(inner.graph, copies))
    computed = [node for node in like.nodes if node.op == "call_function"]
    settings = [node for node in computed if function_name(node) == _SETTING]
    if (
        len(settings) >= 2
        and settings[0] is computed[0]
        and settings[0].args == (False,)
        and settings[-1].args == (True,)
    ):
        like.erase_node(settings[0])
        like.erase_node(settings[-1])
    return fx.GraphModule(inner, like)


def _add(graph: fx.GraphModule, name: str, module: fx.GraphModule) -> str:
    name = f"{name}_recorded"
    while hasattr(graph, name):
        name += "_"
    graph.add_submodule(name, module)
    return name
