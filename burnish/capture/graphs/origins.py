"""Which modules a graph's nodes come from: by name.

Dynamo notes the classes themselves. A graph is kept by what was compiled for a code object, into which garbage
collection cannot look; a class made in a function, whose methods refer to the compiled object, would never be freed.
"""

from __future__ import annotations

import torch
from torch import fx

_STACK = "nn_module_stack"


def name_classes(graph: fx.GraphModule) -> None:
    """As torch.export has it: each class by its name."""
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
