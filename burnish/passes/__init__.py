"""Graph → Graph rewrites, run in order by one driver that times, dumps and verifies them.

A pass is a rule for one node (`rewrite.py`), and a `GraphPass` in the same file that says after which pass it runs.
"""

from __future__ import annotations

from collections.abc import Callable

from burnish.fuel import Fuel
from burnish.ir.graph import Graph
from burnish.pass_order import declared, in_order
from burnish.passes.graph_pass import GraphPass
from burnish.passes.rewrite import rewrite

PASSES = in_order(declared(__name__, GraphPass))


def run_passes(graph: Graph, fuel: Fuel, each: Callable[[str, Graph], None], target: str = "cpu") -> Graph:
    """`each(name, graph)` is called after every pass: the driver dumps and verifies there. `target` is the kind of
    device that the graph is for."""
    for step in PASSES:
        if target in step.targets:
            graph = rewrite(graph, step.rule, step.name, fuel)
            each(step.name, graph)
    return graph
