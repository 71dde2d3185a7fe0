"""Schedule → Schedule rewrites, run in order by one driver that times, dumps and verifies them.

A pass is a function, and a `SchedulePass` in the same file that says after which pass it runs. docs/layout.md lists the
passes in order.
"""

from __future__ import annotations

from collections.abc import Callable

from burnish.pass_order import declared, in_order
from burnish.schedule.gpu import backends
from burnish.schedule.kernels import Schedule
from burnish.schedule.order import order_of
from burnish.schedule.schedule_pass import Context, SchedulePass

SCHEDULE_PASSES = in_order(declared("burnish.schedule", SchedulePass))
_CHOICE = SCHEDULE_PASSES.index(backends.PASS)


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
    """A GPU's schedule whose products have their backends, after all later passes."""
    return run_schedule_passes(schedule, "cuda", Context(), passes=SCHEDULE_PASSES[_CHOICE + 1 :])
