"""Who multiplies on a CPU: the rule, the measurement and what is kept of it, and the products themselves."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch.nn import functional as F

from burnish.fuel import Fuel
from burnish.ir.dtypes import DType
from burnish.observe.log import CompileLog
from burnish.options import Options
from burnish.runtime.cache.store import Cache, open_cache
from burnish.runtime.cpu import product_backend
from burnish.runtime.cpu.blas import find_blas
from burnish.runtime.cpu.product_backend import (
    ProductClass,
    choose,
    choose_libraries,
    classify,
    is_faster,
    race,
    trial,
)
from burnish.schedule.kernels import ContractKernel, Schedule
from tests.programs import Compiler, capture, compiled, schedules

needs_blas = pytest.mark.skipif(find_blas() is None, reason="this torch shows no BLAS")
LARGE = ProductClass(DType.f32, 128, 3072, 768, True, False, 2)


def product_of(fn: object, *inputs: torch.Tensor, dynamic: bool = False) -> ContractKernel:
    (got,) = capture(fn, *inputs, dynamic=dynamic)  # type: ignore[arg-type]
    _, joined = schedules(got.captured)
    (kernel,) = [k for k in joined.kernels if isinstance(k, ContractKernel)]
    return kernel


@pytest.fixture(autouse=True)
def _nothing_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(product_backend, "_answers", {})


# --- the rule ---------------------------------------------------------------------------------------------------


def test_products_alike_are_one_class() -> None:
    a = classify(product_of(F.linear, torch.randn(120, 760), torch.randn(3000, 760)), 2)
    assert a == LARGE
    assert classify(product_of(torch.mm, torch.randn(120, 760), torch.randn(760, 3000)), 2) == replace(
        LARGE, b_by_row=True
    )


@pytest.mark.parametrize(
    ("m", "k", "n", "dtype"),
    [(4, 4096, 4096, torch.float32), (64, 64, 64, torch.float32), (8, 4096, 4096, torch.bfloat16)],
    ids=["few rows", "little work", "half"],
)
def test_products_that_are_our_own_without_asking(m: int, k: int, n: int, dtype: torch.dtype) -> None:
    kernel = product_of(torch.mm, torch.randn(m, k, dtype=dtype), torch.randn(k, n, dtype=dtype))
    assert classify(kernel, 2) is None


def test_a_product_of_any_size_is_our_own() -> None:
    x, w = torch.randn(128, 768), torch.randn(3072, 768)
    torch._dynamo.mark_dynamic(x, 0)
    assert classify(product_of(F.linear, x, w, dynamic=True), 2) is None


# --- the measurement --------------------------------------------------------------------------------------------


def test_an_answer_is_measured_once_and_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache, asked = Cache(tmp_path, 1 << 20), []

    def ratio() -> float:
        asked.append(1)
        return 1.2

    assert is_faster(LARGE, cache, ratio) and is_faster(LARGE, cache, ratio)
    monkeypatch.setattr(product_backend, "_answers", {})  # another process
    assert is_faster(LARGE, Cache(tmp_path, 1 << 20), ratio)
    assert len(asked) == 1
    assert not is_faster(replace(LARGE, threads=1), cache, lambda: 1.01)  # another class, and hardly faster


def test_the_two_take_turns() -> None:
    turns: list[bool] = []
    noisy = iter([9.0, 1.0, 1.2, 1.0, 1.2, 1.0, 30.0, 1.0, 1.2, 1.0, 1.2, 1.0])

    def seconds(library: bool) -> float:
        turns.append(library)
        return next(noisy) * 1e-6

    assert race(seconds) == pytest.approx(1.2)  # neither the first round nor one that was disturbed counts
    assert turns == [False, True] * 6


def test_long_products_have_few_rounds() -> None:
    turns: list[bool] = []
    assert race(lambda library: turns.append(library) or 1.0) == 1.0  # type: ignore[func-returns-value]
    assert len(turns) == 4


@pytest.mark.parametrize("ours", [3.0, 0.5])
def test_two_rounds_are_enough_where_one_is_far_ahead(ours: float) -> None:
    turns: list[bool] = []
    assert race(lambda library: turns.append(library) or (1e-6 if library else ours * 1e-6)) == pytest.approx(ours)  # type: ignore[func-returns-value]
    assert len(turns) == 2 * 3


def test_trials_end_with_their_allowance_and_the_rest_is_answered_alike(tmp_path: Path) -> None:
    """Far from the first result: the time of trials is bounded, whatever the number of classes."""
    now, tried = [0.0], []
    wide, tall = replace(LARGE, n=12288), replace(LARGE, m=8192, n=64)
    near_wide, near_tall = replace(LARGE, n=8192), replace(LARGE, m=6144, n=64)

    def ratio(found: ProductClass) -> float:
        tried.append(found)
        now[0] += 1.0
        return 2.0 if found == wide else 0.5

    classes = [wide, tall, near_wide, near_tall]
    got = choose(classes, Cache(tmp_path, 1 << 20), ratio, allowance=1.5, clock=lambda: now[0])
    assert tried == [wide, tall]
    assert got == {wide: True, tall: False, near_wide: True, near_tall: False}
    choose(classes, Cache(tmp_path, 1 << 20), ratio, allowance=0.5, clock=lambda: now[0])  # another compile
    assert tried == [wide, tall, near_wide]


def test_an_answer_from_a_busy_machine_is_measured_again_in_a_quiet_hour(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def another_process(ratio: float, quiet: bool) -> bool:
        monkeypatch.setattr(product_backend, "_answers", {})
        return is_faster(LARGE, Cache(tmp_path, 1 << 20), lambda: ratio, lambda: quiet)

    assert not another_process(0.5, quiet=False)
    assert not another_process(2.0, quiet=False)  # good enough for now
    assert another_process(2.0, quiet=True)
    assert another_process(0.5, quiet=True)  # and for good


@needs_blas
def test_a_trial() -> None:
    options = Options()
    assert trial(ProductClass(DType.f64, 64, 64, 64, True, False, 1), options, open_cache(options), CompileLog()) > 0


# --- the products -----------------------------------------------------------------------------------------------


def marked(schedule: Schedule) -> list[bool]:
    return [k.library for k in schedule.kernels if isinstance(k, ContractKernel)]


@needs_blas
def test_fuel_and_the_option_decide() -> None:
    def schedule() -> Schedule:
        (got,) = capture(F.linear, torch.randn(128, 768), torch.randn(768, 768))
        return schedules(got.captured)[1]

    def chosen(products: str, fuel: int | None = None) -> list[bool]:
        options = Options(products=products)  # type: ignore[arg-type]
        return marked(choose_libraries(schedule(), options, Fuel(fuel), CompileLog()))

    assert chosen("library") == [True] and chosen("ours") == [False] and chosen("library", 0) == [False]
    assert "by BLAS" in str(choose_libraries(schedule(), Options(products="library"), Fuel(), CompileLog()))


@needs_blas
@pytest.mark.threads
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("transposed", [False, True])
def test_the_same_results_with_an_epilogue(dtype: torch.dtype, transposed: bool) -> None:
    def fn(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        sums = F.linear(x.t() if transposed else x, w, b)
        return F.gelu(sums) + y, sums.relu()

    x = torch.randn(512, 200, dtype=dtype) if transposed else torch.randn(200, 512, dtype=dtype)
    inputs = [x, torch.randn(500, 512, dtype=dtype), torch.randn(500, dtype=dtype), torch.randn(200, 500, dtype=dtype)]
    compiler = Compiler(Options(verify_ir=True, products="library"))
    got, eager = compiled(fn, compiler)(*inputs), fn(*inputs)
    truth = fn(*(t.double() for t in inputs))
    assert compiler.graphs == 1
    for g, e, t in zip(got, eager, truth, strict=True):
        allowed = 2 * (e.double() - t).abs().max() + 32 * torch.finfo(dtype).eps * t.abs().max()
        assert (g.double() - t).abs().max() <= allowed


@needs_blas
def test_batches_of_products() -> None:
    x, y = torch.randn(3, 256, 300), torch.randn(3, 300, 256)
    got = compiled(lambda a, b: torch.bmm(a, b) * 2, Compiler(Options(products="library")))(x, y)
    torch.testing.assert_close(got, torch.bmm(x, y) * 2, rtol=1e-4, atol=1e-3)
