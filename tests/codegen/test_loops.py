"""Generated C against the reference: every form of loop nest, on the same buffers."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator

import pytest
import torch

from burnish.codegen.c import print_kernel
from burnish.codegen.c_loop import CFunction
from burnish.ir.evaluate import evaluate_loop
from burnish.options import Options
from burnish.runtime.build import CSource, build_shared
from burnish.runtime.cache import open_cache
from burnish.schedule.kernels import LoopKernel
from burnish.stats import CompileLog
from tests.codegen.loops import Case, all_cases, astray

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


@pytest.fixture(scope="module")
def library() -> Iterator[ctypes.CDLL]:
    """All cases in one translation unit: the compiler starts once."""
    text = ['#include "bn_kernel.h"', *(wrapper(c.name, printed(c)) for c in [*CASES, astray()])]
    options = Options()
    yield build_shared(CSource("\n".join(text), "loops"), options=options, cache=open_cache(options), log=CompileLog())


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


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_c_is_the_reference(library: ctypes.CDLL, case: Case) -> None:
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


def test_a_position_astray_raises_the_flag(library: ctypes.CDLL) -> None:
    case = astray()
    with pytest.raises(IndexError):
        evaluate_loop(case.loop, {n: t.clone() for n, t in case.buffers.items()}, {})
    got, error = run(library, case)
    assert error == 1
    inside = (case.buffers["at"] >= 0) & (case.buffers["at"] < 5)
    assert torch.equal(got["z"][inside], case.buffers["x"][case.buffers["at"][inside]])


def test_long_sums_are_as_accurate_as_eager(library: ctypes.CDLL) -> None:
    (case,) = (c for c in CASES if c.name == "everything_f32_100000")
    got, _ = run(library, case)
    x = case.buffers["x"]
    truth = x.double().sum()
    ours, eager = abs(got["z"][0].double() - truth), abs(x.sum().double() - truth)
    assert ours <= max(2 * eager, 1e-7 * truth)
