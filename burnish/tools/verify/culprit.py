"""Finds the step that made a graph wrong: a bisection over fuel leaves one optimisation, then each representation of
the graph is evaluated to name the stage, the operation and the kernel."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from burnish.ir.expr import evaluate
from burnish.ir.graph import Graph, Node
from burnish.ir.reference import Tensors, evaluate_graph, evaluate_node
from burnish.record import GraphRecord
from burnish.schedule.evaluate import evaluate_schedule
from burnish.schedule.kernels import ExternKernel, Kernel, Schedule
from burnish.tools.verify.calls import Calls, Expected, Results, copied, is_wrong
from burnish.tools.verify.isolate import kernel_runs, run_generated, size_values, source_of
from burnish.tools.verify.judge import judge

STAGES = {
    "capture": "capturing the model as graphs (each graph computes what it should)",
    "import": "writing an ATen call as our operations",
    "passes": "a rewrite of the graph",
    "schedule": "writing operations as loops",
    "fuse": "joining two kernels",
    "codegen": "generating a kernel's code (its loop is right)",
    "program": "the program around the kernels (every kernel is right by itself)",
    "unknown": "no single stage: the graph is right when compiled by itself",
}


@dataclass(frozen=True)
class Culprit:
    stage: str  # one of STAGES
    step: str  # the optimisation, the ATen call or the kernel
    fuel: int | None = None  # BURNISH_FUEL at which it is wrong; with one less it is right
    graph: str = ""  # forward, backward or inference
    kernel: str = ""  # its loop
    source: str = ""  # its generated code

    @property
    def meaning(self) -> str:
        return STAGES[self.stage]


def find_culprit(calls: Calls, told: Callable[[str], None] = lambda _: None) -> Culprit:
    hunt = _Hunt(calls, told)
    total = len(calls.compiled(None).spent)
    if not hunt.wrong_with(total):
        return Culprit("unknown", "it could not be made wrong again", graph=calls.kind)
    if hunt.wrong_with(0):
        return hunt.without_optimisation()
    return hunt.the_optimisation(total)


class _Hunt:
    def __init__(self, calls: Calls, told: Callable[[str], None]) -> None:
        self.calls = calls
        self.told = told
        self.expected = Expected.of(calls)
        self.written = calls.written()

    def wrong_with(self, fuel: int) -> bool:
        try:
            found = self.calls.run(self.calls.compiled(fuel).run)
        except Exception:  # cannot be compiled with this much: says nothing about what is wrong with more
            return False
        wrong = is_wrong(self.expected.judge(found, self.written))
        self.told(f"fuel {fuel}: {'wrong' if wrong else 'right'}")
        return wrong

    # --- an optimisation ----------------------------------------------------------------------------------------

    def the_optimisation(self, total: int) -> Culprit:
        right, wrong = 0, total
        while wrong - right > 1:
            middle = (right + wrong) // 2
            right, wrong = (right, middle) if self.wrong_with(middle) else (middle, wrong)
        bad, good = self.calls.compiled(wrong), self.calls.compiled(wrong - 1)
        stage = self.first_wrong_form(bad)
        kernel = (self.wrong_kernel(bad) if stage == "codegen" else None) or self._new_kernel(bad, good)
        return self._culprit(stage, bad.spent[wrong - 1], wrong, bad, kernel)

    def _new_kernel(self, bad: GraphRecord, good: GraphRecord) -> Kernel | None:
        """The kernel that the last optimisation made or changed."""
        known = {str(kernel) for kernel in good.schedule.kernels}
        return next((kernel for kernel in bad.schedule.kernels if str(kernel) not in known), None)

    # --- none ---------------------------------------------------------------------------------------------------

    def without_optimisation(self) -> Culprit:
        record = self.calls.compiled(0)
        stage = self.first_wrong_form(record)
        if stage == "import":
            return self._culprit(stage, self.wrong_call(record) or "putting the results together", 0, record, None)
        kernel = self.wrong_kernel(record) if stage == "codegen" else self.wrong_loop(record)
        step = "a kernel" if kernel is None else f"kernel {record.schedule.kernels.index(kernel)}"
        return self._culprit(stage, f"{step}, before any optimisation", 0, record, kernel)

    def _culprit(self, stage: str, step: str, fuel: int, record: GraphRecord, kernel: Kernel | None) -> Culprit:
        source = "" if kernel is None else source_of(kernel, record.schedule, record.captured.device)
        return Culprit(stage, step, fuel, self.calls.kind, "" if kernel is None else str(kernel), source)

    # --- forms of one graph -------------------------------------------------------------------------------------

    def first_wrong_form(self, record: GraphRecord) -> str:
        """The stage whose output is the first not to compute what eager does."""
        sizes = size_values(record.captured.symbols.sources, self.calls.arguments)
        forms: tuple[tuple[str, Callable[[list[Any]], list[Any]]], ...] = (
            ("import", lambda arguments: evaluate_graph(record.imported, arguments, sizes)),
            ("passes", lambda arguments: evaluate_graph(record.captured.graph, arguments, sizes)),
            ("schedule", lambda arguments: evaluate_schedule(record.unfused, arguments, sizes)),
            ("fuse", lambda arguments: evaluate_schedule(record.schedule, arguments, sizes)),
        )
        for stage, evaluated in forms:
            wrong = self._wrong_when_evaluated(evaluated)
            self.told(f"after {stage}: {'wrong' if wrong else 'right'}")
            if wrong:
                return stage
        return "codegen" if self.wrong_kernel(record) is not None else "program"

    def _wrong_when_evaluated(self, evaluated: Callable[[list[Any]], list[Any]]) -> bool:
        def run(arguments: list[Any]) -> list[Any]:
            return evaluated([a.cpu() if isinstance(a, torch.Tensor) and a.is_cuda else a for a in arguments])

        try:
            found = self.calls.run(run)
        except Exception:  # a form that cannot be evaluated is not what is asked for
            return False
        return is_wrong(self.expected.judge(_moved(found, self.expected.eager), self.written))

    def wrong_call(self, record: GraphRecord) -> str | None:
        """The first ATen call whose operations do not compute what it does."""
        sizes = size_values(record.captured.symbols.sources, self.calls.arguments)
        values = dict(_evaluated_nodes(record.imported, copied(self.calls.arguments), sizes))
        eager, reference = self.expected.eager, self.expected.reference
        for call in self.calls.module.graph.nodes:
            made = record.captured.values.get(call)
            if call.op != "call_function" or not isinstance(made, Node) or made.id not in values:
                continue
            want, truth = eager.values[call], None if reference is None else reference.values.get(call)
            truth = truth if isinstance(truth, torch.Tensor) else None
            if isinstance(want, torch.Tensor) and not judge(values[made.id][0], want.cpu(), truth).ok:
                return f"{call.target} ({call.name})"
        return None

    def wrong_loop(self, record: GraphRecord) -> Kernel | None:
        """The first kernel before fusion that does not compute its node."""
        sizes = size_values(record.captured.symbols.sources, self.calls.arguments)
        values = dict(_evaluated_nodes(record.captured.graph, copied(self.calls.arguments), sizes))
        schedule = record.unfused
        for run in kernel_runs(schedule, copied(self.calls.arguments), sizes):
            for name, memory in run.after.items():
                node = int(name[1:]) if name[0] == "b" and name[1:].isdigit() else None
                if node in values and not judge(_in_shape(memory, schedule, name, sizes), values[node][0]).ok:
                    return run.kernel
        return None

    def wrong_kernel(self, record: GraphRecord) -> Kernel | None:
        """The first kernel whose generated code does not compute what its loop says."""
        if record.captured.device.type != "cpu":
            return None
        sizes = size_values(record.captured.symbols.sources, self.calls.arguments)
        for run in kernel_runs(record.schedule, copied(self.calls.arguments), sizes):
            if isinstance(run.kernel, ExternKernel):
                continue
            found = run_generated(run.kernel, record.schedule, run.before, sizes, self.calls.options)
            if not all(judge(found[name], want).ok for name, want in run.after.items()):
                return run.kernel
        return None


def _evaluated_nodes(graph: Graph, arguments: list[Any], sizes: dict[str, int]) -> Iterator[tuple[int, Tensors]]:
    values: dict[int, Tensors] = {}
    for node in graph.nodes:
        values[node.id] = evaluate_node(node, [values[x.id][0] for x in node.inputs], arguments, sizes, values)
        yield node.id, values[node.id]


def _in_shape(memory: torch.Tensor, schedule: Schedule, name: str, sizes: dict[str, int]) -> torch.Tensor:
    buffer = schedule.buffers[name]
    return memory.as_strided([evaluate(d, sizes) for d in buffer.shape], [evaluate(s, sizes) for s in buffer.strides])


def _moved(found: Results, like: Results) -> Results:
    """Evaluated on the CPU, judged where eager's results are."""
    device = next((t.device for t in like.outputs if isinstance(t, torch.Tensor)), torch.device("cpu"))
    return Results([t.to(device) if isinstance(t, torch.Tensor) else t for t in found.outputs], found.arguments)
