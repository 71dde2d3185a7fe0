"""All stages of compiling one graph, in order: captured FX → Graph → passes → Schedule → source → Program."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from torch.fx import GraphModule

from burnish.codegen.c.compiled_unit import CUnit
from burnish.codegen.c.split_unit import in_parts
from burnish.codegen.c.unit import generate
from burnish.errors import CompileError
from burnish.fuel import Fuel
from burnish.ir.graph import Graph
from burnish.lower.captured import Captured
from burnish.lower.importer import import_graph
from burnish.observe.log import CompileLog, failure_reason
from burnish.options import Options
from burnish.passes import run_passes
from burnish.record import GraphRecord
from burnish.runtime.build.concurrent import BuildFuture, Wait
from burnish.runtime.build.shared_library import COMPILERS, CSource, build_shared, load_native
from burnish.runtime.cache import stored_program
from burnish.runtime.cache.data import NotData
from burnish.runtime.cache.store import CacheKey, open_cache
from burnish.runtime.cpu.product_backend import choose_libraries
from burnish.runtime.deadline import current_deadline
from burnish.runtime.program import Program, Run, build_program, load_program, load_while_building
from burnish.schedule.fusion_report import FusionReport
from burnish.schedule.kernels import ExternKernel, Schedule
from burnish.schedule.lower import lower_graph
from burnish.schedule.passes import Context, finished, run_schedule_passes
from burnish.tuning.tuner import tuner_for

if TYPE_CHECKING:
    from burnish.runtime.cuda.program import CudaUnit

Kind = Literal["forward", "backward", "inference"]


def compile_graph(
    gm: GraphModule,
    example_inputs: Sequence[Any],
    *,
    kind: Kind,
    options: Options,
    log: CompileLog,
    static_inputs: frozenset[int] = frozenset(),
    returned: int | None = None,
    keep: Callable[[bytes], None] = lambda data: None,
    later: Callable[[Wait], None] | None = None,
) -> Callable[[list[Any]], Sequence[Any]]:
    """Compile one functional ATen graph into a boxed callable. Raises on any failure; the caller serves eager then.

    `returned` is the number of a forward's results that go to the caller; the others are saved for its backward. `keep`
    gets the program as data for `load_stored`, if it can be stored. With `later`, the program's kernels may still be
    building: `later` gets a function that waits for them, and raises the build's exception."""
    setting = Setting(kind, options, log, static_inputs, returned, later if log.recorder is None else None)
    key = None
    if stored_program.is_wanted(options, log):
        with _stage("lookup", log):
            key = stored_program.program_key(gm, kind, options, static_inputs, returned, log.name)
            data = stored_program.load(key, options, log) if key is not None else None
        if data is not None and (run := _from_cache(data, key, gm, setting)) is not None:
            keep(data)
            return run
    with _stage("import", log):
        captured = import_graph(gm, returned=returned)  # ATen calls become our operations; sizes become expressions
    imported = captured.graph
    fuel = Fuel(options.fuel)
    _checkpoint(f"{kind}.graph", captured.graph, options, log)
    with _stage("passes", log):  # named rewrites, listed in burnish/passes/__init__.py
        captured.graph = run_passes(
            captured.graph,
            fuel,
            lambda name, g: _checkpoint(f"{kind}.graph.{name}", g, options, log),
            captured.target,
        )
    with _stage("schedule", log):
        schedule = lower_graph(captured)  # selects stored values and writes the loops that compute them
    _checkpoint(f"{kind}.schedule.unfused", schedule, options, log)
    unfused, fusion = schedule, FusionReport()
    with _stage("fuse", log):
        schedule = _scheduled(captured, schedule, fuel, fusion, setting)  # loops that share data become one
    if captured.device.type == "cpu":
        with _stage("products", log):
            schedule = choose_libraries(schedule, options, fuel, log)  # the products that BLAS does faster
    fused = f"{kind}: {len(unfused.kernels)} kernels became {len(schedule.kernels)}"
    log.fusion(fused)
    _checkpoint(f"{kind}.schedule", schedule, options, log)
    # Kernels as source, built, and the program that calls them.
    program = _generated(setting, captured, schedule)
    run = _loaded(setting, program)
    if key is not None and (data := _packed(program, fused, log)) is not None:
        stored_program.store(key, data, options)
        keep(data)
    if log.recorder is not None:
        spent = tuple(fuel.spent)
        run = log.recorder.graph(
            GraphRecord(kind, gm, captured, imported, unfused, schedule, fusion, spent, options, run)
        )
    return run


def _scheduled(captured: Captured, schedule: Schedule, fuel: Fuel, report: FusionReport, setting: Setting) -> Schedule:
    """After the passes, listed in burnish/schedule/passes.py."""

    def each(name: str, made: Schedule) -> None:
        _checkpoint(f"{setting.kind}.schedule.{name.replace(' ', '_')}", made, setting.options, setting.log)

    tuner = tuner_for(captured.device, setting.options, setting.log, current_deadline())
    if tuner is None:
        return run_schedule_passes(schedule, captured.target, Context(fuel, report, timed=setting.log.stage), each)
    with _stage("tune", setting.log):  # the forms that kernels take: as a record says, or as they measure best
        context = Context(fuel, report, lambda unchosen: tuner.backends(unchosen, finished), setting.log.stage)
        schedule = run_schedule_passes(schedule, captured.target, context, each)
        schedule.forms = tuner.launches(schedule)
    return schedule


@dataclass(frozen=True)
class Setting:
    """The settings under which a program is made and loaded, from a schedule or from the cache."""

    kind: Kind
    options: Options
    log: CompileLog
    static: frozenset[int] = frozenset()
    returned: int | None = None
    later: Callable[[Wait], None] | None = None  # gets the function that waits for kernels; without it, loading waits


def load_stored(data: bytes, device: str, setting: Setting) -> Run:
    """Load a program that `compile_graph` passed to `keep`. Raises NotData if it cannot be read."""
    stored = stored_program.unpacked(data, device)
    run = _loaded(setting, stored.program)
    setting.log.fusion(stored.fusion)
    return run


def _from_cache(data: bytes, key: CacheKey | None, gm: GraphModule, setting: Setting) -> Run | None:
    assert key is not None
    try:
        return load_stored(data, stored_program.device_of(gm).type, setting)
    except NotData as error:
        stored_program.discard(key, str(error), setting.options, setting.log)
        return None


def _packed(program: Program, fusion: str, log: CompileLog) -> bytes | None:
    try:
        return stored_program.packed(program, fusion)
    except stored_program.NotStored as why:
        log.noticed(f"program not stored: {why}")
        return None


def _generated(setting: Setting, captured: Captured, schedule: Schedule) -> Program:
    log, sources, arguments = setting.log, captured.symbols.sources, len(captured.graph.inputs)
    unit: CUnit | CudaUnit
    with _stage("codegen", log):
        if captured.device.type == "cuda":
            from burnish.runtime.cuda.program import generate_cuda, overlaps  # a CPU never imports Triton

            unit = generate_cuda(schedule, overlaps(captured.device))  # one module of Triton kernels
            name, text = "kernels.py", unit.triton.text
        else:
            unit = generate(schedule)  # one C file, each distinct kernel once
            name, text = "kernels.c", unit.text
        program = build_program(schedule, unit, sources, arguments, captured.device)
    log.dump(f"{setting.kind}.{name}", text)
    if log.dump_dir is not None:
        log.dump(f"{setting.kind}.program.py", str(program))
    return program


def _loaded(setting: Setting, program: Program) -> Run:
    """Build the program's kernels or find them in the cache, and load the program."""
    log = setting.log
    run = _load_for_cuda(setting, program) if program.device.type == "cuda" else _load_for_cpu(setting, program)
    for kernel in program.schedule.kernels:
        if isinstance(kernel, ExternKernel):
            log.aten_call(kernel.op.name)
    log.program(run)
    return run


def _load_for_cpu(setting: Setting, program: Program) -> Run:
    unit, options, log = program.unit, setting.options, setting.log
    assert isinstance(unit, CUnit)
    source = CSource(unit.text, f"{log.name or 'a graph'} ({setting.kind})")
    if setting.later is not None and unit.segments:
        future = BuildFuture(lambda: _build(source, unit, options, log))
        with _stage("load", log):
            run, wait = load_while_building(program, future)
        setting.later(partial(_wait_for_library, wait, unit, log))
    else:
        with _stage("build", log):
            library = _build(source, unit, options, log) if unit.segments else None
        with _stage("load", log):
            run = load_program(program, library)
    log.kernels(unit.kernels)
    return run


def _wait_for_library(wait: Wait, unit: CUnit, log: CompileLog) -> None:
    try:
        with _stage("build", log):
            wait()
    except CompileError:
        log.kernels(-unit.kernels)
        raise


def _load_for_cuda(setting: Setting, program: Program) -> Run:
    from burnish.runtime.cuda.direct_launch import DirectRun, direct_plan
    from burnish.runtime.cuda.graphs import GraphedProgram, pool_for
    from burnish.runtime.cuda.piecewise import load_piecewise
    from burnish.runtime.cuda.program import CudaUnit, load_cuda_program  # a CPU never imports Triton
    from burnish.runtime.graph_plan import graph_plan, obstacles

    unit, options, log, kind = program.unit, setting.options, setting.log, setting.kind
    assert isinstance(unit, CudaUnit)
    pool = pool_for(log, program.device, options.graph_limit)
    reasons = obstacles(program) if options.captures_graphs and kind == "inference" else {}
    with _stage("build", log):
        if reasons:
            piecewise = load_piecewise(program, reasons, setting.static, options, log, pool, unit.triton.overlapped)
            _wait_for_kernels(piecewise.ready, setting)
            return piecewise
        run = load_cuda_program(program, options, log, setting.static)
        _wait_for_kernels(run.ready, setting)
    log.kernels(unit.kernels)
    # Use CUDA graphs if requested by option, and in training, where they lend saved tensors.
    graphs_only = options.cuda_graphs is True or (options.captures_graphs and kind != "inference")
    direct = None if graphs_only else direct_plan(program)
    if direct is not None:
        if options.captures_graphs:
            log.noticed(f"no CUDA graph: {direct.launches} launches are quicker without one")
        return DirectRun(run, direct, program.device)
    if not options.captures_graphs:
        return run
    lent_from = setting.returned if kind == "forward" else None
    return GraphedProgram(run, graph_plan(program, setting.static, lent_from, options.reuse_outputs), pool, log)


def _wait_for_kernels(ready: Callable[[], object], setting: Setting) -> None:
    """In a foreground compile, the program's first run waits for its kernels, which are built in parallel with Dynamo's
    guards and eager's part of the trial. In other compiles, the compile itself waits for them."""
    options = setting.options
    if options.background or options.budget is not None or setting.log.recorder is not None:
        ready()


@contextlib.contextmanager
def _stage(name: str, log: CompileLog) -> Iterator[None]:
    """Time a stage, and attach its name to exceptions. After the deadline it does not start."""
    current_deadline().check(name)
    with log.stage(name):
        try:
            yield
        except CompileError:
            raise
        except Exception as error:
            raise CompileError(name, failure_reason(error)) from error


def _checkpoint(name: str, representation: Graph | Schedule, options: Options, log: CompileLog) -> None:
    """Dump and verify what a stage or a pass has made, if requested."""
    if log.dump_dir is not None:
        log.dump(f"{name}.txt", str(representation))
    if options.verify_ir:
        with _stage("verify", log):
            representation.verify()


def _build(source: CSource, unit: CUnit, options: Options, log: CompileLog) -> Any:
    cache = open_cache(options)
    if unit.uses_library:
        load_native(unit.uses_double, options, cache, log)
    return build_shared(source, options=options, cache=cache, log=log, parts=in_parts(source.text, COMPILERS))
