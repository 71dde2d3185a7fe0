"""Launches a program of a few kernels directly, without a CUDA graph and without Python between launches.

Launching a graph takes the driver about as long as launching three or four kernels, which can start one by one. A graph
also needs its moving arguments copied in and its results copied out, each a separate step on the device. So up to
`MOST_LAUNCHES` kernels are launched directly, in one native call that fills in the call's addresses. Results are fresh
memory, allocated ahead while the device is busy; results that alias share their memory.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from burnish.runtime.cuda.graph_launch import Results, Template
from burnish.runtime.cuda.graphs import current_raw_stream
from burnish.runtime.cuda.launch import NativeLauncher
from burnish.runtime.cuda.program import KERNEL_ALIGNMENT, CudaRun, CudaUnit, CudaWorkspace, is_capturing
from burnish.runtime.host.extension import Host
from burnish.runtime.program import NativeStep, Program, Renderer
from burnish.schedule.kernels import Buffer, ResultBuffer, Schedule

MOST_LAUNCHES = 4


@dataclass(frozen=True)
class Place:
    """One of the program's results: fresh memory, or an earlier result, that tensor itself or another over it."""

    fresh: int
    earlier: int | None = None
    is_apart: bool = False


@dataclass(frozen=True)
class DirectPlan:
    """The slots of the table that change with each call."""

    arguments: tuple[tuple[int, int], ...]  # position, slot
    results: tuple[tuple[int, int], ...]
    templates: tuple[Template, ...]
    launches: int
    order: tuple[Place, ...] = ()  # where each result is; nothing: they are the results above, one by one


def direct_plan(program: Program) -> DirectPlan | None:
    """None for a program with more than a few kernels, with other steps, without fresh results, or with symbolic
    sizes."""
    unit, schedule = program.unit, program.schedule
    assert isinstance(unit, CudaUnit)
    if len(program.steps) != 1 or not isinstance(program.steps[0], NativeStep):
        return None
    numbers = unit.segments[program.steps[0].segment]
    held = [b for b in schedule.buffers.values() if b.name in unit.slots]
    inputs = [b for b in held if b.role == "input"]
    written = {name for k in schedule.kernels for name in k.writes}
    if len(numbers) > MOST_LAUNCHES or not all(map(_is_known, held)) or any(b.name in written for b in inputs):
        return None
    if Renderer(program).keys:  # a size is a number that kernels compute with
        return None
    results = [_fresh(program, r) for r in schedule.results]
    outputs = [b for b in held if b.role == "output"]
    each = [b.name for b in results if b is not None]
    named = list(dict.fromkeys(each))
    if len(each) != len(results) or sorted(named) != sorted(b.name for b in outputs):
        return None
    return DirectPlan(
        tuple((b.position, unit.slots[b.name]) for b in inputs),
        tuple((n, unit.slots[name]) for n, name in enumerate(named)),
        tuple(_template(schedule.buffers[name], program.device) for name in named),
        len(numbers),
        () if len(named) == len(each) else tuple(_places(each, named, schedule)),
    )


def _is_known(b: Buffer) -> bool:
    """Whether its size is, and is more than nothing."""
    return b.dtype is not None and all(isinstance(d, int) for d in (*b.shape, *b.strides)) and b.elements != 0


def _fresh(program: Program, result: Any) -> Buffer | None:
    """The buffer that a result covers completely, if no other result uses it."""
    if not isinstance(result, ResultBuffer) or result.alias_of is not None:
        return None
    o, b = result.operand, program.schedule.buffers[result.operand.buffer]
    whole = o.offset == 0 and o.shape == b.shape and o.strides == b.strides
    return b if whole and b.role == "output" else None


def _places(each: Sequence[str], named: Sequence[str], schedule: Schedule) -> Iterator[Place]:
    objects = {k: (first, is_one) for k, first, is_one in schedule.objects}
    for k, name in enumerate(each):
        first, is_one = objects.get(k, (None, False))
        if first is None or each[first] != name:
            yield Place(named.index(name))
        else:
            yield Place(named.index(name), first, not is_one)


def _template(b: Buffer, device: torch.device) -> Template:
    assert b.dtype is not None
    return _numbers(b.shape), _numbers(b.strides), b.dtype.torch, device


def _numbers(dims: Sequence[Any]) -> tuple[int, ...]:
    return tuple(int(d) for d in dims)


class DirectLaunch(Results):
    """The launches over one workspace: `run` takes the arguments and the results."""

    def __init__(self, host: Host, launcher: NativeLauncher, workspace: CudaWorkspace, plan: DirectPlan) -> None:
        super().__init__(plan.templates, host)
        (baked,) = workspace.segments
        table = ctypes.addressof(workspace.table)
        arguments, results = list(plan.arguments), list(plan.results)
        kept = (baked, workspace.table)
        self.run = host.Segment(
            launcher.launch_address, baked.value, table, KERNEL_ALIGNMENT, arguments, results, kept
        ).run


class DirectRun:
    """A boxed callable like the program it replaces; falls back to that program."""

    _boxed_call = True
    consumes = False

    def __init__(self, program: CudaRun, plan: DirectPlan, device: torch.device) -> None:
        self.program = program
        self.run = program.run  # whose memory `stats` counts
        self.plan = plan
        self._order = plan.order
        self._index = device.index or 0
        self._check = program.check
        self._pool = program.run.__globals__["pool"]
        self._host: Host | None = None
        self._plainly = not isinstance(program.launcher, NativeLauncher)

    def __call__(self, args: list[Any]) -> tuple[Any, ...]:
        if self._plainly or is_capturing():
            return self.program(args)
        self._check()
        pool, stream = self._pool, current_raw_stream(self._index)
        workspace = pool.acquire(stream)
        direct = workspace.direct
        if direct is None:
            direct = self._made(workspace)
            if direct is None:
                return self.program(args)
        results = direct.results(stream)
        code = direct.run(args, results)
        if code > 0:
            raise self.program.launcher.error(code)
        if code:  # an argument whose memory does not start where kernels want it: it is copied there
            pool.release(workspace, stream)
            return self.program(args)
        args.clear()
        direct.prepare(stream)
        pool.release(workspace, stream)
        return self._in_order(results) if self._order else tuple(results)

    def _in_order(self, fresh: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        results: list[torch.Tensor] = []
        for place in self._order:
            x = fresh[place.fresh] if place.earlier is None else results[place.earlier]
            results.append(x.detach() if place.is_apart else x)
        return tuple(results)

    def _made(self, workspace: CudaWorkspace) -> DirectLaunch | None:
        if self._host is None:
            self._host = self.program.host()
        launcher = self.program.launcher
        if self._host is None or not isinstance(launcher, NativeLauncher):
            self._plainly = True
            return None
        workspace.direct = DirectLaunch(self._host, launcher, workspace, self.plan)
        return workspace.direct

    def ready(self) -> None:
        self.program.ready()

    def release(self) -> None:
        self.program.release()
