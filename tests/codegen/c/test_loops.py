"""Generated C against the reference: every form of loop nest, on the same buffers."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence

import pytest
import torch

from burnish.codegen.c import loop as c_loop
from burnish.codegen.c.loop import CFunction
from burnish.codegen.c.unit import print_kernel
from burnish.ir.evaluate import evaluate_loop
from burnish.observe.log import CompileLog
from burnish.options import Options
from burnish.runtime.build.shared_library import CSource, build_shared
from burnish.runtime.cache.store import open_cache
from burnish.schedule.kernels import LoopKernel
from tests.codegen.c.loops import Case, all_cases, astray

CASES = all_cases()


def printed(case: Case) -> CFunction:
    return print_kernel(LoopKernel(case.loop), {})


def wrapper(name: str, function: CFunction) -> str:
    """An exported entry point over one table of words, as a unit's own."""
    sig = function.signature
    count = len(sig.buffers)
    words = [f"(void *)t[{k}]" for k in range(count)] + [f"t[{count + k}]" for k in range(len(sig.sizes))]
    words += [f"&t[{count + len(sig.sizes)}]"] if sig.checks else []
    text = function.text.replace("@", f"{name}_kernel")
    return f"{text}\nvoid {name}(int64_t *t) {{ {name}_kernel({', '.join(words)}); }}\n"


def built(cases: Sequence[Case]) -> ctypes.CDLL:
    """All cases in one translation unit: the compiler starts once."""
    text = ['#include "bn_kernel.h"', *(wrapper(c.name, printed(c)) for c in cases)]
    options = Options()
    return build_shared(CSource("\n".join(text), "loops"), options=options, cache=open_cache(options), log=CompileLog())


@pytest.fixture(scope="module")
def library() -> ctypes.CDLL:
    return built([*CASES, astray()])


def run(library: ctypes.CDLL, case: Case) -> tuple[dict[str, torch.Tensor], int]:
    """Buffers after the kernel ran, and its error flag."""
    sig = printed(case).signature
    held = {name: t.clone() for name, t in case.buffers.items()}
    words = [held[b].data_ptr() for b in sig.buffers] + [case.sizes[s] for s in sig.sizes] + [0]
    table = (ctypes.c_int64 * len(words))(*words)
    getattr(library, case.name)(table)
    return held, table[len(words) - 1]


def test_names_are_unique() -> None:
    assert len({c.name for c in CASES}) == len(CASES)


def check(library: ctypes.CDLL, case: Case) -> None:
    case.loop.verify()
    want = {name: t.clone() for name, t in case.buffers.items()}
    evaluate_loop(case.loop, want, case.sizes)
    got, error = run(library, case)
    assert error == 0
    written = {s.buffer for s in case.loop.stores}
    for name in case.buffers:
        if name not in written:
            assert torch.equal(got[name].view(torch.uint8), case.buffers[name].view(torch.uint8)), f"{name} was written"
            continue
        a, b = got[name], want[name]
        if b.is_floating_point():
            torch.testing.assert_close(a, b, rtol=case.tolerance, atol=case.tolerance, equal_nan=True, msg=name)
        else:
            assert torch.equal(a, b), f"{name}: {a[a != b]} instead of {b[a != b]} at {(a != b).nonzero().flatten()}"


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_c_is_the_reference(library: ctypes.CDLL, case: Case) -> None:
    check(library, case)


def test_a_position_astray_raises_the_flag(library: ctypes.CDLL) -> None:
    case = astray()
    with pytest.raises(IndexError):
        evaluate_loop(case.loop, {n: t.clone() for n, t in case.buffers.items()}, {})
    got, error = run(library, case)
    assert error == 1
    inside = (case.buffers["at"] >= 0) & (case.buffers["at"] < 5)
    assert torch.equal(got["z"][inside], case.buffers["x"][case.buffers["at"][inside]])


LONG_SUMS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "everything_f32_100000": lambda x: x.view(-1, 1),
    "long_column_sum": lambda x: x.view(-1, 7),
    "long_sum_with_gaps": lambda x: x.view(-1, 40)[:, :30].reshape(-1, 1),
}


@pytest.mark.parametrize("name", LONG_SUMS)
def test_long_sums_are_as_accurate_as_eager(library: ctypes.CDLL, name: str) -> None:
    (case,) = (c for c in CASES if c.name == name)
    x = LONG_SUMS[name](case.buffers["x"])
    truth = x.double().sum(0)
    ours = (run(library, case)[0]["z"].double() - truth).abs().max()
    eager = (x.sum(0).double() - truth).abs().max()
    assert ours <= max(2 * eager, 1e-7 * truth.max())


@pytest.mark.threads
def test_every_form_with_several_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small strips and blocks, and threads from the first element on: the forms' edges meet within these sizes."""
    for name, value in (("_PARALLEL_WORK", 1), ("_STRIP", 8), ("_BLOCK", 16), ("_BLOCK_ROWS", 4)):
        monkeypatch.setattr(c_loop, name, value)
    shared = built([c for c in CASES if not c.name.startswith(("casts", "operations", "wrapping"))])
    for case in CASES:
        if not case.name.startswith(("casts", "operations", "wrapping")):
            check(shared, case)
