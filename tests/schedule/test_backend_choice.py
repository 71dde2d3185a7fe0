"""The pass "products": who computes each product, convolution and attention, by the rule or as it is told."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from burnish.schedule.form import LIBRARY, Form, ours
from burnish.schedule.gpu.backends import backend_forms, choose_backends
from burnish.schedule.kernels import AttendKernel, ContractKernel, ConvolveKernel, ExternKernel, LoopKernel
from tests.schedule.one_pass import OnePass, one_pass


def half(*shape: int) -> torch.Tensor:
    return torch.randn(*shape).bfloat16() / 8


def kinds(found: OnePass) -> list[type]:
    return [type(k) for k in found.after.kernels]


@pytest.fixture(autouse=True)
def wide_products() -> Iterator[None]:
    """ATen has a product of halves with a result in full precision on GPUs only."""
    library = torch.library.Library("aten", "IMPL")
    library.impl("mm.dtype", lambda a, b, dtype: a.to(dtype) @ b.to(dtype), "CPU")
    yield
    library._destroy()


def split_product() -> OnePass:
    return one_pass("products", lambda x, w: (x @ w).relu(), half(32, 4096), half(4096, 64))


# --- products ---------------------------------------------------------------------------------------------------


def test_a_small_product_is_ours_with_its_epilogue() -> None:
    found = one_pass("products", lambda x, w: F.gelu(x @ w), half(48, 64), half(64, 96))
    assert kinds(found) == [ContractKernel] and str(found.after) == str(found.before)


def test_a_large_product_is_the_librarys_with_its_bias() -> None:
    found = one_pass("products", lambda x, w, b: F.linear(x, w, b), half(2048, 64), half(2048, 64), half(2048))
    (call,) = found.after.kernels
    assert isinstance(call, ExternKernel) and call.op.name == "aten.addmm.default"
    found.require_same_results(2e-2)


def test_what_follows_a_large_product_is_a_loop_for_its_reader_to_join() -> None:
    found = one_pass("products", lambda x, w: F.gelu(x @ w).softmax(-1), half(2048, 64), half(64, 2048))
    assert kinds(found)[:2] == [ExternKernel, LoopKernel] and ContractKernel not in kinds(found)
    found.require_same_results(2e-2)


def test_a_large_product_keeps_an_epilogue_that_no_loop_would_take_over() -> None:
    """A loop after the library's call would be a pass over memory."""
    assert kinds(one_pass("products", lambda x, w: F.gelu(x @ w), half(2048, 64), half(64, 2048))) == [ContractKernel]


def test_a_long_sum_with_few_tiles_is_cut_and_its_reader_adds_the_parts() -> None:
    found = split_product()
    product, reader = found.after.kernels
    assert isinstance(product, ContractKernel) and product.a.shape == (4, 32, 1024)
    assert isinstance(reader, LoopKernel) and reader.reads == product.writes
    found.require_same_results(2e-2)


def test_full_precision_is_the_librarys() -> None:
    found = one_pass("products", lambda x, w: x @ w, torch.randn(256, 512), torch.randn(512, 256))
    assert kinds(found) == [ExternKernel]
    found.require_same_results()


def test_a_tiny_product_in_full_precision_is_over_before_a_call() -> None:
    assert kinds(one_pass("products", lambda x, w: x @ w, torch.randn(64, 64), torch.randn(64, 64))) == [ContractKernel]


def test_few_rows_are_ours_and_never_cut() -> None:
    found = one_pass("products", F.linear, half(8, 4096), half(512, 4096))
    (product,) = found.after.kernels
    assert isinstance(product, ContractKernel) and len(product.a.shape) == 2


# --- convolutions and attention ---------------------------------------------------------------------------------


def image(*shape: int) -> torch.Tensor:
    return half(*shape).to(memory_format=torch.channels_last)


def test_a_small_convolution_is_ours() -> None:
    found = one_pass("products", lambda x, k: F.conv2d(x, k, padding=1), image(2, 48, 5, 6), image(16, 48, 3, 3))
    assert kinds(found) == [ConvolveKernel]


def test_a_convolution_of_long_sums_is_cut() -> None:
    found = one_pass("products", lambda x, k: F.conv2d(x, k, padding=1), image(1, 512, 7, 7), image(64, 512, 3, 3))
    (convolution, reader) = found.after.kernels
    assert isinstance(convolution, ConvolveKernel) and convolution.splits > 1 and isinstance(reader, LoopKernel)
    found.require_same_results(2e-2)


def test_a_layout_that_our_kernel_does_not_read_is_the_librarys() -> None:
    found = one_pass("products", lambda x, k: F.conv2d(x, k, padding=1), half(2, 48, 5, 6), half(16, 48, 3, 3))
    assert kinds(found) == [ExternKernel]
    found.require_same_results(2e-2)


def test_attention_is_ours() -> None:
    given = [half(1, 4, 32, 32) for _ in range(3)]
    assert AttendKernel in kinds(one_pass("products", F.scaled_dot_product_attention, *given))


# --- what it is told --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("form", "kernels"),
    [(LIBRARY, [ExternKernel, LoopKernel]), (ours(), [ContractKernel]), (ours(2), [ContractKernel, LoopKernel])],
    ids=str,
)
def test_a_form_that_is_given_is_taken(form: Form, kernels: list[type]) -> None:
    found = split_product()
    found.after = choose_backends(found.before, {0: form})
    assert kinds(found) == kernels
    found.require_same_results(2e-2)


@pytest.mark.parametrize(
    ("fn", "inputs"),
    [
        (lambda x, w: x @ w, [half(32, 4096), half(4096, 64)]),
        (lambda x, w: x @ w, [half(2048, 64), half(64, 2048)]),
        (lambda x, k: F.conv2d(x, k, padding=1), [image(2, 48, 5, 6), image(16, 48, 3, 3)]),
    ],
    ids=["split", "library", "convolution"],
)
def test_the_rules_choice_is_the_first_of_the_forms(fn: Callable[..., Any], inputs: list[torch.Tensor]) -> None:
    found = one_pass("products", fn, *inputs)
    first, *others = backend_forms(found.before, found.before.kernels[0])
    assert str(choose_backends(found.before, {0: first})) == str(found.after)
    assert others and first not in others


def test_it_takes_no_fuel() -> None:
    """Each product has some backend: there is nothing to leave out."""
    found = split_product()
    assert not found.steps and str(found.without_fuel) == str(found.after)
