"""One schedule pass at a time: what it is given for a function, on a GPU, and what it makes of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from burnish.fuel import Fuel
from burnish.passes import run_passes
from burnish.schedule.evaluate import evaluate_schedule
from burnish.schedule.kernels import Kernel, Schedule
from burnish.schedule.lower import lower_graph
from burnish.schedule.passes import SCHEDULE_PASSES, Context
from tests.programs import Capture, capture, copies, sizes_of


@dataclass
class OnePass:
    name: str
    graph: Capture
    before: Schedule
    after: Schedule
    without_fuel: Schedule
    steps: list[str]

    @property
    def made(self) -> list[Kernel]:
        known = {str(kernel) for kernel in self.before.kernels}
        return [kernel for kernel in self.after.kernels if str(kernel) not in known]

    def require_same_results(self, tolerance: float = 1e-4) -> None:
        sizes = sizes_of(self.graph.captured, self.graph.inputs)
        plain, joined = copies(self.graph.inputs), copies(self.graph.inputs)
        want, got = evaluate_schedule(self.before, plain, sizes), evaluate_schedule(self.after, joined, sizes)
        for a, b in zip([*want, *plain], [*got, *joined], strict=True):
            if isinstance(a, torch.Tensor):
                torch.testing.assert_close(b, a, rtol=tolerance, atol=tolerance)


def one_pass(name: str, fn: Callable[..., Any], *inputs: torch.Tensor) -> OnePass:
    """The pass of this name on the last graph of a function: its backward, where an input requires gradients."""
    graph = capture(fn, *inputs, device="cuda")[-1]
    graph.captured.graph = run_passes(graph.captured.graph, Fuel(), lambda n, g: g.verify(), "cuda")
    schedule = lower_graph(graph.captured)
    for step in SCHEDULE_PASSES:
        if step.name == name:
            context = Context()
            after, without = step.run(schedule, context), step.run(schedule, Context(Fuel(0)))
            after.verify()
            without.verify()
            return OnePass(name, graph, schedule, after, without, context.fuel.spent)
        schedule = step.run(schedule, Context())
    raise ValueError(f"no pass is called {name!r}")
