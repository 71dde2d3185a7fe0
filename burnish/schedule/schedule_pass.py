"""A schedule pass as data. A module of schedule/ or schedule/gpu/ that holds one adds a pass to the compiler."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field

from burnish.fuel import Fuel
from burnish.schedule.form import Form
from burnish.schedule.fusion_report import FusionReport
from burnish.schedule.kernels import Schedule


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
    """`run` does not modify the schedule that it gets; it returns a new one. Every optional step takes a unit of the
    context's fuel, so that bisecting the fuel finds a miscompile (`burnish verify`)."""

    name: str
    run: Callable[[Schedule, Context], Schedule]
    after: str = ""
    before: str = ""
    targets: tuple[str, ...] = ("cuda",)  # kinds of devices
