"""Two products of the same few rows whose results are combined (gate and up), on a GPU: one kernel computes both.

One of them uses the other's result element by element, so a program that has the sums of both for its columns needs no
other data, and the intermediate result is never stored. With many rows, the sums of two tiles would not fit into
registers. `group_siblings` in products.py handles independent products (queries, keys and values).
"""

from __future__ import annotations

from dataclasses import replace

from burnish.fuel import Fuel
from burnish.ir.body import BodyBuilder, Store, prune, remap
from burnish.schedule.gpu.products import alike, has_few_rows
from burnish.schedule.kernels import ContractKernel, Kernel, Schedule, made_by
from burnish.schedule.order import can_pass
from burnish.schedule.splice import Readers, splice


def join_siblings(schedule: Schedule, fuel: Fuel | None = None) -> Schedule:
    fuel = fuel or Fuel()
    kernels: list[Kernel | None] = list(schedule.kernels)
    for at, second in enumerate(kernels):
        if not isinstance(second, ContractKernel) or not has_few_rows(second):
            continue
        for n, first in enumerate(kernels[:at]):
            if isinstance(first, ContractKernel) and _meet(first, second) and can_pass(first, kernels[n + 1 : at]):
                joined = _joined(first, second, _read_later(Readers(schedule, kernels), first, at))
                if joined.loop.hazard() is None and fuel.spend(f"siblings: {made_by(first)} + {made_by(second)}"):
                    kernels[n], kernels[at] = None, joined
                    break
    return schedule.with_kernels([k for k in kernels if k is not None])


def _meet(first: ContractKernel, second: ContractKernel) -> bool:
    """Whether the second reads the first's result, each element at the point that computed it."""
    if not alike(first, second) or first.b.shape != second.b.shape or first.writes & second.operand_reads:
        return False
    places = {s.buffer: s.index for s in first.loop.stores if s.mode == "set"}
    loads = [i for i in second.loop.loads if i.buffer in first.writes]
    own = all(i.guard is None and places.get(i.buffer) == i.index for i in loads)
    return bool(loads) and own and first.loop.axes == second.loop.axes and not first.writes & second.writes


def _read_later(readers: Readers, first: ContractKernel, second: int) -> frozenset[str]:
    """Results of the first with readers other than the second."""
    return frozenset(n for n in first.writes if not readers.are_all(n) or any(k != second for k in readers(n)))


def _joined(first: ContractKernel, second: ContractKernel, kept: frozenset[str]) -> ContractKernel:
    body = BodyBuilder()
    values: dict[int, int] = {}
    for n, i in enumerate(first.loop.body):
        if not isinstance(i, Store) or i.buffer in kept:
            values[n] = body.emit(remap(i, values, {}))
    made = {s.buffer: values[s.value] for s in first.loop.stores}
    splice(body, second.loop.body, {}, made, lambda load: made[load.buffer])
    others = (*second.others, (first.acc, first.b))
    return replace(second, others=others, loop=replace(second.loop, body=prune(body.instrs)))
