"""A stored graph in service: its programs loaded, under the same gate and the same watch as a captured one."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

from burnish.capture.double_backward import Replay, Returns
from burnish.capture.dynamo import (
    Program,
    counting_versions,
    leaving_contexts,
    new_variant,
    unboxed,
    without_autocast,
)
from burnish.capture.unguarded import SOURCES
from burnish.capture.warm.capture import verdicts_on
from burnish.capture.warm.frame import StoredGraph
from burnish.capture.warm.graph import GraphText, runnable
from burnish.capture.warm.training import training_function
from burnish.observe.log import CompileLog
from burnish.options import Options
from burnish.pipeline import Kind, Run, Setting, load_stored
from burnish.trust.backward import WatchedBackward
from burnish.trust.gate import Failure
from burnish.trust.remembered import Verdicts
from burnish.trust.variant import Variant


def server(options: Options, log: CompileLog) -> Callable[[StoredGraph], Callable[..., Any]]:
    def serve(stored: StoredGraph) -> Callable[..., Any]:
        start = time.perf_counter()
        known: list[weakref.ref[Variant]] = []
        backwards: list[bool] = []  # not empty once there has been one: as where it is compiled then, it is judged then
        verdicts = verdicts_on(stored.programs[:1], stored.eager, stored.facts, stored.device, options, log)
        direct, engine = _engine(stored, options, log, known, backwards, verdicts)
        variant = new_variant(
            options,
            log,
            stored.facts,
            _eager(stored.eager),
            {"burnish": engine},
            direct=direct,
            compile_seconds=time.perf_counter() - start,
            has_backward=lambda: bool(backwards),
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
    backwards: list[bool],
    verdicts: Verdicts | None,
) -> tuple[Program | None, Callable[..., Any]]:
    def load(kind: Kind, number: int) -> Run:
        returned = stored.training.returned if stored.training and kind == "forward" else None
        static = frozenset[int]() if kind == "backward" else stored.static
        run = load_stored(stored.programs[number], stored.device, Setting(kind, options, log, static, returned))
        log.compiled(kind)
        return run

    if stored.training is None:
        run = counting_versions(load("inference", 0), stored.written)
        return run, unboxed(run)
    assert stored.backward is not None

    def roll_back(failure: Failure) -> None:
        if known and (variant := known[0]()) is not None:
            variant.roll_back(failure)

    eager = without_autocast(_eager(stored.backward))
    forward, backward = load("forward", 0), load("backward", 1)
    of_backward = verdicts.of_backward(stored.programs[1]) if verdicts is not None else None
    watched = WatchedBackward(
        backward,
        eager,
        roll_back,
        judged=options.verify == "off",
        draws=stored.backward_draws,
        coarsest=stored.coarsest,
        verdicts=of_backward,
        spent=partial(log.add_seconds, "gate"),
    )

    def noted(args: list[Any]) -> Any:
        if not backwards:
            backwards.append(True)
        return watched(args)

    returns = Returns(results=tuple(range(stored.training.returned)))
    layout, draws = stored.training, stored.facts.draws
    decisive = frozenset(layout.decisive)
    again = Replay(_eager(stored.eager), returns, draws=draws, decisive=decisive, flow=layout.flow)
    return None, training_function(forward, noted, layout, again)


def _eager(text: GraphText) -> Callable[..., Any]:
    run = runnable(text)
    return leaving_contexts(run) if text.enters else run
