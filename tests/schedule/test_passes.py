"""The driver of schedule passes: what holds of every pass in the list."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch.nn.functional as F

from burnish.errors import CompileError
from burnish.fuel import Fuel
from burnish.passes import run_passes
from burnish.schedule.evaluate import evaluate_schedule
from burnish.schedule.kernels import Schedule
from burnish.schedule.lower import lower_graph
from burnish.schedule.passes import SCHEDULE_PASSES, Context, SchedulePass, run_schedule_passes
from tests.programs import Capture, capture, copies, sizes_of


def attention_step(x: torch.Tensor, w: torch.Tensor, qkv: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
    """One token's block, as a GPU has most passes for: a norm, vector products, a rotation, gates and a residual."""
    normed = F.rms_norm(x, (64,), w)
    q, k, v = (normed @ part.t() for part in qkv.chunk(3))
    a, b = q.chunk(2, -1)
    rotated = torch.cat([-b, a], -1) * 0.5 + q * 0.25
    scores = (rotated @ keys.t()).softmax(-1)
    return x + F.silu(k) * v + scores @ keys


def row_gradients(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return F.layer_norm(x, (256,), w, b).square().sum()


@pytest.fixture(scope="module")
def graphs() -> list[Capture]:
    torch.manual_seed(0)
    step = capture(
        attention_step, torch.randn(1, 64), torch.ones(64), torch.randn(192, 64), torch.randn(32, 64), device="cuda"
    )
    leaves = [torch.randn(4096, 256), torch.randn(256), torch.randn(256)]
    training = capture(row_gradients, *(x.requires_grad_() for x in leaves), device="cuda")
    for graph in (*step, *training):
        graph.captured.graph = run_passes(graph.captured.graph, Fuel(), lambda name, g: None, "cuda")
    return [*step, *training]


def each_pass(graph: Capture) -> Iterator[tuple[str, Schedule, Schedule, str]]:
    """Name, what it was given, what it made, and what it was given as it was before."""
    schedule = lower_graph(graph.captured)
    for step in SCHEDULE_PASSES:
        shown, given = str(schedule), schedule
        schedule = step.run(given, Context())
        yield step.name, given, schedule, shown


def test_no_pass_changes_what_it_is_given(graphs: list[Capture]) -> None:
    for graph in graphs:
        for name, given, _, shown in each_pass(graph):
            assert str(given) == shown, name


def test_every_pass_makes_a_schedule_that_computes_the_same(graphs: list[Capture]) -> None:
    for graph in graphs:
        sizes = sizes_of(graph.captured, graph.inputs)
        want = evaluate_schedule(lower_graph(graph.captured), copies(graph.inputs), sizes)
        for name, given, made, _ in each_pass(graph):
            if str(made) == str(given):
                continue
            made.verify()
            for ours, theirs in zip(evaluate_schedule(made, copies(graph.inputs), sizes), want, strict=True):
                torch.testing.assert_close(ours, theirs, rtol=2e-4, atol=2e-4, msg=lambda m, name=name: f"{name}: {m}")


def test_without_fuel_nothing_is_optimised(graphs: list[Capture]) -> None:
    """What is left is who computes a product."""
    lowering = tuple(step for step in SCHEDULE_PASSES if step.name in ("split attention", "products"))
    for graph in graphs:
        without = run_schedule_passes(lower_graph(graph.captured), "cuda", Context(Fuel(0)))
        only = run_schedule_passes(lower_graph(graph.captured), "cuda", Context(), passes=lowering)
        assert str(without) == str(only)


def test_every_step_taken_is_named_by_its_pass(graphs: list[Capture]) -> None:
    fuel = Fuel()
    for graph in graphs:
        run_schedule_passes(lower_graph(graph.captured), "cuda", Context(fuel))
    assert {step.partition(":")[0] for step in fuel.spent} >= {"fuse", "columns", "vector products", "group loops"}


def test_the_passes_of_a_target_are_called_in_order(graphs: list[Capture]) -> None:
    called: list[str] = []
    run_schedule_passes(lower_graph(graphs[0].captured), "cpu", Context(), lambda name, made: called.append(name))
    assert called == ["fuse"]
    run_schedule_passes(lower_graph(graphs[0].captured), "cuda", Context(), lambda name, made: called.append(name))
    assert called[1:] == [step.name for step in SCHEDULE_PASSES]


def test_a_pass_that_breaks_the_order_is_named(graphs: list[Capture]) -> None:
    def backwards(schedule: Schedule, context: Context) -> Schedule:
        return schedule.with_kernels(schedule.kernels[::-1])

    with pytest.raises(CompileError, match="shuffle: .* would be read before it is written"):
        run_schedule_passes(
            lower_graph(graphs[0].captured), "cuda", Context(), passes=(SchedulePass("shuffle", backwards),)
        )
