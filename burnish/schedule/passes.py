"""Schedule → Schedule rewrites: one line a pass, run in order by one driver that times, dumps and verifies them.

A pass does not modify its argument; it returns a new schedule. Every optional step takes a unit of fuel, so that
bisecting the fuel finds a miscompile (`burnish verify`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field

from burnish.fuel import Fuel
from burnish.schedule.form import Form
from burnish.schedule.fuse import fuse
from burnish.schedule.fusion_report import FusionReport
from burnish.schedule.gpu.backends import choose_backends
from burnish.schedule.gpu.column_sums import join_columns
from burnish.schedule.gpu.factor_sums import factor_sums
from burnish.schedule.gpu.loop_groups import group_loops
from burnish.schedule.gpu.products import group_siblings
from burnish.schedule.gpu.prologues import inline_products
from burnish.schedule.gpu.rotary import join_rotary
from burnish.schedule.gpu.siblings import join_siblings
from burnish.schedule.gpu.split_kv import split_attention
from burnish.schedule.gpu.split_reductions import split_reductions
from burnish.schedule.gpu.vector_products import as_loops, inline_rows
from burnish.schedule.kernels import Schedule
from burnish.schedule.order import order_of


@dataclass(frozen=True)
class Context:
    """The context of passes. `choose` gives the form of each product, by its kernel's number; otherwise a rule decides.
    `timed` is open while the pass of that name runs."""

    fuel: Fuel = field(default_factory=Fuel)
    report: FusionReport = field(default_factory=FusionReport)
    choose: Callable[[Schedule], Mapping[int, Form]] = lambda schedule: {}
    timed: Callable[[str], AbstractContextManager[None]] = lambda name: nullcontext()


@dataclass(frozen=True)
class SchedulePass:
    name: str
    run: Callable[[Schedule, Context], Schedule]
    targets: tuple[str, ...] = ("cuda",)


# A product's epilogue affects its backend, so the first fusion runs before the selection. The loops after a library's
# product then fuse with later loops.
BEFORE_CHOICE = (
    SchedulePass("epilogues", lambda s, c: fuse(s, c.fuel, only_products=True)),  # what follows a product joins it
    SchedulePass("split attention", lambda s, c: split_attention(s)),  # few queries: the keys are cut into splits
    SchedulePass("vector products", lambda s, c: as_loops(s, c.fuel)),  # a product of one row is a loop
)
CHOICE = (
    SchedulePass("products", lambda s, c: choose_backends(s, c.choose(s))),  # backend and form of each product
)
AFTER_CHOICE = (
    SchedulePass("fuse", lambda s, c: fuse(s, c.fuel, c.report), ("cpu", "cuda")),  # loops that share data join
    SchedulePass("columns", lambda s, c: join_columns(s, c.fuel)),  # sums over rows join what works on those rows
    SchedulePass("inline products", lambda s, c: inline_products(s, c.fuel)),  # a reader computes its vector product
    SchedulePass("split reductions", lambda s, c: split_reductions(s, c.fuel)),  # few long rows are cut into splits
    SchedulePass("rotary", lambda s, c: join_rotary(s, c.fuel)),  # a rotation joins the product it is of
    SchedulePass("rows", lambda s, c: inline_rows(s, c.fuel)),  # a product makes the vector that it multiplies
    SchedulePass("factors", lambda s, c: factor_sums(s, c.fuel)),  # common factors of a row leave its sum
    SchedulePass("siblings", lambda s, c: join_siblings(s, c.fuel)),  # products whose results meet become one
    SchedulePass("group products", lambda s, c: group_siblings(s, c.fuel)),  # independent products share a launch
    SchedulePass("group loops", lambda s, c: group_loops(s, c.fuel)),  # small loops share a launch
)
SCHEDULE_PASSES = (*BEFORE_CHOICE, *CHOICE, *AFTER_CHOICE)


def run_schedule_passes(
    schedule: Schedule,
    target: str,
    context: Context,
    each: Callable[[str, Schedule], None] = lambda name, schedule: None,
    passes: tuple[SchedulePass, ...] = SCHEDULE_PASSES,
) -> Schedule:
    """Every pass is shown to have kept the order of kernels; then `each(name, schedule)` is called, where the driver
    dumps and verifies. `target` is the kind of device that the schedule is for."""
    order = order_of(schedule)
    for step in passes:
        if target in step.targets:
            with context.timed(step.name):
                schedule = step.run(schedule, context)
                before, order = order, order_of(schedule)
                before.require(order, step.name)
            each(step.name, schedule)
    return schedule


def finished(schedule: Schedule) -> Schedule:
    """A GPU's schedule whose products are chosen, with all that is done to it from then on."""
    return run_schedule_passes(schedule, "cuda", Context(), passes=AFTER_CHOICE)
