"""The proof that padding is safe (`burnish/shapes/padding.py`), for a graph as a backend gets it from Dynamo."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from torch import fx

from burnish.bucketed.form import Padded
from burnish.bucketed.tracer import Proven, Unprovable
from burnish.capture.proof_graphs import graph_for_proof, symbol_of
from burnish.shapes.padding import prove

_FILL, _FINITE, _UNMASKED = "fill", "finite", "unmasked"  # what a call guarantees, or checks


def prove_padding(graph: fx.GraphModule, examples: Sequence[Any], padded: Sequence[Padded]) -> Proven:
    """Raises Unprovable. Called within the backend. What buffers hold is not taken for granted: they may change."""
    found = graph_for_proof(graph, examples)
    if found.captured is None:
        raise Unprovable(found.problem)
    symbols: dict[str, str] = {}
    for each in padded:
        for dim, name in each.dims.items():
            symbol = symbol_of(found.captured, each.position, dim)
            if symbol is None:
                raise Unprovable(f"the dimension {name} of {each.name} has a fixed size in the graph")
            symbols[symbol.name] = name
    fills = {each.position: each.fill for each in padded}
    facts = dataclasses.replace(
        found.facts, ranges={}, names={**found.facts.names, **{p.position: p.name for p in padded}}
    )
    proof = prove(found.captured.graph, symbols, fills, facts)
    if not proof.safe:
        first, *rest = proof.refusals
        raise Unprovable(f"{first}{f' (and {len(rest)} more)' if rest else ''}")
    if {each.position: frozenset(each.dims) for each in proof.inputs} != {
        each.position: frozenset(each.dims) for each in padded
    }:
        raise Unprovable("an input that is not padded has a padded size")
    kinds = {need.kind for need in proof.needs}
    return Proven(tuple(str(need) for need in proof.needs if need.kind != _FILL), _UNMASKED in kinds, _FINITE in kinds)
