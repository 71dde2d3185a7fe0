"""Records the data of a graph for warm starts, while it passes through AOTAutograd and our pipeline."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from burnish.capture.autograd.backwards import LeftOut, Part
from burnish.capture.autograd.double_backward import inputs_read
from burnish.capture.autograd.missing_gradients import Flow
from burnish.capture.autograd.shared_results import Shared, shared_with_saved
from burnish.capture.graphs.facts import draws_random_numbers
from burnish.capture.restore import NotWarm
from burnish.capture.restore.frame import Parts, StoredGraph
from burnish.capture.restore.graph_source import GraphText, Reference, graph_text
from burnish.capture.restore.training import StoredBackward, TrainingLayout, training_layout
from burnish.lower.aten_calls import mutates
from burnish.observe.log import CompileLog
from burnish.options import Options
from burnish.runtime.build.shared_library import maker_of, source_hash
from burnish.runtime.cache import stored_program
from burnish.runtime.cache.data import Codec, NotData
from burnish.runtime.cache.store import open_cache
from burnish.torch_private.dispatch import is_any_autocast_enabled
from burnish.trust.gate import GraphFacts
from burnish.trust.stored_verdicts import Verdicts


def verdicts_on(
    program: bytes, eager: GraphText, facts: GraphFacts, device: str, options: Options, log: CompileLog
) -> Verdicts | None:
    """The stored verdicts on a graph's program: those of earlier processes are read, this one's are written."""
    if not stored_program.is_wanted(options, log) or options.verify == "always" or options.inductor:
        return None
    try:
        text = _texts().dumps(eager)
    except NotData:
        return None
    digest = hashlib.sha256(b"\0".join((program, text))).hexdigest()
    cache = open_cache(options)
    factors = (
        ("name", log.name),
        ("program", digest),
        ("inputs", facts.signature),
        ("assumptions", facts.assumptions.key() if facts.assumptions is not None else ""),
        ("options", stored_program.option_factor(options)),
        ("burnish", source_hash()),
        # a program is source text; its machine code comes from the compiler
        *(maker_of(options, cache) if device == "cpu" else ()),
        *stored_program.machine_factors(torch.device(device)),
    )
    return Verdicts(cache, factors)


@functools.cache
def _texts() -> Codec:
    return Codec([GraphText, Reference])


class WarmGraph:
    """One captured graph: inference, or a forward whose backward is compiled at its first call."""

    def __init__(self) -> None:
        self._program: bytes | None = None  # but for backwards
        self._static: frozenset[int] = frozenset()
        self._device = "cpu"
        self._metadata: Any = None  # of a forward, until its backward is compiled
        self._decisive: frozenset[int] = frozenset()
        self._shared: Shared = ()
        self._flow: Flow | None = None
        self._whole: tuple[TrainingLayout, GraphText] | None = None  # of backwards
        self._backward_programs: dict[LeftOut, bytes] = {}
        self._backwards: dict[LeftOut, StoredBackward] = {}
        self._coarsest = torch.float32
        self._parts = Parts()
        self._complete: Callable[[], StoredGraph] | None = None
        self._verdicts: Verdicts | None = None
        self._eager: GraphText | None = None
        # inputs that an inference program changes, if AOTAutograd's wrapper has nothing else to do
        self.written: tuple[int, ...] = ()

    def verdicts(self, graph: fx.GraphModule, facts: GraphFacts, options: Options, log: CompileLog) -> Verdicts | None:
        if self._program is None or not stored_program.is_wanted(options, log):
            return None
        try:
            self._verdicts = verdicts_on(self._program, self._text_of(graph), facts, self._device, options, log)
        except NotWarm:  # its text differs between processes
            return None
        return self._verdicts

    def _text_of(self, graph: fx.GraphModule) -> GraphText:
        """The text of the Dynamo graph, of which there is only one."""
        if self._eager is None:
            self._eager = graph_text(graph)
        return self._eager

    def backward_verdicts(self, left_out: LeftOut) -> Verdicts | None:
        program = self._backward_programs.get(left_out)
        return self._verdicts.of_backward(program) if self._verdicts is not None and program is not None else None

    def keep(
        self, kind: str, graph: fx.GraphModule, static: frozenset[int], metadata: Any, flow: Flow | None, data: bytes
    ) -> None:
        """Record the data of a compiled program of the graph."""
        self._program = data
        self._static, self._device = static, stored_program.device_of(graph).type
        if kind == "forward":
            self._metadata, self._flow = metadata, flow
            self._decisive = inputs_read(graph, metadata.num_forward_returns)
            self._shared = shared_with_saved(graph.graph, metadata.num_forward_returns)
            if is_any_autocast_enabled():
                self._parts.problem = "it was captured under autocast"

    def keep_backward(self, whole: fx.GraphModule, part: Part, data: bytes) -> None:
        """So is one of its backwards."""
        self._backward_programs[part.left_out] = data
        if self._complete is None:  # it was compiled before, and cannot be stored
            return
        try:
            if self._whole is None:
                layout = training_layout(self._metadata, self._decisive, self._shared, self._flow, whole)
                if any(map(mutates, whole.graph.nodes)):
                    raise NotWarm("a backward that changes its inputs")
                self._whole = layout, graph_text(whole)
            draws = any(map(draws_random_numbers, part.graph.graph.nodes))
            eager = graph_text(part.graph) if part.graph is not whole else self._whole[1]
            self._backwards[part.left_out] = StoredBackward(part.left_out, part.inputs, part.zeros, data, eager, draws)
        except NotWarm as why:
            self._parts.problem, self._complete = str(why), None
        self._metadata = None

    def backward_is_there(self, coarsest: torch.dtype) -> None:
        """Called again for each backward that is made."""
        self._coarsest = coarsest
        if self._backwards and self._complete is not None:
            self._parts.build = self._complete
            self._parts.whole()

    def parts(
        self,
        graph: fx.GraphModule,
        facts: GraphFacts,
        sources: tuple[str, ...] | None,
        direct: bool,
        options: Options,
        log: CompileLog,
    ) -> Parts:
        """Called after AOTAutograd; `direct`: its wrapper is not needed."""
        if not stored_program.is_wanted(options, log):
            return self._parts
        try:
            self._plan(graph, facts, sources, direct)
        except NotWarm as why:
            self._parts.problem = self._parts.problem or str(why)
        return self._parts

    def _plan(self, graph: fx.GraphModule, facts: GraphFacts, sources: tuple[str, ...] | None, direct: bool) -> None:
        training = facts.kind == "training"
        if self._program is None:
            raise NotWarm("its program is not stored")
        if not training and not direct:
            raise NotWarm("AOTAutograd's wrapper is needed, for results or changed inputs that share memory")
        if facts.unjudgeable or next(graph.parameters(), None) is not None or next(graph.buffers(), None) is not None:
            raise NotWarm(facts.unjudgeable or "its graph holds parameters")
        eager, program = self._text_of(graph), self._program

        def build() -> StoredGraph:
            if not training:
                return StoredGraph(eager, facts, sources, self._device, self._static, program, written=self.written)
            if self._whole is None or not self._backwards:
                raise NotWarm(self._parts.problem or "its backward is not stored")
            layout, whole = self._whole
            backwards = tuple(self._backwards.values())
            return StoredGraph(
                eager, facts, sources, self._device, self._static, program, layout, backwards, whole, self._coarsest
            )

        if training:
            self._complete = build
        else:
            self._parts.build = build
