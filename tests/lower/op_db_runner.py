"""Every operation torch tests itself with, through our pipeline: capture by AOTAutograd, no Dynamo (its cost would
dominate), judged against eager with float64 as the referee."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from functorch.compile import aot_function, min_cut_rematerialization_partition
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import _disable_current_modes

from burnish.capture.graphs.decompositions import decomposition_table
from burnish.observe.log import CompileLog
from burnish.options import Options
from burnish.pipeline import compile_graph

__all__ = ["Outcome", "check_op", "op_db"]

SAMPLES = 3
UNINITIALISED = frozenset({"empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided"})


@dataclass
class Outcome:
    checked: int = 0
    untraceable: list[str] = field(default_factory=list)  # eager or capture refuses: no graph reaches us
    mismatches: list[str] = field(default_factory=list)
    crashes: list[str] = field(default_factory=list)
    externs: set[str] = field(default_factory=set)


class _Compiler:
    """Collects what the pipeline said; a failure inside it is remembered and raised."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.log = CompileLog()
        self.failed: BaseException | None = None
        self.graphs = 0
        self.draws = False  # random numbers

    def __call__(self, kind: str) -> Callable[[Any, Any], Any]:
        def compile_one(gm: Any, inputs: Any) -> Any:
            self.graphs += 1
            self.draws |= any(
                torch.Tag.nondeterministic_seeded in getattr(n.target, "tags", ()) for n in gm.graph.nodes
            )
            try:
                with _disable_current_modes():  # a fake mode is active while AOTAutograd calls us
                    run = compile_graph(gm, inputs, kind=kind, options=self.options, log=self.log)  # type: ignore[arg-type]
            except Exception as error:
                self.failed = error
                raise
            run._boxed_call = True  # type: ignore[attr-defined]
            return run

        return compile_one


def compiled(fn: Callable[..., Any], compiler: _Compiler) -> Callable[..., Any]:
    return aot_function(
        fn,
        fw_compiler=compiler("forward"),
        bw_compiler=compiler("backward"),
        inference_compiler=compiler("inference"),
        partition_fn=min_cut_rematerialization_partition,
        decompositions=decomposition_table(),
        keep_inference_input_mutations=True,
    )


def check_op(op: Any, options: Options, *, backward: bool, samples: int = SAMPLES) -> Outcome:
    outcome = Outcome()
    order = (torch.float32, torch.int64, torch.bool, torch.complex64)
    dtype = next((d for d in order if d in op.supported_dtypes("cpu")), None)
    if dtype is None:
        outcome.untraceable.append(f"{op.name} supports none of {order} on a CPU")
        return outcome
    want_grad = backward and op.supports_autograd and dtype in op.supported_backward_dtypes("cpu")
    torch.manual_seed(0)
    taken = _spread(list(op.sample_inputs("cpu", dtype, requires_grad=want_grad)), samples)
    if taken:
        _check_samples(op, taken, want_grad, options, outcome)
    return outcome


def _spread(items: Sequence[Any], count: int) -> list[Any]:
    if len(items) <= count:
        return list(items)
    step = len(items) / count
    return [items[int(i * step)] for i in range(count)]


class _Uncaptured(Exception):
    """Eager or capture refuses a call: no graph of it reaches us."""


def _check_samples(op: Any, samples: Sequence[Any], want_grad: bool, options: Options, outcome: Outcome) -> None:
    """All samples in one program, because most of a program's cost does not depend on its size. One by one where eager
    or capture refuses one of them, where they draw random numbers, and to name the sample that is wrong."""
    together = Outcome()
    try:
        _check_program(op, samples, want_grad, options, together)
    except _Uncaptured as refusal:
        together.untraceable.append(str(refusal))
    if together.checked and not together.mismatches and not together.crashes:
        outcome.checked += len(samples)
        outcome.externs |= together.externs
        return
    outcome.mismatches += together.mismatches
    outcome.crashes += together.crashes if len(samples) == 1 else []
    outcome.untraceable += together.untraceable if len(samples) == 1 else []
    for sample in samples if len(samples) > 1 else ():
        _check_samples(op, [sample], want_grad, options, outcome)
    if not outcome.crashes:  # no sample crashes alone
        outcome.crashes += together.crashes


def _check_program(op: Any, samples: Sequence[Any], want_grad: bool, options: Options, outcome: Outcome) -> None:
    flat, spec = pytree.tree_flatten([(sample.input, sample.args, sample.kwargs) for sample in samples])
    positions = [i for i, x in enumerate(flat) if isinstance(x, torch.Tensor)]

    def call(*tensors: torch.Tensor) -> Any:
        items = list(flat)
        for i, t in zip(positions, tensors, strict=True):
            items[i] = t
        calls = pytree.tree_unflatten(items, spec)
        return [t for first, args, kwargs in calls for t in _tensors_only(op(first, *args, **kwargs))]

    tensors = [flat[i] for i in positions]
    variant = f"/{op.variant_test_name}" if op.variant_test_name else ""
    where = f"{op.name}{variant} on {[tuple(t.shape) for t in tensors]}"
    compiler = _Compiler(options)
    try:
        want = _run(call, tensors, torch.float32, want_grad)
    except Exception as error:
        raise _Uncaptured(f"{where}: eager raises {type(error).__name__}") from error
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            fast = compiled(call, compiler)
            _run(fast, tensors, torch.float32, want_grad)  # capture may draw random numbers of its own
            got = _run(fast, tensors, torch.float32, want_grad)
    except Exception as error:
        message = f"{where}: {type(error).__name__}: {str(error)[:300]}"
        if compiler.failed is None and compiler.graphs == 0:
            raise _Uncaptured(message) from error
        outcome.crashes.append(message)
        return
    if len(samples) > 1 and compiler.draws:
        raise _Uncaptured(f"{where}: entries of op_db seed each call anew, which capture does not see")
    try:
        referee = _run(call, tensors, torch.float64, want_grad)
    except Exception:
        referee = want
    outcome.checked += 1
    outcome.externs |= set(compiler.log.aten_calls)
    if op.name in UNINITIALISED:
        got, want, referee = ([torch.zeros_like(t) for t in results] for results in (got, want, referee))
    problem = _differs(got, want, referee)
    if problem:
        outcome.mismatches.append(f"{where}: {problem}")


def _tensors_only(result: Any) -> list[torch.Tensor]:
    return [t for t in pytree.tree_leaves(result) if isinstance(t, torch.Tensor)]


def _run(
    fn: Callable[..., Any], tensors: list[torch.Tensor], dtype: torch.dtype, want_grad: bool
) -> list[torch.Tensor]:
    def fresh(t: torch.Tensor) -> torch.Tensor:
        complex_dtype = torch.complex128 if dtype is torch.float64 else torch.complex64
        kind = dtype if t.is_floating_point() else complex_dtype if t.is_complex() else t.dtype
        copy = torch.empty_strided(t.shape, t.stride(), dtype=kind) if _dense(t) else torch.empty(t.shape, dtype=kind)
        copy.copy_(t.detach())
        return copy.requires_grad_(want_grad and t.requires_grad)

    inputs = [fresh(t) for t in tensors]
    torch.manual_seed(42)  # what the random entries of op_db set themselves, where capture cannot see it
    if not want_grad:
        with torch.no_grad():
            return [t.detach() for t in fn(*inputs)]
    outputs = fn(*inputs)
    roots = [t for t in outputs if t.requires_grad]
    wanted = [t for t in inputs if t.requires_grad]
    grads: tuple[torch.Tensor | None, ...] = ()
    if roots and wanted:
        grads = torch.autograd.grad(roots, wanted, [torch.ones_like(r) for r in roots], allow_unused=True)
    return [t.detach() for t in outputs] + [torch.zeros(()) if g is None else g for g in grads]


def _dense(t: torch.Tensor) -> bool:
    return t.layout is torch.strided and torch.ops.aten.is_non_overlapping_and_dense(t)


def _differs(got: list[torch.Tensor], want: list[torch.Tensor], referee: list[torch.Tensor]) -> str:
    if len(got) != len(want):
        return f"{len(got)} results instead of {len(want)}"
    for k, (g, w, r) in enumerate(zip(got, want, referee, strict=True)):
        if g.shape != w.shape or g.dtype != w.dtype:
            return f"result {k} is {g.dtype}{tuple(g.shape)}, eager's {w.dtype}{tuple(w.shape)}"
        if not (w.is_floating_point() or w.is_complex()):
            if not torch.equal(g, w):
                return f"result {k} differs in {int((g != w).sum())} of {w.numel()} elements"
            continue
        problem = _worse_than_eager(g, w, r)
        if problem:
            return f"result {k}: {problem}"
    return ""


def _worse_than_eager(g: torch.Tensor, w: torch.Tensor, r: torch.Tensor) -> str:
    if w.layout is not torch.strided:
        return "" if torch.allclose(g.to_dense(), w.to_dense()) else "sparse results differ"
    wide = torch.complex128 if w.is_complex() else torch.float64
    g, w, r = g.to(wide), w.to(wide), r.to(wide) if r.shape == w.shape else w.to(wide)
    odd_g, odd_w = ~g.isfinite(), ~w.isfinite()
    if not torch.equal(odd_g, odd_w):
        return f"non-finite in {int(odd_g.sum())} elements, eager in {int(odd_w.sum())}"
    if not torch.equal(torch.nan_to_num(g[odd_g].real), torch.nan_to_num(w[odd_w].real)):
        return "other non-finite values than eager"
    fine = ~odd_w & r.isfinite()
    ours, eager = (g[fine] - r[fine]).abs(), (w[fine] - r[fine]).abs()
    allowed = torch.maximum(2 * eager.max() if eager.numel() else torch.tensor(0.0), 4e-6 * (1 + r[fine].abs()))
    if bool((ours > allowed).any()):
        worst = int((ours - allowed).argmax())
        value = r[fine][worst].item()
        return f"error {float(ours[worst]):.3g} against float64, eager's {float(eager.max()):.3g}, value {value:.6g}"
    return ""
