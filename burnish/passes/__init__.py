"""Graph → Graph rewrites: one line a pass, run in order by one driver that times, dumps and verifies them."""

from __future__ import annotations

from collections.abc import Callable

from burnish.fuel import Fuel
from burnish.ir.graph import Graph
from burnish.passes.attention import attend
from burnish.passes.fold import drop_identities, fold_constants, gather_to_view, scatter_onto
from burnish.passes.rewrite import Rule, rewrite
from burnish.passes.sink import sink_gathers

PASSES: tuple[tuple[str, Rule], ...] = (
    ("fold", fold_constants),  # arithmetic on constants and on positions whose bounds decide it
    ("identities", drop_identities),  # x * 1, where(True, ...), casts that change nothing
    ("gathers", gather_to_view),  # reads at positions known in advance need no index tensor
    ("onto", scatter_onto),  # a tied embedding's gradient goes on top of the output layer's
    ("sink", sink_gathers),  # a few elements are looked up first and computed on then
)
ON_GPU: tuple[tuple[str, Rule], ...] = (
    ("attention", attend),  # few queries' attention, written out, is one operation
)


def run_passes(graph: Graph, fuel: Fuel, each: Callable[[str, Graph], None], target: str = "cpu") -> Graph:
    """`each(name, graph)` is called after every pass: the driver dumps and verifies there. `target` is the kind of
    device that the graph is for."""
    for name, rule in (*(ON_GPU if target == "cuda" else ()), *PASSES):
        graph = rewrite(graph, rule, name, fuel)
        each(name, graph)
    return graph
