"""How long each kernel of a graph takes in steady state.

On a CPU the program is built once more with a clock read after every kernel, and run on the arguments of its latest
call. On a GPU times come from torch's profiler.
"""

from __future__ import annotations

import ctypes
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from burnish.codegen.c.unit import generate
from burnish.ir.graph import Input
from burnish.observe.log import CompileLog
from burnish.record import GraphRecord
from burnish.runtime.build.shared_library import CSource, build_shared, load_native
from burnish.runtime.cache.store import open_cache
from burnish.runtime.program import ExternStep, Renderer, Run, build_program, load_rendered
from burnish.tools.measure import quantile

_FEWEST, _MOST = 5, 2000


class _TimedRenderer(Renderer):
    """The same program, with a clock around every ATen call."""

    def _extern(self, step: ExternStep) -> None:
        self.line("lap = clock()")
        super()._extern(step)
        self.line(f"laps[{step.number}] += clock() - lap")


def kernel_seconds(record: GraphRecord, arguments: Sequence[Any], seconds: float) -> Sequence[float | None]:
    """Seconds of each kernel in one call, by its number in the schedule: the median over `seconds` of calls."""
    mine = _own_arguments(record, arguments)
    if record.captured.device.type == "cuda":
        return _cuda_seconds(record, mine)
    laps: dict[int, float] = defaultdict(float)
    run, native = _timed_program(record, laps)
    count = len(record.schedule.kernels)

    def one_call() -> list[float]:
        laps.clear()
        ctypes.memset(native, 0, ctypes.sizeof(native))
        run(list(mine))
        return [laps.get(n, 0.0) + native[n] * 1e-9 for n in range(count)]

    with torch.no_grad():
        for _ in range(3):
            one_call()
        calls = _repeated(one_call, seconds)
    return [quantile(times, 0.5) for times in zip(*calls, strict=True)]


def _repeated(call: Callable[[], list[float]], seconds: float) -> list[list[float]]:
    start = time.perf_counter()
    calls: list[list[float]] = []
    while len(calls) < _FEWEST or (time.perf_counter() - start < seconds and len(calls) < _MOST):
        calls.append(call())
    return calls


def _own_arguments(record: GraphRecord, arguments: Sequence[Any]) -> list[Any]:
    """What the graph writes is copied: timing must not change the model."""
    written = {t.op.position for t, _ in record.captured.graph.mutations if isinstance(t.op, Input)}
    return [a.detach().clone() if k in written and isinstance(a, torch.Tensor) else a for k, a in enumerate(arguments)]


def _timed_program(record: GraphRecord, laps: Mapping[int, float]) -> tuple[Run, Any]:
    options, log = record.options, CompileLog(name="burnish explain")
    unit = generate(record.schedule, timed=True)
    program = build_program(record.schedule, unit, record.captured.symbols.sources, len(record.captured.graph.inputs))
    natives: dict[str, Any] = {"clock": time.perf_counter, "laps": laps}
    table: Any = (ctypes.c_int64 * max(len(record.schedule.kernels), 1))()
    if unit.segments:
        cache = open_cache(options)
        if unit.uses_library:
            load_native(unit.uses_double, options, cache, log)
        library = build_shared(CSource(unit.text, "timed kernels"), options=options, cache=cache, log=log)
        table = type(table).in_dll(library, "bn_laps")
        for k in range(len(unit.segments)):
            natives[f"native_{k}"] = getattr(library, f"bn_run_{k}")
            natives[f"native_{k}"].restype = None
    return load_rendered(program, _TimedRenderer(program), natives), table


def _cuda_seconds(record: GraphRecord, arguments: Sequence[Any], calls: int = 20) -> list[float | None]:
    """Device time by the profiler, for the kernels that are ours; kernels that are one function share its time."""
    from torch.profiler import ProfilerActivity, profile

    from burnish.runtime.cuda.program import generate_cuda, overlaps

    with torch.no_grad():
        for _ in range(3):
            record.run(list(arguments))
        torch.cuda.synchronize()
        with profile(activities=[ProfilerActivity.CUDA]) as traced:
            for _ in range(calls):
                record.run(list(arguments))
            torch.cuda.synchronize()
    spent = {event.key: event.self_device_time_total * 1e-6 / calls for event in traced.key_averages()}
    unit = generate_cuda(record.schedule, overlaps(record.captured.device)).triton
    functions = {n: unit.symbol(call.function) for n, call in unit.calls.items()}
    sharing = Counter(functions.values())
    return [
        spent[functions[n]] / sharing[functions[n]] if functions.get(n) in spent else None
        for n in range(len(record.schedule.kernels))
    ]
