"""The proof that padding is safe (`burnish/shapes/padding.py`), for a graph as a backend gets it from Dynamo."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from torch import fx

from burnish.bucketed.form import Padded
from burnish.bucketed.tracer import Proven, Unprovable
from burnish.capture.proof_graphs import graph_for_proof, symbol_of
from burnish.ir.expr import Dim, Sym, of
from burnish.ir.graph import Extern, Graph
from burnish.shapes.aten_calls import surely_draws
from burnish.shapes.padding import prove
from burnish.shapes.same_sizes import unify

_FILL, _FINITE = "fill", "finite"  # what a call guarantees, or checks
_UNSEEN = "unseen"  # where it cannot check
# What nobody can check: which numbers of a mask hide depends on the model.
_UNCHECKED = {"unmasked": "a finite mask may hide a whole row", "bounded": "lengths may be beyond the size"}


def prove_padding(graph: fx.GraphModule, examples: Sequence[Any], padded: Sequence[Padded]) -> Proven:
    """Raises Unprovable. Called within the backend. What buffers hold is not taken for granted: they may change."""
    found = graph_for_proof(graph, examples)
    if found.captured is None:
        raise Unprovable(found.problem)
    _refuse_effects(found.captured.graph)
    symbols: dict[str, Sym] = {}  # of each axis
    same: dict[str, Dim] = {}  # its dimensions have one size in each call that is padded
    for each in padded:
        for dim, name in each.dims.items():
            symbol = symbol_of(found.captured, each.position, dim)
            if symbol is None:
                raise Unprovable(f"the dimension {name} of {each.name} has no size of its own in the graph")
            if symbols.setdefault(name, symbol) != symbol:
                same[symbol.name] = of(symbols[name])
    if len({symbol.name for symbol in symbols.values()} - same.keys()) < len(symbols):
        raise Unprovable(f"{' and '.join(symbols)} are one size in the model")
    unify(found.captured.graph, same)
    fills = {each.position: each.fill for each in padded}
    facts = dataclasses.replace(
        found.facts, ranges={}, names={**found.facts.names, **{p.position: p.name for p in padded}}
    )
    names_of = {symbol.name: name for name, symbol in symbols.items()}
    proof = prove(found.captured.graph, names_of, fills, facts)
    if not proof.safe:
        first, *rest = proof.refusals
        raise Unprovable(f"{first}{f' (and {len(rest)} more)' if rest else ''}")
    if {each.position: frozenset(each.dims) for each in proof.inputs} != {
        each.position: frozenset(each.dims) for each in padded
    }:
        raise Unprovable("an input that is not padded has a padded size")
    kinds = {need.kind for need in proof.needs}
    for kind, reason in _UNCHECKED.items():
        if kind in kinds:
            raise Unprovable(reason)
    for need in proof.needs:
        if need.kind == _UNSEEN:
            raise Unprovable(need.text)
    return Proven(tuple(str(need) for need in proof.needs if need.kind != _FILL), _FINITE in kinds)


def _refuse_effects(graph: Graph) -> None:
    """A proof is tested by running the graph again (`validation.py`), which must not change the caller's state."""
    if graph.mutations:
        raise Unprovable("it writes an argument or a buffer, and testing the proof would write it again")
    if any(isinstance(node.op, Extern) and surely_draws(node.op) for node in graph.nodes):
        raise Unprovable("it draws random numbers, and testing the proof would draw more")
