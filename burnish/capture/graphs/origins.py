"""The modules from which a graph's nodes come, by name.

Dynamo records the classes themselves. A compiled code object keeps the graph alive and is opaque to the garbage
collector. So a class made in a function, whose methods refer to the compiled object, would never be freed.
"""

from __future__ import annotations

import torch
from torch import fx

_STACK = "nn_module_stack"


def name_classes(graph: fx.GraphModule) -> None:
    """As in torch.export: each class by its name."""
    named: dict[tuple[object, ...], tuple[object, ...]] = {}
    for module in graph.modules():
        if isinstance(module, fx.GraphModule):
            for node in module.graph.nodes:
                if stack := node.meta.get(_STACK):
                    node.meta[_STACK] = {key: _named(place, named) for key, place in stack.items()}


def _named(place: tuple[object, ...], named: dict[tuple[object, ...], tuple[object, ...]]) -> tuple[object, ...]:
    known = named.get(place)
    if known is None:
        known = named[place] = tuple(torch.typename(x) if isinstance(x, type) else x for x in place)
    return known
