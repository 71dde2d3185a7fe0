"""Makes the variant of a captured graph: from a trace, the cache or a pack. Nothing here needs TorchDynamo."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from burnish.assumptions import TensorInput
from burnish.capture.boxed_programs import Program
from burnish.observe.log import CompileLog
from burnish.options import Options
from burnish.runtime.host.extension import host_if_built, host_library
from burnish.torch_private.guards import guards_are_whole
from burnish.trust.gate import GraphFacts
from burnish.trust.record import Engine
from burnish.trust.stored_verdicts import Verdicts
from burnish.trust.variant import Policy, Variant
from burnish.trust.variant_log import VariantLog


def new_variant(
    options: Options,
    log: CompileLog,
    facts: GraphFacts,
    eager: Callable[..., Any],
    engines: Mapping[Engine, Callable[..., Any]],
    *,
    direct: Program | None,
    compile_seconds: float,
    backward_without: Callable[[], frozenset[int] | None],
    verdicts: Verdicts | None = None,
    ready: Callable[[], object] = lambda: None,
    before_trial: Callable[[], object] | None = None,
    loaded: bool = False,
) -> Variant:
    """Make a variant of a captured graph, as the object's next one. `loaded`: nothing was compiled for it."""
    name = log.loaded() if loaded else log.captured()
    variant = Variant(
        log.compiles + log.loads,
        facts,
        eager,
        engines,
        Policy(options.verify != "off", options.gate, options.sample, options.fault),
        direct=direct,
        compile_seconds=compile_seconds,
        backward_without=backward_without,
        listener=VariantLog(log, name),
        timed=(lambda engine, call: log.histogram(name, engine).timed(call)) if options.latency else None,
        verdicts=verdicts,
        ready=ready,
        before_trial=before_trial,
        host=partial(host_library, options, log) if _checks_count(facts) else host_if_built,
        guarded=guards_are_whole(),
        owner=log,
    )
    if log.dump_dir is not None and facts.assumptions is not None:
        log.dump("assumptions.txt", f"{facts.assumptions}\n")
    if variant.gate is not None:
        log.noticed(f"warm start: {variant.gate.note}: neither compared nor raced before use")
    log.variant(variant)
    return variant


def _checks_count(facts: GraphFacts) -> bool:
    """Whether the cost of Python's checks matters: each call checks every tensor, or is as short as on a GPU, where the
    extension is built with the first program."""
    if not guards_are_whole():
        return True
    inputs = facts.assumptions.inputs if facts.assumptions is not None else ()
    return any(isinstance(x, TensorInput) and x.device.type == "cuda" for x in inputs)
