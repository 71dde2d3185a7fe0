"""A GPU's kernels without a GPU: the first call's graphs, scheduled for CUDA, each kernel in Triton's interpreter and
beside it what it means (the schedule's evaluator); and what the schedule means beside ATen's own graph."""

from __future__ import annotations

import functools
import io
import math
import os
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F

from burnish.codegen.triton import generate
from burnish.passes import run_passes
from burnish.passes.rewrite import Fuel
from burnish.schedule.evaluate import ScheduleEvaluation
from burnish.schedule.kernels import Kernel, Schedule
from burnish.schedule.lower import lower_graph
from burnish.schedule.passes import Context, run_schedule_passes
from tests.fuzz.case import Case
from tests.fuzz.check import Report
from tests.fuzz.execute import Noise
from tests.fuzz.inputs import built
from tests.fuzz.oracle import Find, _beyond, _equal
from tests.programs import Capture, capture, copies, sizes_of
from tests.triton.interpreter import Interpreter, Job, _mend_interpreter, _run, job


class _Here:
    """The interpreter in this very process, where it was chosen before Triton was imported."""

    def __init__(self) -> None:
        _mend_interpreter()

    def run(self, jobs: list[Job], buffers: dict[str, torch.Tensor]) -> int:
        packed = io.BytesIO()
        torch.save(buffers, packed)
        result, error = _run(jobs, packed.getvalue())
        for name, tensor in torch.load(io.BytesIO(result)).items():
            buffers[name].copy_(tensor)
        return error


@functools.cache
def _interpreter() -> _Here | Interpreter:
    return _Here() if os.environ.get("TRITON_INTERPRET") == "1" else Interpreter()


def run_interpreted(case: Case) -> Report:
    call = case.calls[0]
    args = built(call)
    plain = not (case.program.is_module or case.program.is_random) and all(
        isinstance(a, torch.Tensor) and not a.is_neg() for a in args
    )
    if not plain or any(a.same_as >= 0 for a in call.args) or len({a.storage for a in call.args}) < len(call.args):
        return Report()
    scope: dict[str, Any] = {"torch": torch, "F": F, "math": math, "inf": math.inf, "nan": math.nan}
    exec(case.program.text(), scope)
    try:
        entries = capture(scope["f"], *args, dynamic=bool(case.compile.get("dynamic")), device="cuda")
    except Exception:  # not one graph, or none at all: the other target has its say about those
        return Report()
    finds: list[Find] = []
    with torch.no_grad():
        for entry in entries:
            finds += _checked(entry)
    return Report(finds, calls=1)


def _checked(entry: Capture) -> list[Find]:
    captured = entry.captured
    captured.graph = run_passes(captured.graph, Fuel(None), lambda name, graph: graph.verify(), captured.target)
    schedule = run_schedule_passes(lower_graph(captured), captured.target, Context())
    schedule.verify()
    beside = _Beside(schedule, copies(entry.inputs), sizes_of(captured, entry.inputs))
    got = beside.run()[: captured.results]
    if beside.finds:
        return beside.finds
    want = entry.module(*copies(entry.inputs))
    others = [entry.module(*perturbed(entry.inputs, k)) for k in range(1, 5)]
    return [
        Find("schedule", 0, f"result {k}", problem)
        for k, (g, w) in enumerate(zip(got, want, strict=False))
        if isinstance(w, torch.Tensor) and (problem := problem_of(g, w, [o[k] for o in others]))
    ]


def perturbed(inputs: Sequence[Any], seed: int) -> list[Any]:
    noise = Noise(torch.Generator().manual_seed(seed))
    return [
        t * noise.factor(t) if isinstance(t, torch.Tensor) and t.is_floating_point() else t
        for t in copies([i.detach() if isinstance(i, torch.Tensor) else i for i in inputs])
    ]


class _Beside(ScheduleEvaluation):
    """The evaluation, in which each kernel is run as Triton, too; the first that differs is kept."""

    def __init__(self, schedule: Schedule, inputs: list[Any], sizes: dict[str, int]) -> None:
        super().__init__(schedule, inputs, sizes)
        self.unit = generate(schedule, interpreted=True)
        self.numbers = {id(k): n for n, k in enumerate(schedule.kernels)}
        self.finds: list[Find] = []

    def run_kernel(self, kernel: Kernel) -> None:
        call = self.unit.calls.get(self.numbers.get(id(kernel), -1))
        if call is None:
            super().run_kernel(kernel)
            return
        before = {b: self.memory[b].clone() for b in call.buffers}
        meant = functools.partial(super().run_kernel, kernel)
        meant()
        after = {b: self.memory[b].clone() for b in call.buffers}
        held = {b: t.clone() for b, t in before.items()}
        try:
            error = _interpreter().run([job(self.unit.text, call, 0, self.sizes)], held)
        except Exception as raised:  # what Triton does not take is a find, too
            self.finds.append(Find("triton", 0, call.function, f"{type(raised).__name__}: {raised}"))
            return
        if error:
            self.finds.append(Find("triton", 0, call.function, "an index out of range"))
        clouds = [self._again(meant, before, seed) for seed in range(1, 5)]
        for b in call.buffers:
            if problem := problem_of(held[b], after[b], [c[b] for c in clouds]):
                self.finds.append(Find("triton", 0, f"{call.function} {b}", problem))
        for b, t in after.items():
            self.memory[b].copy_(t)

    def _again(self, meant: Callable[[], None], before: dict[str, torch.Tensor], seed: int) -> dict[str, torch.Tensor]:
        for b, t in zip(before, perturbed(list(before.values()), seed), strict=True):
            self.memory[b].copy_(t)
        meant()
        return {b: self.memory[b].clone() for b in before}


def problem_of(got: torch.Tensor, want: torch.Tensor, others: Sequence[torch.Tensor]) -> str:
    wrong = ~_equal(got, want)
    if not wrong.any():
        return ""
    if want.is_floating_point():
        wrong &= _beyond(want, got, others)
    else:
        for other in others:
            wrong &= _equal(other, want)
    if not wrong.any():
        return ""
    at = wrong.nonzero()[0].tolist() if wrong.dim() else []
    values = f"{got[tuple(at)].item()!r} at {at}, meant {want[tuple(at)].item()!r}"
    return f"{values} ({int(wrong.sum())} of {wrong.numel()})"
