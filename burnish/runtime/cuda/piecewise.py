"""A program with steps that cannot be captured: captured partitions, with these steps run normally in between."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from burnish.observe.log import CompileLog
from burnish.options import Options
from burnish.runtime.cuda.graphs import GraphedProgram, GraphPool
from burnish.runtime.cuda.program import CudaRun, generate_cuda, load_cuda_program
from burnish.runtime.graph_plan import graph_plan
from burnish.runtime.program import Program, build_program
from burnish.schedule.graph_partitions import Partition, cut
from burnish.schedule.kernels import Kernel


class PiecewiseProgram:
    """A boxed callable. A partition passes graph memory to the next ones, so a whole call holds the pool's lock."""

    _boxed_call = True

    def __init__(self, parts: Sequence[CudaRun | GraphedProgram], pool: GraphPool) -> None:
        self.parts = tuple(parts)
        self.pool = pool
        self._is_ready = False

    def __call__(self, args: list[Any]) -> tuple[Any, ...]:
        if not self._is_ready:  # all of it: once a partition has run, a call cannot be repeated in eager
            self.ready()
        given = tuple(args)
        args.clear()
        handed_on: tuple[Any, ...] = ()
        with self.pool.lock:
            for part in self.parts:
                handed_on = part([*given, *handed_on])
        return handed_on

    def ready(self) -> None:
        for part in self.parts:
            part.ready()
        self._is_ready = True

    def release(self) -> None:
        for part in self.parts:
            part.release()


def load_piecewise(
    program: Program,
    reasons: dict[int, str],
    static: frozenset[int],
    options: Options,
    log: CompileLog,
    pool: GraphPool,
    overlapped: bool,
) -> PiecewiseProgram:
    """`reasons` says of kernels, by number, why they cannot be captured."""
    by_identity = {id(program.schedule.kernels[n]): why for n, why in reasons.items()}
    alone = lambda kernel: by_identity.get(id(kernel), "")  # noqa: E731
    partitions = cut(program.schedule, program.arguments, alone)
    kept = program.schedule.result_buffers
    for why in dict.fromkeys(reasons.values()):
        log.noticed(f"CUDA graph split: {why}")
    return PiecewiseProgram([_load(p, kept, program, static, options, log, pool, overlapped) for p in partitions], pool)


def _load(
    partition: Partition,
    kept: set[str],
    whole: Program,
    static: frozenset[int],
    options: Options,
    log: CompileLog,
    pool: GraphPool,
    overlapped: bool,
) -> CudaRun | GraphedProgram:
    unit = generate_cuda(partition.schedule, overlapped)
    count = whole.arguments + len(partition.carried_in)
    program = build_program(partition.schedule, unit, whole.sources, count, whole.device)
    run = load_cuda_program(program, options, log, static)
    log.kernels(unit.kernels)
    if partition.reason or not _is_worth_it(partition.schedule.kernels):
        log.program(run)
        return run
    internal = frozenset(n for n, name in enumerate(partition.carried_out) if name not in kept)
    graphed = GraphedProgram(run, graph_plan(program, static, None, options.reuse_outputs, internal), pool, log)
    log.program(graphed)
    return graphed


def _is_worth_it(kernels: Sequence[Kernel]) -> bool:
    """Copying in and out takes a few launches, too."""
    return len(kernels) >= 3
