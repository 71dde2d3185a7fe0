"""A GPU's kernels without a GPU: the first call's graphs, scheduled for CUDA, each kernel in Triton's interpreter and
beside it what it means (the schedule's evaluator); and what the schedule means beside ATen's own graph."""

from __future__ import annotations

import contextlib
import functools
import io
import math
import operator
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from burnish.codegen.triton.module import generate
from burnish.fuel import Fuel
from burnish.ir.body import instr_index
from burnish.ir.expr import symbols
from burnish.passes import run_passes
from burnish.schedule.evaluate import ScheduleEvaluation
from burnish.schedule.kernels import ContractGroup, ExternKernel, Kernel, LoopGroup, LoopKernel, Product, Schedule
from burnish.schedule.lower import lower_graph
from burnish.schedule.passes import Context, run_schedule_passes
from tests.codegen.triton.interpreter import Interpreter, Job, _mend_interpreter, _run, job
from tests.fuzz.case import Case
from tests.fuzz.check import Report
from tests.fuzz.execute import Noise
from tests.fuzz.inputs import built
from tests.fuzz.oracle import Find, _beyond, _equal
from tests.programs import Capture, capture, copies, sizes_of


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


_MOST_PROGRAMS = 300  # of a kernel: the interpreter takes milliseconds for each of their lines
# Which of several equal elements they name is nobody's promise.
_PLACES = (torch.ops.aten.topk.default,)
# Of infinities its running mean is one or NaN, by their order (docs/limits.md).
_MEANS = (torch.ops.aten.var_mean.correction,)
# Eager's kernels for a GPU, and so what is lowered for one, multiply by a sixth of 32 bits; its others divide by 6.
_BY_A_SIXTH = (torch.ops.aten.hardswish.default, torch.ops.aten.hardsigmoid.default)


def _checked(entry: Capture) -> list[Find]:
    captured = entry.captured
    captured.graph = run_passes(captured.graph, Fuel(None), lambda name, graph: graph.verify(), captured.target)
    schedule = run_schedule_passes(lower_graph(captured), captured.target, Context())
    schedule.verify()
    beside = _Beside(schedule, copies(entry.inputs), sizes_of(captured, entry.inputs))
    if not beside.knows_sizes():
        return []
    got = beside.run()[: captured.results]
    doubles = [n for n in entry.module.graph.nodes if n.target in _BY_A_SIXTH and n.meta["val"].dtype is torch.float64]
    if beside.finds or doubles:
        return beside.finds
    eager = Around(lambda given: entry.module(*given), entry.inputs)
    eager.near_limit = any(n.target in _MEANS for n in entry.module.graph.nodes)
    names_places = _names_places(entry)
    return [
        Find("schedule", 0, f"result {k}", problem)
        for k, (g, w) in enumerate(zip(got, eager.results, strict=False))
        if isinstance(w, torch.Tensor) and k not in names_places and (problem := eager.problem_of(k, g))
    ]


def _names_places(entry: Capture) -> set[int]:
    (output,) = entry.module.graph.find_nodes(op="output")
    return {
        k
        for k, x in enumerate(output.args[0])
        if isinstance(x, torch.fx.Node) and x.target is operator.getitem and x.args[0].target in _PLACES and x.args[1]
    }


Values = Sequence[Any]


class Around:
    """What a computation gives, and what surrounds it: its results when each rounding is perturbed by one unit in the
    last place, and in float64."""

    def __init__(self, run: Callable[[list[Any]], Values], inputs: Values) -> None:
        self.run, self.inputs = run, inputs
        self.results = run(copies(inputs))
        self.near_limit = False

    @functools.cached_property
    def others(self) -> list[Values]:
        found = []
        for seed in range(1, 5):
            noise = Noise(torch.Generator().manual_seed(seed))
            given = perturbed(self.inputs, noise)
            with noise.perturbing():
                found.append(self.run(given))
            self.near_limit |= noise.near_limit
        return found

    @functools.cached_property
    def exact(self) -> Values | None:
        return _in_float64(self.run, self.inputs)

    def problem_of(self, k: int, got: torch.Tensor) -> str:
        if _equal(got, self.results[k]).all():
            return ""
        others, exact = [o[k] for o in self.others], None if self.exact is None else self.exact[k]
        return problem_of(got, self.results[k], others, exact, self.near_limit)


def perturbed(inputs: Values, noise: Noise) -> list[Any]:
    given = copies([i.detach() if isinstance(i, torch.Tensor) else i for i in inputs])
    for t in given:
        if isinstance(t, torch.Tensor) and t.is_floating_point():
            with contextlib.suppress(RuntimeError):  # whose elements share memory
                t.mul_(noise.factor(t))
    return given


def _in_float64(run: Callable[[list[Any]], Values], inputs: Values) -> Values | None:
    try:
        with _Wide():
            return run(copies([i.detach() if isinstance(i, torch.Tensor) else i for i in inputs], double=True))
    except Exception:  # what is about the bits of a type, or asks for one
        return None


class _Wide(TorchDispatchMode):
    """Whatever would be computed or made in a narrower type of floats is in float64."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*pytree.tree_map(_widened, args), **pytree.tree_map(_widened, kwargs or {}))


def _widened(x: Any) -> Any:
    if isinstance(x, torch.Tensor):
        return x.double() if x.is_floating_point() and x.dtype is not torch.float64 else x
    return torch.float64 if isinstance(x, torch.dtype) and x.is_floating_point else x


class _Beside(ScheduleEvaluation):
    """The evaluation, in which each kernel is run as Triton, too; the first that differs is kept."""

    def __init__(self, schedule: Schedule, inputs: list[Any], sizes: dict[str, int]) -> None:
        self.unit = generate(schedule, interpreted=True)
        self.numbers = {id(k): n for n, k in enumerate(schedule.kernels)}
        self.finds: list[Find] = []
        if _known(schedule, sizes):
            super().__init__(schedule, inputs, sizes)

    def knows_sizes(self) -> bool:
        """Where a size is computed, or only a graph of Dynamo's is given it, there is nothing to evaluate."""
        return hasattr(self, "memory")

    def run_kernel(self, kernel: Kernel) -> None:
        call = self.unit.calls.get(self.numbers.get(id(kernel), -1))
        launch = None if call is None else job(self.unit.text, call, self.sizes)
        if call is None or launch is None or math.prod(launch.grid) > _MOST_PROGRAMS:
            super().run_kernel(_on_cpu(kernel))
            return
        before = {b: self.memory[b].clone() for b in call.buffers}
        meant = Around(functools.partial(self._meant, kernel, call.buffers), list(before.values()))
        held = {b: t.clone() for b, t in before.items()}
        try:
            error = _interpreter().run([launch], held)
        except Exception as raised:  # what Triton does not take is a find, too
            self.finds.append(Find("triton", 0, call.function, f"{type(raised).__name__}: {raised}"))
            return
        if error:
            self.finds.append(Find("triton", 0, call.function, "an index out of range"))
        for k, b in enumerate(call.buffers):
            if problem := meant.problem_of(k, held[b]):
                self.finds.append(Find("triton", 0, f"{call.function} {b}", problem))
            self.memory[b].copy_(held[b])  # what follows goes on with what a device would have

    def _meant(self, kernel: Kernel, names: Sequence[str], held: list[torch.Tensor]) -> list[torch.Tensor]:
        """What a kernel makes of these buffers, of whatever type they are now."""
        kept = self.memory
        self.memory = {**kept, **dict(zip(names, held, strict=True))}
        try:
            super().run_kernel(kernel)
        finally:
            self.memory = kept
        return held


def _known(schedule: Schedule, sizes: dict[str, int]) -> bool:
    mentioned = {s.name for b in schedule.buffers.values() for s in symbols(b.extent)}
    for kernel in schedule.kernels:
        for part in kernel.parts if isinstance(kernel, LoopGroup | ContractGroup) else (kernel,):
            if isinstance(part, LoopKernel | Product):
                inside = {a.name for a in part.loop.axes}
                found = {s.name for i in part.loop.body for s in symbols(instr_index(i))} - inside
                mentioned |= {n for n in found if not n.startswith("%")}
                mentioned |= {s.name for a in part.loop.axes for s in symbols(a.size)}
    return mentioned <= set(sizes)


def _on_cpu(kernel: Kernel) -> Kernel:
    """An ATen call that names the device to lower for."""
    if not isinstance(kernel, ExternKernel):
        return kernel
    args, kwargs = pytree.tree_map(
        lambda x: torch.device("cpu") if isinstance(x, torch.device) else x, (kernel.op.args, kernel.op.kwargs)
    )
    return replace(kernel, op=replace(kernel.op, args=args, kwargs=kwargs))


def problem_of(
    got: torch.Tensor,
    want: torch.Tensor,
    others: Sequence[torch.Tensor],
    exact: torch.Tensor | None = None,
    near_limit: bool = False,
) -> str:
    wrong = ~_equal(got, want)
    if not wrong.any():
        return ""
    if want.is_floating_point():
        wrong &= _beyond(want, got, others)
        if near_limit:
            wrong &= want.isfinite() & got.isfinite()
        if exact is not None:
            wrong &= ~_as_exact(got.double(), want.double(), exact.double())
    else:
        wrong &= not near_limit
        for other in others if exact is None else [*others, exact]:  # what rounding decides is no find
            wrong &= _equal(other.to(want.dtype), want)
    if not wrong.any():
        return ""
    at = wrong.nonzero()[0].tolist() if wrong.dim() else []
    values = f"{got[tuple(at)].item()!r} at {at}, meant {want[tuple(at)].item()!r}"
    return f"{values} ({int(wrong.sum())} of {wrong.numel()})"


def _as_exact(got: torch.Tensor, want: torch.Tensor, exact: torch.Tensor) -> torch.Tensor:
    """Where the error is at most twice the largest that the other has in a number no larger than four times this one:
    how exact one element of a tensor happens to be says little."""
    known = exact.isfinite() & want.isfinite()
    size, order = exact[known].abs().sort()
    if not len(size):
        return known
    theirs = (want - exact)[known].abs()[order].cummax(0).values
    reach = torch.searchsorted(size, 4 * torch.where(known, exact.abs(), 0.0).flatten(), right=True) - 1
    allowed = 2 * theirs[reach.clamp(min=0)].reshape(exact.shape)
    return known & ((got - exact).abs() <= allowed)
