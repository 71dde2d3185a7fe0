"""Backends for TorchDynamo: pass the captured graph through AOTAutograd and each resulting graph to our pipeline.

    Dynamo graph ── AOTAutograd ──► inference graph, or forward and backward graphs ── pipeline ──► boxed programs

A failure in a stage never reaches the user: the Dynamo graph serves instead, with eager's own ops. The failure is
counted, and a warning is issued once.
"""

from __future__ import annotations

import copy
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import fx

from burnish.capture.entry.diagnosis import CONTROL_FLOW, serve_eager
from burnish.capture.entry.eager_only import tell
from burnish.capture.entry.library_preload import preload_libraries
from burnish.capture.entry.unguarded import input_sources
from burnish.capture.graph_capture import Abandoned, GraphCapture
from burnish.capture.graphs.assume import apart
from burnish.capture.graphs.eager_forms import (
    eager_graph,
)
from burnish.capture.graphs.eager_semantics import (
    call_powers_of_negatives,
    drop_idle_dropouts,
    leaving_out_history,
    without_history,
)
from burnish.capture.graphs.origins import name_classes
from burnish.capture.restore.frame import note_graph
from burnish.capture.variants import new_variant
from burnish.observe.log import CompileLog
from burnish.observe.registry import register
from burnish.observe.sinks import sinks_for
from burnish.options import Options
from burnish.stats import Stats
from burnish.torch_private import inductor
from burnish.torch_private.names import EAGER
from burnish.torch_private.probe import why
from burnish.torch_private.versions import warn_of_newer_torch
from burnish.trust.background_trial import propose
from burnish.trust.record import Engine
from burnish.trust.variant import Compile, nothing_left

Backend = Callable[[fx.GraphModule, Sequence[Any]], Callable[..., Any]]


def make_backend(options: Options, log: CompileLog) -> Backend:
    """A Dynamo backend of its own for one compiled object: its settings, its log."""

    def burnish_graph(graph: fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        start = time.perf_counter()
        sources = input_sources(graph)
        capture = GraphCapture(options, log, sources)
        name_classes(graph)
        example_inputs = apart(graph, example_inputs)
        drop_idle_dropouts(graph)
        call_powers_of_negatives(graph)
        historyless = without_history(graph)
        engines: dict[Engine, Callable[..., Any]] = {}
        waking = preload_libraries(graph, compared=options.verify != "off") if options.preloads_libraries else None
        try:
            with log.stage("aot"):
                engines["burnish"] = leaving_out_history(capture.compile(graph, example_inputs), historyless)
        except CONTROL_FLOW:
            if waking is not None:
                waking.end()
            raise  # Dynamo captures it again, in another way
        except Abandoned:
            pass  # which is recorded already: eager serves
        except Exception as error:
            serve_eager(log, "aot", error)
        if options.inductor and options.gate:  # without a race there is no telling which to use
            with log.stage("inductor"):
                engines |= _inductors(graph, example_inputs)
        facts = capture.facts(graph, example_inputs)
        variant = new_variant(
            options,
            log,
            facts,
            eager_graph(graph),
            engines,
            direct=capture.direct,
            compile=Compile(
                seconds=time.perf_counter() - start,
                ready=capture.ready,
                before_trial=waking.end if waking is not None else nothing_left,
                backward_without=lambda: capture.backward_without,
            ),
            verdicts=capture.verdicts(graph, facts) if "burnish" in engines else None,
        )
        capture.variant = weakref.ref(variant)
        parts = capture.parts(graph, variant.facts, sources)
        if historyless:
            parts.problem = "results without the history that AOTAutograd gives them"
        note_graph(parts)
        propose(variant, [_concrete(value) for value in example_inputs])
        return variant.call

    return burnish_graph


def _inductors(graph: fx.GraphModule, example_inputs: Sequence[Any]) -> dict[Engine, Callable[..., Any]]:
    """Inductor's program for the graph, if it makes one."""
    try:
        program: Any = inductor.compile_fx(copy.deepcopy(graph), list(example_inputs))
        return {"inductor": program}
    except CONTROL_FLOW:
        raise
    except Exception:  # then it does not take part
        return {}


def _concrete(value: Any) -> Any:
    """A size's value in the capture, without adding a guard."""
    return value.node.hint if isinstance(value, torch.SymInt) else value


# -- torch.compile(model, backend="burnish") --------------------------------------------------------------------

_torch_compile_log = CompileLog(name='torch.compile(backend="burnish")')
register(_torch_compile_log)


def burnish_backend(
    graph: fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    mode: str | None = None,
    options: Mapping[str, object] | None = None,
) -> Callable[..., Any]:
    """The entry point that torch finds by name; `mode` and `options` are torch.compile's."""
    settings = Options.from_arguments(mode=mode, options=options)
    _torch_compile_log.dump_dir = settings.dump_dir
    _torch_compile_log.sinks = sinks_for(settings)
    warn_of_newer_torch()
    if (lack := why(EAGER)) is not None:
        tell(_torch_compile_log, lack)
        return graph.forward
    return make_backend(settings, _torch_compile_log)(graph, example_inputs)


def torch_compile_stats() -> Stats:
    """Everything compiled through `torch.compile(..., backend="burnish")` in this process, together."""
    return _torch_compile_log.snapshot()
