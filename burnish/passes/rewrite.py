"""The graph rewriter: visits nodes in order, applies a rule to each, and keeps the nodes that the rule does not
change."""

from __future__ import annotations

from collections.abc import Callable

from burnish.fuel import Fuel
from burnish.ir.graph import Graph, Node, describe
from burnish.lower.builder import Builder

# Given a node over already rewritten inputs, an equal node to use instead, or None to keep it.
Rule = Callable[[Builder, Node, tuple[Node, ...]], Node | None]


def rewrite(graph: Graph, rule: Rule, name: str, fuel: Fuel) -> Graph:
    out = Graph()
    builder = Builder(out)
    new: dict[int, Node] = {}
    for node in graph.nodes:
        inputs = tuple(new[x.id] for x in node.inputs)
        builder.origin = node.origin
        found = rule(builder, node, inputs)
        if found is not None and found.types == node.types and fuel.spend(_step(name, node)):
            new[node.id] = found
            continue
        kept = out.add(node.op, inputs, node.types, node.origin)
        kept.layout = kept.layout if kept.layout is not None else node.layout
        new[node.id] = kept
    swap = lambda x: new[x.id] if isinstance(x, Node) else x  # noqa: E731
    out.inputs = [swap(x) for x in graph.inputs]
    out.outputs = [swap(x) for x in graph.outputs]
    out.mutations = [(new[t.id], new[v.id]) for t, v in graph.mutations]
    out.effects = [new[n.id] for n in graph.effects]
    out.output_layouts = dict(graph.output_layouts)
    out.eliminate_dead()
    return out


def _step(name: str, node: Node) -> str:
    """A rewrite as a person reads it: the pass, the operation, and the ATen call it came from."""
    made_for = f", part of {node.origin}" if node.origin else ""
    return f"{name}: %{node.id} = {describe(node)}{made_for}"
