"""Random programs through the compiler: results, strides and what happens to the inputs, against eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from burnish.ir.reference import evaluate_graph
from burnish.schedule.evaluate import evaluate_schedule
from tests.programs import capture, compiled, copies, schedules, sizes_of
from tests.property.random_programs import Check, Program, difference, random_program

COMMON = settings(derandomize=True, deadline=None)
programs = st.randoms(use_true_random=False).map(random_program)


def run_eager(program: Program, double: bool = False) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Results, and the inputs afterwards."""
    given = copies(program.inputs)
    if double:
        given = [t.double() if t.is_floating_point() else t for t in given]
    held = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64 if double else held)
    try:
        return list(program.function(double)(*given)), given
    finally:
        torch.set_default_dtype(held)


def check_forms(program: Program, dynamic: bool = False) -> list[str]:
    """Every form before C means the same as the FX graph it came from: the graph, and its schedule before and after
    fusion."""
    (found,) = capture(program.function(), *copies(program.inputs), dynamic=dynamic)
    graph, sizes = found.captured.graph, sizes_of(found.captured, found.inputs)
    graph.verify()
    arguments = copies(found.inputs)
    want = [*found.module(*arguments), *arguments]
    problems: list[str] = []

    def compare(label: str, run: Callable[[list[Any]], list[Any]]) -> None:
        given = copies(found.inputs)
        for k, (g, w) in enumerate(zip([*run(given)[: found.captured.results], *given], want, strict=True)):
            if isinstance(w, torch.Tensor):
                problem = difference(g, w, w, exact=False)
                problems.extend([f"{label}, result {k}: {problem}"] if problem else [])

    compare("graph", lambda given: evaluate_graph(graph, given, sizes))
    apart, joined = schedules(found.captured)
    compare("schedule", lambda given: evaluate_schedule(apart, given, sizes))
    compare("fused schedule", lambda given: evaluate_schedule(joined, given, sizes))
    return problems


def check_compiled(program: Program, dynamic: bool = False) -> list[str]:
    want, want_inputs = run_eager(program)
    referee, referee_inputs = run_eager(program, double=True)
    given = copies(program.inputs)
    got = list(compiled(program.function(), dynamic=dynamic)(*given))
    check = Check(program)
    check.compare("compiled", [*got, *given], [*want, *want_inputs], [*referee, *referee_inputs])
    for k, (g, w) in enumerate(zip(got, want, strict=True)):
        if g.stride() != w.stride() and w.numel():
            check.problems.append(f"result {k} has strides {g.stride()}, eager's {w.stride()}")
    return check.problems


@settings(COMMON, max_examples=60)
@given(programs, st.booleans())
def test_compiled_programs(program: Program, dynamic: bool) -> None:
    problems = check_compiled(program, dynamic)
    assert not problems, "\n".join([*problems, str(program)])
