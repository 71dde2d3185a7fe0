"""Serves a stored graph: loads its programs, with the same gate and sampling as a captured graph."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from torch import fx

from burnish.capture.autograd.backwards import Backwards, NoSuchPart, Part, left_out_now
from burnish.capture.autograd.double_backward import Replay, Returns
from burnish.capture.boxed_programs import Program, boxed, counting_versions, unboxed
from burnish.capture.entry.diagnosis import serve_eager
from burnish.capture.entry.graph_inputs import SOURCES
from burnish.capture.graphs.dispatch_state import leaving_contexts
from burnish.capture.graphs.eager_forms import eager_graph, traced_graph, without_autocast
from burnish.capture.graphs.facts import draws_random_numbers
from burnish.capture.restore.frame import StoredGraph
from burnish.capture.restore.graph_source import GraphText, graph_of, runnable
from burnish.capture.restore.recorder import verdicts_on
from burnish.capture.restore.training import training_function
from burnish.capture.variants import new_variant
from burnish.observe.log import CompileLog
from burnish.options import Options
from burnish.pipeline import Kind, Run, Setting, compile_graph, load_stored
from burnish.runtime.signals import handlers_raise_through, is_handlers_own
from burnish.trust.backward import WatchedBackward
from burnish.trust.gate import Failure
from burnish.trust.stored_verdicts import Verdicts
from burnish.trust.variant import Compile, Variant


def server(options: Options, log: CompileLog) -> Callable[[StoredGraph], Callable[..., Any]]:
    def serve(stored: StoredGraph) -> Callable[..., Any]:
        start = time.perf_counter()
        known: list[weakref.ref[Variant]] = []
        # The results without gradients in the first backward; not empty after it. The backward is judged at that call,
        # as where it is compiled at that call.
        losses: list[frozenset[int]] = []
        verdicts = verdicts_on(stored.program, stored.eager, stored.facts, stored.device, options, log)
        direct, engine = _engine(stored, options, log, known, losses, verdicts)
        variant = new_variant(
            options,
            log,
            stored.facts,
            _eager(stored.eager),
            {"burnish": engine},
            direct=direct,
            compile=Compile(
                seconds=time.perf_counter() - start, backward_without=lambda: losses[0] if losses else None
            ),
            verdicts=verdicts,
        )
        known.append(weakref.ref(variant))
        if stored.sources is not None:
            setattr(variant.call, SOURCES, stored.sources)
        return variant.call

    return serve


def _engine(
    stored: StoredGraph,
    options: Options,
    log: CompileLog,
    known: list[weakref.ref[Variant]],
    losses: list[frozenset[int]],
    verdicts: Verdicts | None,
) -> tuple[Program | None, Callable[..., Any]]:
    def load(kind: Kind, program: bytes) -> Run:
        returned = stored.training.returned if stored.training and kind == "forward" else None
        static = frozenset[int]() if kind == "backward" else stored.static
        run = load_stored(program, stored.device, Setting(kind, options, log, static, returned))
        log.compiled(kind)
        return run

    if stored.training is None:
        run = counting_versions(load("inference", stored.program), stored.written)
        return run, unboxed(run)

    def roll_back(failure: Failure) -> None:
        if known and (variant := known[0]()) is not None:
            variant.roll_back(failure)

    def watched(backward: Program, eager: Callable[..., Any], draws: bool, verdicts: Verdicts | None) -> Program:
        return WatchedBackward(
            backward,
            without_autocast(eager),
            roll_back,
            judged=options.verify == "off",
            draws=draws,
            coarsest=stored.coarsest,
            verdicts=verdicts,
            spent=partial(log.add_seconds, "gate"),
        )

    layout, draws = stored.training, stored.facts.draws
    forward = load("forward", stored.program)
    backwards = Backwards(_whole(stored), partial(_compiled, options, log, watched))
    for each in stored.backwards:
        of_backward = verdicts.of_backward(each.program) if verdicts is not None else None
        program = watched(load("backward", each.program), _eager(each.eager), each.draws, of_backward)
        backwards.have(each.left_out, each.inputs, each.zeros, program)

    def noted(args: list[Any]) -> Any:
        if not losses:
            losses.append(layout.flow.results(left_out_now()) if layout.flow is not None else frozenset())
        return backwards(args)

    returns = Returns(results=tuple(range(stored.training.returned)))
    decisive = frozenset(layout.decisive)
    again = Replay(
        _eager(stored.eager),
        returns,
        draws=draws,
        decisive=decisive,
        flow=layout.flow,
        leaves_out=backwards.has,
        shared=layout.shared,
    )
    return None, training_function(forward, noted, layout, again)


def _whole(stored: StoredGraph) -> Callable[[Sequence[Any]], fx.GraphModule]:
    """Its backward as a graph, for missing gradients that no earlier process has met."""

    def traced(args: Sequence[Any]) -> fx.GraphModule:
        assert stored.backward is not None
        try:
            return graph_of(stored.backward, args)
        except Exception as error:
            if is_handlers_own(error):
                raise
            raise NoSuchPart from error

    return traced


def _compiled(
    options: Options,
    log: CompileLog,
    watched: Callable[[Program, Callable[..., Any], bool, Verdicts | None], Program],
    part: Part,
) -> Program:
    graph = part.graph
    try:
        with handlers_raise_through():
            inputs = [node.meta["val"] for node in graph.graph.find_nodes(op="placeholder")]
            program = compile_graph(graph, inputs, kind="backward", options=options, log=log)
    except Exception as error:
        if is_handlers_own(error):
            raise
        serve_eager(log, "pipeline", error)
        return boxed(traced_graph(graph))
    log.compiled("backward")
    return watched(program, eager_graph(graph), any(map(draws_random_numbers, graph.graph.nodes)), None)


def _eager(text: GraphText) -> Callable[..., Any]:
    run = runnable(text)
    return leaving_contexts(run) if text.enters else run
