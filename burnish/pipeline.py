"""The way of a graph, top to bottom: captured FX → Graph → passes → Schedule → C source → Program."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal

from torch.fx import GraphModule

from burnish.capture.aten import Captured, import_graph
from burnish.codegen.c import generate
from burnish.errors import CompileError
from burnish.ir.graph import Graph
from burnish.observe.log import CompileLog, failure_reason
from burnish.options import Options
from burnish.passes import run_passes
from burnish.passes.rewrite import Fuel
from burnish.record import GraphRecord
from burnish.runtime.build import CSource, build_shared, native_library
from burnish.runtime.cache import open_cache
from burnish.runtime.product_choice import choose_libraries
from burnish.runtime.program import Run, build_program, load_program
from burnish.schedule.fuse import fuse
from burnish.schedule.fusion_report import FusionReport
from burnish.schedule.kernels import ExternKernel, Schedule
from burnish.schedule.lower import lower_graph
from burnish.schedule.products import choose_products, group_siblings
from burnish.schedule.split import split_reductions
from burnish.trust.budget import current_deadline

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
) -> Callable[[list[Any]], Sequence[Any]]:
    """Compile one functional ATen graph into a boxed callable. Raises on any failure; the caller serves eager then.

    `returned` is how many of a forward's results are the caller's; the others are saved for its backward."""
    with _stage("import", log):
        captured = import_graph(gm)  # ATen calls become our operations; sizes become expressions
    imported = captured.graph
    fuel = Fuel(options.fuel)
    _checkpoint(f"{kind}.graph", captured.graph, options, log)
    with _stage("passes", log):  # named rewrites, listed in burnish/passes/__init__.py
        captured.graph = run_passes(
            captured.graph, fuel, lambda name, g: _checkpoint(f"{kind}.graph.{name}", g, options, log)
        )
    with _stage("schedule", log):
        schedule = lower_graph(captured)  # what is stored, and the loop that computes it
    _checkpoint(f"{kind}.schedule.unfused", schedule, options, log)
    unfused, fusion = schedule.copy(), FusionReport()
    with _stage("fuse", log):
        schedule = _fused(captured, schedule, fuel, fusion)  # loops that share data become one
    if captured.device.type == "cpu":
        with _stage("products", log):
            schedule = choose_libraries(schedule, options, fuel, log)  # the products that BLAS does faster
    log.fusion(f"{kind}: {len(unfused.kernels)} kernels became {len(schedule.kernels)}")
    _checkpoint(f"{kind}.schedule", schedule, options, log)
    # Kernels as source, built, and the program that calls them.
    if captured.device.type == "cuda":
        run = _finish_for_cuda(kind, captured, schedule, options, log, static_inputs, returned)
    else:
        run = _finish_for_cpu(kind, captured, schedule, options, log)
    for kernel in schedule.kernels:
        if isinstance(kernel, ExternKernel):
            log.aten_call(kernel.op.name)
    log.program(run)
    if log.recorder is not None:
        spent = tuple(fuel.spent)
        run = log.recorder.graph(
            GraphRecord(kind, gm, captured, imported, unfused, schedule, fusion, spent, options, run)
        )
    return run


def _fused(captured: Captured, schedule: Schedule, fuel: Fuel, report: FusionReport) -> Schedule:
    if captured.device.type == "cpu":
        return fuse(schedule, fuel, report)
    # What follows a product decides who computes it; what the library's product is followed by fuses with what is next.
    schedule = choose_products(fuse(schedule, fuel, only_products=True))
    return group_siblings(split_reductions(fuse(schedule, fuel, report)))


def _finish_for_cpu(kind: Kind, captured: Captured, schedule: Schedule, options: Options, log: CompileLog) -> Run:
    with _stage("codegen", log):
        unit = generate(schedule)  # one C file, each distinct kernel once
        program = build_program(schedule, unit, captured.symbols.sources, len(captured.graph.inputs))
    log.dump(f"{kind}.kernels.c", unit.text)
    log.dump(f"{kind}.program.py", str(program))
    with _stage("build", log):
        source = CSource(unit.text, f"{log.name or 'a graph'} ({kind})")
        library = _build(source, unit.uses_library, options, log) if unit.segments else None
    with _stage("load", log):
        run = load_program(program, library)
    log.kernels(unit.kernels)
    return run


def _finish_for_cuda(
    kind: Kind,
    captured: Captured,
    schedule: Schedule,
    options: Options,
    log: CompileLog,
    static: frozenset[int],
    returned: int | None,
) -> Run:
    from burnish.runtime.cuda_program import generate_cuda, load_cuda_program, overlaps  # a CPU never imports Triton
    from burnish.runtime.cudagraph import GraphedProgram, pool_for
    from burnish.runtime.graph_plan import graph_plan, obstacles
    from burnish.runtime.pieced import load_pieces

    with _stage("codegen", log):
        unit = generate_cuda(schedule, overlaps(captured.device))  # one module of Triton kernels
        program = build_program(schedule, unit, captured.symbols.sources, len(captured.graph.inputs), captured.device)
    log.dump(f"{kind}.kernels.py", unit.triton.text)
    log.dump(f"{kind}.program.py", str(program))
    pool = pool_for(log, program.device, options.graph_limit)
    reasons = obstacles(program) if options.captures_graphs and kind == "inference" else {}
    with _stage("build", log):
        if reasons:
            return load_pieces(program, reasons, static, options, log, pool, unit.triton.overlapped)
        run = load_cuda_program(program, options, log, static)
    log.kernels(unit.kernels)
    if not options.captures_graphs:
        return run
    plan = graph_plan(program, static, returned if kind == "forward" else None, options.reuse_outputs)
    return GraphedProgram(run, plan, pool, log)


@contextlib.contextmanager
def _stage(name: str, log: CompileLog) -> Iterator[None]:
    """Time a stage, and give its name to whatever fails in it. Out of time, it does not begin."""
    current_deadline().check(name)
    with log.stage(name):
        try:
            yield
        except CompileError:
            raise
        except Exception as error:
            raise CompileError(name, failure_reason(error)) from error


def _checkpoint(name: str, form: Graph | Schedule, options: Options, log: CompileLog) -> None:
    """Between two stages: what the first made is written down where asked, and checked where asked."""
    if log.dump_dir is not None:
        log.dump(f"{name}.txt", str(form))
    if options.verify_ir:
        with _stage("verify", log):
            form.verify()


def _build(source: CSource, uses_library: bool, options: Options, log: CompileLog) -> Any:
    cache = open_cache(options)
    if uses_library:
        native_library(options, cache, log)
    return build_shared(source, options=options, cache=cache, log=log)
