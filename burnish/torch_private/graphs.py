"""FX graphs as Dynamo and AOTAutograd pass them on."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from burnish.torch_private.names import NO_REGIONS, PrivateName, lookup_in

if TYPE_CHECKING:
    from torch.fx._lazy_graph_module import _LazyGraphModule as LazyGraphModule


def _graph() -> object:
    return torch.fx.Graph()


def _node() -> object:
    return torch.fx.Graph().placeholder("x")


NAMES = (
    PrivateName(
        "torch.fx._lazy_graph_module._LazyGraphModule", "a graph that writes its Python when it is first called"
    ),
    PrivateName("torch.fx.Graph._root", "the end of a graph's list of nodes", on=_graph, fallback=NO_REGIONS),
    PrivateName("torch.fx.Node._prev", "the last node", on=_node, fallback=NO_REGIONS),
    PrivateName("torch.fx.Node._next", "the nodes after that", on=_node, fallback=NO_REGIONS),
)

__getattr__ = lookup_in(globals(), NAMES)
