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
from burnish.trust.engines import Engines
from burnish.trust.gate import GraphFacts
from burnish.trust.record import Engine
from burnish.trust.stored_verdicts import Verdicts
from burnish.trust.variant import Compile, Policy, Variant
from burnish.trust.variant_log import VariantLog


def new_variant(
    options: Options,
    log: CompileLog,
    facts: GraphFacts,
    eager: Callable[..., Any],
    engines: Mapping[Engine, Callable[..., Any]],
    *,
    direct: Program | None,
    compile: Compile,
    verdicts: Verdicts | None = None,
    loaded: bool = False,
) -> Variant:
    """Make a variant of a captured graph, as the object's next one. `engines` are its compiled forms; the first is ours
    where there is one. `direct` runs ours on one list of arguments. `loaded`: nothing was compiled for it."""
    name = log.loaded() if loaded else log.captured()
    number = log.compiles + log.loads
    if options.fault is not None and "burnish" in engines:
        engines, direct = {**engines, "burnish": options.fault.program(number, engines["burnish"])}, None
    variant = Variant(
        number,
        facts,
        Engines(
            facts,
            eager,
            engines,
            direct=direct,
            timed=(lambda engine, call: log.histogram(name, engine).timed(call)) if options.latency else None,
            host=partial(host_library, options, log) if _checks_count(facts) else host_if_built,
            guarded=guards_are_whole(),
        ),
        Policy(options.verify != "off", options.gate, options.sample),
        compile=compile,
        listener=VariantLog(log, name),
        verdicts=verdicts,
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
