"""Random programs through the compiler: results, strides and what happens to the inputs, against eager."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from burnish.ir.reference import evaluate_graph
from burnish.schedule.evaluate import evaluate_schedule
from tests.programs import capture, compiled, copies, schedules, sizes_of
from tests.property.random_programs import Check, Program, difference, random_program

pytestmark = pytest.mark.filterwarnings("ignore:.*degrees of freedom", "ignore:.*mT is deprecated")
COMMON = settings(derandomize=True, deadline=None, suppress_health_check=list(HealthCheck))
# Programs by number, not drawn choice by choice: drawn, half of them are repeats.
programs = st.integers(0, 2**32).map(Random).map(random_program)
mutating = st.integers(0, 2**32).map(lambda n: random_program(Random(n), mutating=True))


def run_eager(program: Program, double: bool = False) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Results, and the inputs afterwards."""
    given = copies(program.inputs, double)
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


def check_gradients(program: Program, dynamic: bool = False) -> list[str]:
    """Gradients of every result with respect to every input that can have one."""

    def gradients(fn: Callable[..., Any], double: bool = False) -> list[torch.Tensor]:
        given = [t.requires_grad_(t.is_floating_point()) for t in copies(program.inputs, double)]
        wanted = [t for t in given if t.requires_grad]
        held = torch.get_default_dtype()
        torch.set_default_dtype(torch.float64 if double else held)
        try:
            roots = [t for t in fn(*given) if t.requires_grad]
        finally:
            torch.set_default_dtype(held)
        if not roots or not wanted:
            return []
        weights = [torch.linspace(-1, 1, t.numel(), dtype=t.dtype).reshape(t.shape) for t in roots]
        found = torch.autograd.grad(roots, wanted, weights, allow_unused=True)
        return [torch.zeros(()) if g is None else g for g in found]

    if not all(bool(t.isfinite().all()) for t in program.inputs):  # torch's own decompositions differ there
        return []
    try:
        want = gradients(program.function())
    except RuntimeError:  # writes an input that wants a gradient, or has no derivative
        return []
    referee = gradients(program.function(double=True), double=True)
    got = gradients(compiled(program.function(), dynamic=dynamic))
    pairs = zip(got, want, referee, strict=True)
    return [p for g, w, r in pairs if (p := difference(g, w, r, False, 4 * program.epsilon))]


def _meaningful(t: torch.Tensor) -> list[int]:
    """Strides, less those along which nothing moves: there torch's own shape propagation differs from its kernels."""
    return [s for d, s in zip(t.shape, t.stride(), strict=True) if d > 1]


def check_compiled(program: Program, dynamic: bool = False) -> list[str]:
    want, want_inputs = run_eager(program)
    referee, referee_inputs = run_eager(program, double=True)
    given = copies(program.inputs)
    got = list(compiled(program.function(), dynamic=dynamic)(*given))
    check = Check(program)
    check.compare("compiled", [*got, *given], [*want, *want_inputs], [*referee, *referee_inputs])
    for k, (g, w) in enumerate(zip(got, want, strict=True)):
        if w.numel() and _meaningful(g) != _meaningful(w):
            check.problems.append(f"result {k} has strides {g.stride()}, eager's {w.stride()}")
    return check.problems


@settings(COMMON, max_examples=100)
@given(programs, st.booleans())
def test_every_form_means_the_same(program: Program, dynamic: bool) -> None:
    problems = check_forms(program, dynamic)
    assert not problems, "\n".join([*problems, str(program)])


@settings(COMMON, max_examples=60)
@given(mutating, st.booleans())
def test_every_form_writes_the_same(program: Program, dynamic: bool) -> None:
    """Programs that read their inputs before, between and after they write them."""
    problems = check_forms(program, dynamic)
    assert not problems, "\n".join([*problems, str(program)])


@settings(COMMON, max_examples=20)
@given(mutating)
def test_compiled_writes_as_eager_does(program: Program) -> None:
    problems = check_compiled(program)
    assert not problems, "\n".join([*problems, str(program)])


@settings(COMMON, max_examples=60)
@given(programs, st.booleans())
def test_compiled_is_eager(program: Program, dynamic: bool) -> None:
    problems = check_compiled(program, dynamic)
    assert not problems, "\n".join([*problems, str(program)])


@settings(COMMON, max_examples=25)
@given(programs)
def test_gradients_are_eager(program: Program) -> None:
    problems = check_gradients(program)
    assert not problems, "\n".join([*problems, str(program)])
