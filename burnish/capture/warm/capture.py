"""What is kept of a graph while it goes through AOTAutograd and our pipeline, for the next process."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from burnish.capture.double_backward import inputs_read
from burnish.capture.facts import draws_random_numbers
from burnish.capture.flow import Flow
from burnish.capture.warm import NotWarm
from burnish.capture.warm.frame import Parts, StoredGraph
from burnish.capture.warm.graph import GraphText, Reference, graph_text
from burnish.capture.warm.training import TrainingLayout, training_layout
from burnish.observe.log import CompileLog
from burnish.options import Options
from burnish.runtime import stored_program
from burnish.runtime.build import maker_of, source_hash
from burnish.runtime.cache import open_cache
from burnish.runtime.data import Codec, NotData
from burnish.torch_private.dispatch import is_any_autocast_enabled
from burnish.trust.gate import GraphFacts
from burnish.trust.remembered import Verdicts


def verdicts_on(
    programs: Sequence[bytes], eager: GraphText, facts: GraphFacts, device: str, options: Options, log: CompileLog
) -> Verdicts | None:
    """Where earlier processes' verdicts on a graph's programs are found, and this one's go."""
    if not stored_program.is_wanted(options, log) or options.verify == "always" or options.inductor:
        return None
    try:
        text = _texts().dumps(eager)
    except NotData:
        return None
    digest = hashlib.sha256(b"\0".join((*programs, text))).hexdigest()
    cache = open_cache(options)
    factors = (
        ("name", log.name),
        ("program", digest),
        ("inputs", facts.signature),
        ("assumptions", facts.assumptions.key() if facts.assumptions is not None else ""),
        ("options", stored_program.option_factor(options)),
        ("burnish", source_hash()),
        *(maker_of(options, cache) if device == "cpu" else ()),  # a program is text: the code is its compiler's
        *stored_program.machine_factors(torch.device(device)),
    )
    return Verdicts(cache, factors)


@functools.cache
def _texts() -> Codec:
    return Codec([GraphText, Reference])


class WarmGraph:
    """One captured graph: inference, or a forward whose backward is compiled when it is first wanted."""

    def __init__(self) -> None:
        self._programs: dict[str, bytes] = {}
        self._static: frozenset[int] = frozenset()
        self._device = "cpu"
        self._metadata: Any = None  # of a forward, until its backward comes
        self._decisive: frozenset[int] = frozenset()
        self._flow: Flow | None = None
        self._backward: tuple[TrainingLayout, GraphText, bool] | None = None
        self._coarsest = torch.float32
        self._parts = Parts()
        self._complete: Callable[[], StoredGraph] | None = None
        self._verdicts: Verdicts | None = None
        self._eager: GraphText | None = None
        self.written: tuple[int, ...] = ()  # inputs that an inference program changes, where nothing else needs care

    def verdicts(self, graph: fx.GraphModule, facts: GraphFacts, options: Options, log: CompileLog) -> Verdicts | None:
        programs = [data for kind, data in self._programs.items() if kind != "backward"]
        if not programs or not stored_program.is_wanted(options, log):
            return None
        try:
            self._verdicts = verdicts_on(programs, self._text_of(graph), facts, self._device, options, log)
        except NotWarm:  # no two processes write it alike
            return None
        return self._verdicts

    def _text_of(self, graph: fx.GraphModule) -> GraphText:
        """Of the Dynamo graph, of which there is one."""
        if self._eager is None:
            self._eager = graph_text(graph)
        return self._eager

    def backward_verdicts(self) -> Verdicts | None:
        program = self._programs.get("backward")
        return self._verdicts.of_backward(program) if self._verdicts is not None and program is not None else None

    def keep(
        self,
        kind: str,
        data: bytes,
        graph: fx.GraphModule,
        static: frozenset[int],
        metadata: Any,
        flow: Flow | None = None,
    ) -> None:
        """A program of the graph is made, and this is its data."""
        self._programs[kind] = data
        if kind == "backward":
            self._keep_backward(graph)
            return
        self._static, self._device = static, stored_program.device_of(graph).type
        if kind == "forward":
            self._metadata, self._flow = metadata, flow
            self._decisive = inputs_read(graph, metadata.num_forward_returns)
            if is_any_autocast_enabled():
                self._parts.problem = "it was captured under autocast"

    def _keep_backward(self, graph: fx.GraphModule) -> None:
        if self._complete is None or self._metadata is None:  # it was compiled before, and cannot be stored
            return
        try:
            layout = training_layout(self._metadata, self._decisive, self._flow, graph)
            if any(map(_mutates, graph.graph.nodes)):
                raise NotWarm("a backward that changes its inputs")
            draws = any(map(draws_random_numbers, graph.graph.nodes))
            self._backward = layout, graph_text(graph), draws
        except NotWarm as why:
            self._parts.problem = str(why)
        self._metadata = None

    def backward_is_there(self, coarsest: torch.dtype) -> None:
        self._coarsest = coarsest
        if self._backward is not None and self._complete is not None:
            self._parts.build, self._complete = self._complete, None
            self._parts.whole()
            self._parts.whole = lambda: None

    def parts(
        self,
        graph: fx.GraphModule,
        facts: GraphFacts,
        sources: tuple[str, ...] | None,
        direct: bool,
        options: Options,
        log: CompileLog,
    ) -> Parts:
        """Called when the graph has been through AOTAutograd; `direct` tells that its wrapper is not needed."""
        if not stored_program.is_wanted(options, log):
            return self._parts
        try:
            self._plan(graph, facts, sources, direct)
        except NotWarm as why:
            self._parts.problem = self._parts.problem or str(why)
        return self._parts

    def _plan(self, graph: fx.GraphModule, facts: GraphFacts, sources: tuple[str, ...] | None, direct: bool) -> None:
        training = facts.kind == "training"
        if not self._programs:
            raise NotWarm("its program is not stored")
        if not training and not direct:
            raise NotWarm("AOTAutograd's wrapper is needed, for results or changed inputs that share memory")
        if facts.unjudgeable or next(graph.parameters(), None) is not None or next(graph.buffers(), None) is not None:
            raise NotWarm(facts.unjudgeable or "its graph holds parameters")
        eager = self._text_of(graph)

        def build() -> StoredGraph:
            programs = tuple(self._programs.values())
            if not training:
                return StoredGraph(eager, facts, sources, self._device, self._static, programs, written=self.written)
            if self._backward is None or set(self._programs) != {"forward", "backward"}:
                raise NotWarm(self._parts.problem or "its backward is not stored")
            layout, backward, draws = self._backward
            return StoredGraph(
                eager, facts, sources, self._device, self._static, programs, layout, backward, draws, self._coarsest
            )

        if training:
            self._complete = build
        else:
            self._parts.build = build


def _mutates(node: fx.Node) -> bool:
    schema = getattr(node.target, "_schema", None)
    return schema is not None and schema.is_mutable
