"""`burnish.metrics()`: everything counted in this process, as text for Prometheus.

Labels: `object` is the name given to `burnish.compile(name=...)` (with a number after it where two live objects share
one), `variant` one compiled graph of it, `engine` who served the call. The counters of an object go with it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import torch

from burnish.observe.prometheus import Family, exposition
from burnish.observe.registry import all_stats
from burnish.observe.sinks import dropped_events
from burnish.stats import Stats
from burnish.version import __version__


def metrics() -> str:
    # torch.compile(backend="burnish") has an entry in every process: it is listed once it has compiled something.
    stats = {label: each for label, each in all_stats().items() if each.compiles or "torch.compile(" not in label}
    return exposition([_info(), *_compiling(stats), *_serving(stats), *_memory(stats), _events()])


def _info() -> Family:
    family = Family("burnish_info", "gauge", "Versions of burnish and torch; always 1.")
    family.add(1, version=__version__, torch=str(torch.__version__))
    return family


def _compiling(all_stats: dict[str, Stats]) -> list[Family]:
    seconds = Family("burnish_compile_seconds_total", "counter", "Seconds spent compiling, by stage.")
    compiles = Family("burnish_compiles_total", "counter", "Graphs captured and handed to the compiler.")
    graphs = Family("burnish_graphs_total", "counter", "Programs made, by kind: forward, backward, inference.")
    kernels = Family("burnish_kernels_total", "counter", "Kernels generated.")
    hits = Family("burnish_cache_hits_total", "counter", "Libraries found in the cache on disk.")
    misses = Family("burnish_cache_misses_total", "counter", "Libraries that had to be built.")
    recompiles = Family("burnish_recompiles_total", "counter", "Functions compiled again for other inputs or state.")
    breaks = Family("burnish_graph_breaks", "gauge", "Distinct lines at which a graph was split.")
    fallbacks = Family("burnish_fallbacks_total", "counter", "Graphs left to eager, by the stage that failed.")
    for label, stats in all_stats.items():
        for stage, spent in stats.seconds.items():
            seconds.add(spent, object=label, stage=stage)
        compiles.add(stats.compiles, object=label)
        for kind, count in stats.graphs.items():
            graphs.add(count, object=label, kind=kind)
        kernels.add(stats.kernels, object=label)
        hits.add(stats.cache_hits, object=label)
        misses.add(stats.cache_misses, object=label)
        recompiles.add(len(stats.recompiles), object=label)
        breaks.add(len(stats.graph_breaks), object=label)
        for stage, count in Counter(fallback.stage for fallback in stats.fallbacks).items():
            fallbacks.add(count, object=label, stage=stage)
    return [seconds, compiles, graphs, kernels, hits, misses, recompiles, breaks, fallbacks]


def _serving(all_stats: dict[str, Stats]) -> list[Family]:
    calls = Family("burnish_call_seconds", "histogram", "Host time of calls, by variant and the engine that served.")
    variants = Family("burnish_variants", "gauge", "Compiled graphs in use, by state and the engine that serves them.")
    rollbacks = Family("burnish_rollbacks_total", "counter", "Graphs given back to eager, by cause.")
    samples = Family("burnish_samples_total", "counter", "Live calls compared with eager.")
    pending = Family("burnish_background_pending", "gauge", "Frames that wait for the compiling thread, or are in it.")
    events = Family("burnish_events_total", "counter", "Everything else that happened, by kind of event.")
    notices = Family("burnish_notices_total", "counter", "What happened in calls: CUDA graphs, sealed objects.")
    for label, stats in all_stats.items():
        for (state, engine), count in Counter((each.state, each.engine) for each in stats.variants).items():
            variants.add(count, object=label, state=state.replace(" ", "_"), engine=engine)
        for cause, count in stats.rollbacks.items():
            rollbacks.add(count, object=label, cause=cause)
        samples.add(sum(each.samples for each in stats.variants), object=label)
        pending.add(sum(job.state in ("pending", "compiling") for job in stats.jobs), object=label)
        for kind, count in stats.events.items():
            events.add(count, object=label, kind=kind)
        for what, count in _without_particulars(stats.notices).items():
            notices.add(count, object=label, what=what)
        for entry in stats.latency:
            calls.add_histogram(
                entry.bounds, entry.counts, entry.seconds, object=label, variant=entry.variant, engine=entry.engine
            )
    return [variants, rollbacks, samples, pending, calls, events, notices]


def _without_particulars(notices: Mapping[str, int]) -> Counter[str]:
    """The text before the colon: a reason may contain sizes and names, and each would become a separate series."""
    found: Counter[str] = Counter()
    for what, count in notices.items():
        found[what.partition(":")[0]] += count
    return found


def _memory(all_stats: dict[str, Stats]) -> list[Family]:
    arena = Family("burnish_arena_bytes", "gauge", "Workspaces kept between calls.")
    constants = Family("burnish_constant_bytes", "gauge", "Folded constants and weights kept in another layout.")
    pool = Family("burnish_cuda_pool_bytes", "gauge", "Memory pools of captured CUDA graphs.")
    for label, stats in all_stats.items():
        arena.add(stats.memory.arena_bytes, object=label)
        constants.add(stats.memory.constant_bytes, object=label)
        if stats.memory.cuda_pool_bytes:
            pool.add(stats.memory.cuda_pool_bytes, object=label)
    return [arena, constants, pool]


def _events() -> Family:
    family = Family("burnish_events_dropped_total", "counter", "Events that could not be written to their file.")
    family.add(dropped_events())
    return family
