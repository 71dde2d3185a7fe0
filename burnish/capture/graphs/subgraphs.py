"""The graphs within a graph: bodies of its higher-order operations, at any depth."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from torch import fx


def graphs_within(graph: fx.GraphModule) -> Iterator[fx.GraphModule]:
    """The graph itself, and all within it."""
    return (module for module in graph.modules() if isinstance(module, fx.GraphModule))


_Rewrite = Callable[[fx.Node, fx.GraphModule], None]


def rewritten(graph: fx.GraphModule, concerns: Callable[[fx.Node], bool], rewrite: _Rewrite) -> fx.GraphModule:
    """The graph itself if `concerns` is false for all its nodes, nested graphs included. Otherwise a copy in which
    `rewrite` was called with each such node and its (copied) graph."""
    if not any(concerns(node) for each in graphs_within(graph) for node in each.graph.nodes):
        return graph
    made = copied(graph)
    for each in list(graphs_within(made)):
        concerned = [node for node in each.graph.nodes if concerns(node)]
        for node in concerned:
            rewrite(node, each)
        if concerned:
            each.recompile()
    return made


def copied(graph: fx.GraphModule) -> fx.GraphModule:
    """A copy of the graph and of all graphs within it, over the same tensors. `meta` is copied too (such as the policy
    by which a checkpointed region selects saved tensors)."""
    like = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    like.output(like.graph_copy(graph.graph, copies))
    made = fx.GraphModule(graph, like)
    made.meta = dict(graph.meta)
    modules = dict(made.named_modules(remove_duplicate=False))
    for name in {str(node.target) for node in like.nodes if node.op == "get_attr"}:
        inner = modules.get(name)
        if isinstance(inner, fx.GraphModule):
            made.set_submodule(name, copied(inner))
    return made
