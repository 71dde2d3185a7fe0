"""A variant as data: what a sealed object has of one captured graph."""

from __future__ import annotations

import types
from dataclasses import dataclass
from functools import cached_property

from burnish.assumptions import Assumptions, NumberInput, OtherInput, TensorInput
from burnish.capture.restore.code_identity import Place, Traced
from burnish.capture.restore.graph_source import GraphText, Reference
from burnish.ir.expr import Div, Extreme, Mod, Sym
from burnish.packs.guards import Check, Guards, Mark, State, TensorForm
from burnish.packs.places import Node, NotAPlace, are_nodes, expression_of
from burnish.runtime.cache.data import Codec, NotData
from burnish.trust.record import GateStats
from burnish.trust.shadow_runs import GraphFacts


@dataclass(frozen=True)
class CodeIdentity:
    """The code that was traced, by its content (`restore/code_identity.py`)."""

    frame: str  # the frame's own
    calls_target: bool  # whether the frame is burnish's, which calls the target, or a copy of the target
    methods: str  # of the classes of its modules
    traced: tuple[Traced, ...]
    names: tuple[str, ...]  # that the traced code mentions


@dataclass(frozen=True)
class Results:
    """How a call is made: Dynamo's code, without the loads of the graph's inputs. It calls its last free variable with
    the frame's parameters instead of the graph, and makes the results of that."""

    code: types.CodeType
    modules: tuple[tuple[str, str], ...]  # names among its globals, and among those of guards, and their modules
    objects: tuple[tuple[str, Place], ...]
    used: tuple[str, ...]  # those of them that the code itself reads


@dataclass(frozen=True)
class PackedVariant:
    """`program` and `library` are members of the pack; without kernels there is no library."""

    identity: CodeIdentity
    results: Results
    guards: Guards
    eager: GraphText
    facts: GraphFacts
    places: tuple[Node, ...]
    inputs: tuple[int, ...]  # of the graph: where they are in the frame, among the places
    static: frozenset[int]
    written: tuple[int, ...]
    program: str
    library: str
    kernels: int
    verdict: GateStats | None  # the gate's, where it was packed

    @cached_property
    def sources(self) -> tuple[str, ...]:
        """Of the graph's inputs, as Dynamo writes them. Raises NotData."""
        try:
            return tuple(expression_of(self.places, number) for number in self.inputs)
        except NotAPlace as error:
            raise NotData(f"an input {error}") from None

    @property
    def summary(self) -> str:
        return self.facts.signature


def codec() -> Codec:
    return Codec(
        [PackedVariant, CodeIdentity, Results, Guards, Check, Mark, State, TensorForm, GraphText, Reference, GraphFacts,
         GateStats, Assumptions, TensorInput, NumberInput, OtherInput, Sym, Div, Mod, Extreme]
    )  # fmt: skip


def decoded(data: bytes) -> PackedVariant:
    """Raises NotData."""
    found = codec().loads(data)
    if not isinstance(found, PackedVariant):
        raise NotData("no variant")
    found.guards.require_sound()
    if not are_nodes(found.places) or not all(0 <= number < len(found.places) for number in found.inputs):
        raise NotData("inputs that are none")
    if len(found.results.code.co_freevars) == 0:
        raise NotData("code that calls no graph")
    return found
