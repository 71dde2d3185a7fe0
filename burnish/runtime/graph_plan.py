"""Facts about a program for its capture as a CUDA graph, computed from its steps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch

from burnish.runtime.program import ExternStep, Program, ReferenceStep
from burnish.schedule.kernels import ResultBuffer

# These ops depend on a value that the host must wait for.
_WAITS = (torch.Tag.dynamic_output_shape, torch.Tag.data_dependent_output, torch.Tag.cudagraph_unsafe)


@dataclass(frozen=True)
class GraphPlan:
    static: frozenset[int] = frozenset()  # arguments that are parameters and buffers
    written: frozenset[int] = frozenset()  # arguments that the program changes
    aliases: Mapping[int, int] = field(default_factory=dict)  # result -> argument in whose memory it is
    lent_from: int | None = None  # results from here on are a forward's saved tensors
    sources: Mapping[str, tuple[int, str, int]] = field(default_factory=dict)  # sizes that may differ between calls
    obstacle: str = ""  # why it cannot be captured
    reuse_outputs: bool = False
    internal: frozenset[int] = frozenset()  # results that go no further than to the next partition of a program
    used: frozenset[int] | None = None  # arguments that matter; None: all
    draws: bool = False  # random numbers


def graph_plan(
    program: Program,
    static: frozenset[int],
    lent_from: int | None = None,
    reuse_outputs: bool = False,
    internal: frozenset[int] = frozenset(),
) -> GraphPlan:
    """`lent_from` is the first result of a forward that is saved for its backward."""
    buffers = program.schedule.buffers
    written = {name for kernel in program.schedule.kernels for name in kernel.writes if name in buffers}
    return GraphPlan(
        static,
        frozenset(buffers[name].position for name in written if buffers[name].role == "input") | _mutated(program),
        _aliases(program),
        lent_from,
        program.sources,
        next(iter(obstacles(program).values()), ""),
        reuse_outputs,
        internal,
        _used(program),
        _draws(program),
    )


def _mutated(program: Program) -> frozenset[int]:
    """Arguments that ATen calls of the program change."""
    buffers, out = program.schedule.buffers, set()
    for step in program.steps:
        if isinstance(step, ExternStep) and step.kernel.op.target._schema.is_mutable:
            held = [buffers[o.buffer] for o in step.kernel.inputs if o.buffer in buffers]
            out |= {b.position for b in held if b.role == "input"}
    return frozenset(out)


def _aliases(program: Program) -> dict[int, int]:
    out: dict[int, int] = {}
    for n, r in enumerate(program.schedule.results):
        if isinstance(r, ResultBuffer):
            b = program.schedule.buffers.get(r.operand.buffer)
            if r.alias_of is not None:
                out[n] = r.alias_of
            elif b is not None and b.role == "input":
                out[n] = b.position
    return out


def _used(program: Program) -> frozenset[int]:
    schedule = program.schedule
    named = {name for k in schedule.kernels for name in (*k.reads, *k.writes)}
    named |= schedule.result_buffers
    used = {b.position for b in schedule.buffers.values() if b.role == "input" and b.name in named}
    return frozenset(used) | frozenset(_aliases(program).values())


def _draws(program: Program) -> bool:
    targets = [step.kernel.op.target for step in program.steps if isinstance(step, ExternStep)]
    return any(torch.Tag.nondeterministic_seeded in target.tags for target in targets)


def obstacles(program: Program) -> dict[int, str]:
    """Kernels that cannot be captured, by number, with the reason."""
    out: dict[int, str] = {}
    for step in program.steps:
        if isinstance(step, ReferenceStep):
            out[step.number] = "a kernel runs in torch"
        elif isinstance(step, ExternStep) and any(tag in step.kernel.op.target.tags for tag in _WAITS):
            out[step.number] = f"{step.kernel.op.name} waits for the device"
    return out
