"""One Dynamo graph's pass through AOTAutograd: the graphs that result, and the facts recorded about them."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal, Protocol

import torch
from torch import fx

from burnish.capture.autograd.backwards import Backwards, LeftOut, Part, left_out_now
from burnish.capture.autograd.double_backward import Replay, Returns, differentiable_twice, inputs_read, returns_of
from burnish.capture.autograd.missing_gradients import Behind, Flow, behind, flow_of
from burnish.capture.autograd.partition import partition, save_copies
from burnish.capture.autograd.shared_results import Shared, shared_with_saved
from burnish.capture.boxed_programs import Program, boxed, counting_versions, marked, unboxed
from burnish.capture.entry.diagnosis import CONTROL_FLOW, serve_eager
from burnish.capture.gc_pause import patience
from burnish.capture.graphs.assume import counts_from_storage
from burnish.capture.graphs.dispatch_state import left_if_it_raises
from burnish.capture.graphs.eager_forms import (
    chunked,
    eager_graph,
    traced_graph,
)
from burnish.capture.graphs.eager_semantics import (
    dense_gradients,
    left_to_eager,
)
from burnish.capture.graphs.facts import coarsest_type, draws_random_numbers, graph_facts
from burnish.capture.regions.sharing import put_back, share_blocks
from burnish.capture.restore.frame import Parts
from burnish.capture.restore.recorder import WarmGraph
from burnish.errors import CompileError
from burnish.lower.aten_calls import mutates
from burnish.lower.importer import require_known_views, require_whole_windows
from burnish.observe.log import CompileLog, failure_reason
from burnish.options import Options
from burnish.runtime.build.concurrent import Wait, can_wait, wait_last
from burnish.runtime.signals import handlers_raise_through, is_handlers_own
from burnish.torch_private.aot import aot_module_simplified
from burnish.torch_private.dispatch import (
    disable_current_modes,
    is_any_autocast_enabled,
    is_traceable_wrapper_subclass,
)
from burnish.torch_private.guards import TracingContext
from burnish.torch_private.inductor import config as inductor_config
from burnish.torch_private.patches.derivatives import checking_classes, own_derivatives
from burnish.torch_private.quiet import without_printed_graphs
from burnish.trust.backward import WatchedBackward
from burnish.trust.gate import Failure, GraphFacts
from burnish.trust.record import GraphKind
from burnish.trust.stored_verdicts import Verdicts
from burnish.trust.variant import Variant

Kind = Literal["forward", "backward", "inference"]


class GraphCompiler(Protocol):
    """The compiler callback of AOTAutograd (the parameter names are AOTAutograd's)."""

    def __call__(self, gm: fx.GraphModule, example_inputs: Sequence[Any]) -> Program: ...


class Abandoned(Exception):
    """Leaves AOTAutograd after a failure in a graph's pipeline, which is already recorded: eager serves."""


class GraphCapture:
    """One Dynamo graph's pass through AOTAutograd."""

    def __init__(self, options: Options, log: CompileLog, sources: tuple[str, ...] | None) -> None:
        self.options = options
        self.log = log
        self._sources = sources
        self._records_gradients = torch.is_grad_enabled()  # AOTAutograd changes it while it traces
        self._offsets_matter = False
        self._graph: fx.GraphModule | None = None
        self._returns = Returns()
        self._written: frozenset[int] = frozenset()
        self._needed: frozenset[int] = frozenset()  # of those, the ones whose contents the graph reads
        self._shared: Shared = ()  # results that may share memory with saved tensors
        self._decisive: frozenset[int] | None = None  # the inputs on which gradients depend
        self._behind: Behind | None = None  # the tangents
        self._flow: Flow | None = None
        self.direct: Program | None = None  # set when AOTAutograd's wrapper is not needed at run time
        self.variant: Callable[[], Variant | None] = lambda: None  # set when there is one
        self.ready: Callable[[], object] = lambda: None  # waits for builds that a first call would wait for
        # The results without gradients in the first backward, at which it is compiled.
        self.backward_without: frozenset[int] | None = None
        self._metadata: Any = None
        self._kind: GraphKind = "inference"
        self._draws = False
        self._coarsest = torch.float64
        self._warm = WarmGraph()

    def parts(self, graph: fx.GraphModule, facts: GraphFacts, sources: tuple[str, ...] | None) -> Parts:
        """The data for a warm start."""
        return self._warm.parts(graph, facts, sources, self.direct is not None, self.options, self.log)

    def verdicts(self, graph: fx.GraphModule, facts: GraphFacts) -> Verdicts | None:
        """The verdicts of earlier processes on its program."""
        return self._warm.verdicts(graph, facts, self.options, self.log)

    def _differentiable_twice(self) -> contextlib.AbstractContextManager[None]:
        """Not where the graph holds parameters: AOTAutograd's function takes those, too."""
        graph = self._graph
        if graph is None or next(graph.parameters(), None) is not None or next(graph.buffers(), None) is not None:
            return contextlib.nullcontext()
        return differentiable_twice(lambda: self.replay)

    @functools.cached_property
    def replay(self) -> Replay:
        assert self._graph is not None
        return Replay(
            eager_graph(self._graph),
            self._returns,
            self._written,
            self._needed,
            self._draws,
            self._decisive,
            self._flow,
            shared=self._shared,
        )

    def compile(self, graph: fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        self._graph = graph
        if why := left_to_eager(graph, example_inputs):
            serve_eager(self.log, "capture", CompileError("capture", why))
            raise Abandoned
        sharing = share_blocks(graph, _decompositions(), self.log) if self.options.regions is not None else None
        if sharing is not None:
            try:
                return self._through_aot(sharing.graph, example_inputs)
            except (*CONTROL_FLOW, Abandoned):
                raise
            except Exception as error:  # each block on its own, then
                self.log.noticed(f"blocks not shared: {failure_reason(error)}")
            finally:
                sharing.close()
        return self._through_aot(graph, example_inputs)

    def _through_aot(self, graph: fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        # With this switch AOTAutograd also decides whether to remove an unused random draw; eager makes the draw.
        with (
            inductor_config.patch(fallback_random=True),
            without_printed_graphs(),
            own_derivatives(),
            checking_classes(),
            dense_gradients(graph),
            left_if_it_raises(),
            self._differentiable_twice(),
        ):
            whole: Callable[..., Any] = aot_module_simplified(
                graph,
                example_inputs,
                fw_compiler=self._compiler("forward"),
                bw_compiler=self._compiler("backward"),
                inference_compiler=self._inference_compiler(_plain_inputs(graph, example_inputs)),
                partition_fn=self._partition,
                decompositions=_decompositions(),
                keep_inference_input_mutations=True,
            )
        return whole if self.direct is None else unboxed(self.direct)

    def facts(self, graph: fx.GraphModule, example_inputs: Sequence[Any]) -> GraphFacts:
        """The facts for the gate, in terms of the Dynamo graph's inputs."""
        metadata, self._metadata = self._metadata, None
        return graph_facts(
            graph,
            example_inputs,
            self._kind,
            metadata,
            self._draws,
            self._coarsest,
            self._sources,
            self._records_gradients,
            self._offsets_matter,
        )

    def _compiler(self, kind: Kind) -> GraphCompiler:
        def compile_training(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> Program:
            return self._program(kind, gm, example_inputs)

        return compile_training if kind == "forward" else self._backwards

    def _backwards(self, gm: fx.GraphModule, example_inputs: Sequence[Any]) -> Program:
        """AOTAutograd calls it in the first backward, when the missing gradients are known."""

        def make(part: Part) -> Program:
            inputs = [example_inputs[k] for k in part.inputs]
            keep = partial(self._warm.keep_backward, gm, part)
            return self._program("backward", part.graph, inputs, keep, part.left_out)

        backwards = Backwards(lambda args: gm, make)
        backwards.prepare(example_inputs)
        self.backward_without = self._flow.results(left_out_now()) if self._flow is not None else frozenset()
        return backwards

    def _inference_compiler(self, plain_inputs: int | None) -> GraphCompiler:
        # AOTAutograd keeps this function alive. It must not hold the inputs, or the weights would outlive their model.
        def compile_inference(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> Program:
            put_back(gm)
            program = self._program("inference", gm, example_inputs)
            if plain_inputs == len(example_inputs) and (written := _written_in_graph()) is not None:
                self.direct = counting_versions(program, written)
                self._warm.written = written
            return program

        return compile_inference

    def _program(
        self,
        kind: Kind,
        graph: fx.GraphModule,
        inputs: Sequence[Any],
        keep: Callable[[bytes], None] | None = None,
        left_out: LeftOut = frozenset(),
    ) -> Program:
        static = frozenset() if kind == "backward" else _static_inputs()
        returned = _returned() if kind == "forward" else None
        self._note(kind, graph)
        metadata, waits = self._metadata, list[Wait]()
        keep = keep or partial(self._warm.keep, kind, graph, static, metadata, self._flow)
        try:
            from burnish.pipeline import compile_graph

            if kind != "backward":
                require_whole_windows(graph)
                if metadata is not None:
                    require_known_views(graph, metadata)
            if self.options.fault is not None and kind != "backward":
                self.options.fault.compiling(self.log.compiles + 1)
            # A fake mode is active here; disable it so that a pass can make real tensors.
            with handlers_raise_through(), disable_current_modes(), patience.asked():
                program = compile_graph(
                    graph,
                    inputs,
                    kind=kind,
                    options=self.options,
                    log=self.log,
                    static_inputs=static,
                    returned=returned,
                    keep=keep,
                    later=waits.append if can_wait() and kind != "backward" else None,
                )
        except CONTROL_FLOW:
            raise
        except Exception as error:
            if is_handlers_own(error):
                raise
            serve_eager(self.log, "pipeline", error)
            if kind != "backward":
                raise Abandoned from error
            return boxed(traced_graph(graph))  # its forward may already be running and saving tensors for it
        if kind != "backward":
            self.ready = getattr(program, "ready", self.ready)
        self.log.compiled(kind)
        for wait in waits:
            wait_last(partial(self._wait_for_kernels, kind, wait))
        return self._watched(program, graph, left_out) if kind == "backward" else marked(program)

    def _wait_for_kernels(self, kind: Kind, wait: Wait) -> None:
        try:
            wait()
        except Exception as error:
            serve_eager(self.log, "pipeline", error)
            self.log.not_built(kind)
            if (variant := self.variant()) is not None:
                variant.abandon()

    def _note(self, kind: Kind, graph: fx.GraphModule) -> None:
        self._draws = self._draws or any(draws_random_numbers(node) for node in graph.graph.nodes)
        self._coarsest = coarsest_type(graph, self._coarsest)
        if kind != "backward":
            self._offsets_matter = self._offsets_matter or counts_from_storage(graph)
            context = TracingContext.try_get()
            self._metadata = context.fw_metadata if context else None
            self._kind = "training" if kind == "forward" else "inference"
            if kind == "forward" and self._metadata is not None:
                self._note_forward(graph, self._metadata)

    def _note_forward(self, graph: fx.GraphModule, metadata: Any) -> None:
        self._returns = returns_of(metadata)
        if save_copies(graph.graph, metadata.num_forward_returns, self._returns.changed):
            graph.recompile()
        changed = [k for k, info in enumerate(metadata.input_info) if info.mutates_data or info.mutates_metadata]
        self._written = frozenset(changed)
        # The new values of inputs that change outside the graph come first.
        self._needed = self._written & inputs_read(graph, len(self._returns.changed))
        self._decisive = inputs_read(graph, metadata.num_forward_returns)
        self._shared = shared_with_saved(graph.graph, metadata.num_forward_returns)
        self._flow = flow_of(metadata, self._behind, graph.graph) if self._behind is not None else None

    def _partition(
        self, joint: fx.GraphModule, joint_inputs: Sequence[Any], *, num_fwd_outputs: int, **arguments: Any
    ) -> tuple[fx.GraphModule, ...]:
        put_back(joint)
        forward, backward = partition(joint, joint_inputs, num_fwd_outputs=num_fwd_outputs, **arguments)
        # AOTAutograd compiles a copy and does not need the original any more. Each graph module has its own class.
        type(backward).__deepcopy__ = _itself  # type: ignore[method-assign, assignment]
        self._behind = behind(backward.graph)
        return forward, backward

    def _watched(self, program: Program, graph: fx.GraphModule, left_out: LeftOut) -> Program:
        self._warm.backward_is_there(self._coarsest)
        draws = any(map(draws_random_numbers, graph.graph.nodes))
        # A graph that cannot run twice is not judged.
        judged = self.options.verify == "off" or any(map(mutates, graph.graph.nodes))
        return WatchedBackward(
            program,
            traced_graph(graph),
            self._roll_back,
            judged=judged,
            draws=draws,
            coarsest=self._coarsest,
            chunked=None if judged else chunked(graph),
            verdicts=self._warm.backward_verdicts(left_out),
            spent=partial(self.log.add_seconds, "gate"),
        )

    def _roll_back(self, failure: Failure) -> None:
        if (variant := self.variant()) is not None:
            variant.roll_back(failure)


def _itself(graph: fx.GraphModule, memo: Any) -> fx.GraphModule:
    return graph


def _decompositions() -> dict[Any, Callable[..., Any]]:
    from burnish.capture.graphs.decompositions import decomposition_table

    return decomposition_table()


def _static_inputs() -> frozenset[int]:
    """Positions of parameters and buffers: tensors that have the same address in most calls."""
    context = TracingContext.try_get()
    metadata = context.fw_metadata if context else None
    return frozenset(metadata.static_input_indices or ()) if metadata else frozenset()


def _returned() -> int | None:
    """The number of a forward graph's results that go to the caller; saved tensors come after them."""
    context = TracingContext.try_get()
    metadata = context.fw_metadata if context else None
    return metadata.num_forward_returns if metadata else None


def _plain_inputs(graph: fx.GraphModule, inputs: Sequence[Any]) -> int | None:
    """The number of a graph's inputs, if neither they nor the thread's state at entry (autocast, or grad mode with
    inputs that require gradients) affect a program's ATen calls. AOTAutograd changes that state while it traces, so
    this is called before."""
    tensors = [value for value in inputs if isinstance(value, torch.Tensor)]
    if any(is_traceable_wrapper_subclass(tensor) for tensor in tensors) or is_any_autocast_enabled():
        return None
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors):
        return None
    return len(inputs) if next(graph.parameters(), None) is None else None


def _written_in_graph() -> tuple[int, ...] | None:
    """The inputs that an inference program writes, if AOTAutograd's run-time wrapper (2 us a call) only advances their
    version counters or does nothing; None if it does more.

    The wrapper handles aliased results and inputs, mutation visible outside the graph, and effects. Each condition here
    rules out one of them, and Dynamo's guards ensure the same in later calls."""
    context = TracingContext.try_get()
    metadata = context.fw_metadata if context else None
    if metadata is None:
        return None
    if metadata.num_outputs_aliased or metadata.num_intermediate_bases or metadata.tokens:
        return None
    if metadata.num_mutated_inp_runtime_indices or metadata.is_rng_op_functionalized:
        return None
    if any(info.mutates_metadata or info.mutates_storage_metadata for info in metadata.input_info):
        return None
    return tuple(metadata.mutated_graph_handled_indices_seen_by_autograd)
