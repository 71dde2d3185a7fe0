"""Matrix products with their epilogues as C: written out where small, the library's where large, against the
schedule's own evaluation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from burnish.codegen.c.unit import generate, is_small
from burnish.observe.log import CompileLog
from burnish.options import Options
from burnish.runtime.build.shared_library import CSource, build_shared, load_native
from burnish.runtime.cache.store import open_cache
from burnish.runtime.program import build_program, load_program
from burnish.schedule.evaluate import evaluate_schedule
from burnish.schedule.kernels import ContractKernel
from tests.programs import capture, copies, schedules, sizes_of

r = torch.randn

PRODUCTS: dict[str, tuple[Callable[..., Any], Callable[[], Sequence[torch.Tensor]]]] = {
    "plain": (lambda x, w: x @ w, lambda: [r(6, 8), r(8, 5)]),
    "bias_gelu": (lambda x, w, b: F.gelu(F.linear(x, w, b)), lambda: [r(6, 8), r(5, 8), r(5)]),
    "row_scale": (lambda x, w, s: (x @ w) * s[:, None] + s, lambda: [r(5, 8), r(8, 5), r(5)]),
    "stored_transposed": (lambda x, w: (x @ w).t().contiguous() * 2, lambda: [r(6, 8), r(8, 5)]),
    "both_transposed": (lambda x, w: x.t() @ w.t(), lambda: [r(8, 6), r(5, 8)]),
    "two_results": (lambda x, w: ((x @ w).relu(), (x @ w).sigmoid()), lambda: [r(6, 8), r(8, 5)]),
    "batched": (lambda x, w, b: torch.baddbmm(b, x, w).tanh(), lambda: [r(3, 6, 8), r(3, 8, 5), r(3, 6, 5)]),
    "shared_weight": (lambda x, w: torch.matmul(x, w) + 1, lambda: [r(3, 6, 8), r(8, 5)]),
    "vector": (lambda x, v: torch.mv(x, v) * 2, lambda: [r(6, 8), r(8)]),
    "strided": (lambda x, w: x[::2, 1:] @ w[:, ::3], lambda: [r(12, 9), r(8, 13)]),
    "double": (lambda x, w, b: torch.addmm(b, x, w, beta=2, alpha=0.5), lambda: [r(6, 8).double() for _ in "x"]
               + [r(8, 5).double(), r(6, 5).double()]),
    "masked": (lambda x, w, m: (x @ w).masked_fill(m > 0, -1e9), lambda: [r(6, 8), r(8, 5), r(6, 5)]),
    "large": (lambda x, w, b: F.gelu(F.linear(x, w, b)), lambda: [r(70, 130), r(90, 130), r(90)]),
    "large_thin": (lambda x, w: F.silu(x @ w), lambda: [r(1, 300), r(300, 200)]),
    "large_double": (lambda x, w: (x @ w).relu(), lambda: [r(70, 130).double(), r(130, 90).double()]),
    "large_batched": (lambda x, w: (x @ w) * 2, lambda: [r(4, 40, 50), r(4, 50, 30)]),
}  # fmt: skip


def check(fn: Callable[..., Any], inputs: Sequence[torch.Tensor], dynamic: bool) -> list[ContractKernel]:
    (got,) = capture(fn, *inputs, dynamic=dynamic)
    _, schedule = schedules(got.captured)
    want = evaluate_schedule(schedule, copies(got.inputs), sizes_of(got.captured, got.inputs))
    unit = generate(schedule)
    options, log = Options(), CompileLog()
    cache = open_cache(options)
    # Double precision is a library of its own, which other programs do not wait for.
    assert unit.uses_double == (unit.uses_library and want[0].dtype == torch.float64)
    if unit.uses_library:
        load_native(unit.uses_double, options, cache, log)
    library = build_shared(CSource(unit.text, "products"), options=options, cache=cache, log=log)
    program = build_program(schedule, unit, got.captured.symbols.sources, len(got.captured.graph.inputs))
    run = load_program(program, library)
    for ours, reference, eager in zip(run(copies(got.inputs)), want, _several(fn(*inputs)), strict=True):
        torch.testing.assert_close(ours, reference, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(ours, eager, rtol=1e-5, atol=1e-5)
        assert ours.stride() == eager.stride()
    return [k for k in schedule.kernels if isinstance(k, ContractKernel)]


def _several(result: Any) -> Sequence[torch.Tensor]:
    return result if isinstance(result, tuple) else (result,)


@pytest.mark.parametrize("name", PRODUCTS)
def test_product(name: str) -> None:
    fn, make = PRODUCTS[name]
    kernels = check(fn, make(), dynamic=False)
    assert kernels
    assert all(is_small(k) != name.startswith("large") for k in kernels)


@pytest.mark.parametrize("name", ["bias_gelu", "batched", "strided", "large"])
def test_product_of_any_size(name: str) -> None:
    fn, make = PRODUCTS[name]
    kernels = check(fn, make(), dynamic=True)
    assert kernels
    assert not any(is_small(k) for k in kernels)  # sizes are not known, so the library decides
