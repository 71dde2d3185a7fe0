"""Kernels for GPUs that are not here: what they take, each of those has."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from burnish.codegen.triton.module import generate, launch_forms
from burnish.device import H200, KNOWN, REFERENCE, Gpu, gpu_of
from burnish.ir.dtypes import DType
from burnish.schedule.gpu.products import choose_products
from burnish.schedule.gpu.split_reductions import split_reductions
from burnish.schedule.kernels import Buffer, LoopKernel, Schedule
from tests.triton.compiler import Compiler
from tests.triton.loops import reduced
from tests.triton.test_products import attend, product_of, schedule_of

SHAPES = {
    "few rows": (16, 4096, 4096),
    "fewest rows": (2, 4096, 4096),
    "a tile": (128, 768, 768),
    "large": (4096, 4096, 1024),
}
by_name = pytest.mark.parametrize("gpu", KNOWN, ids=lambda gpu: gpu.name)


@by_name
@pytest.mark.parametrize("shape", SHAPES)
def test_a_product_fits_into_shared_memory(gpu: Gpu, shape: str, compiler: Compiler) -> None:
    schedule = replace(schedule_of(product_of(*SHAPES[shape])), gpu=gpu)
    major, minor = gpu.capability
    assert compiler.shared_memory(generate(schedule), 0, 10 * major + minor) <= gpu.shared_memory


@by_name
def test_attention_fits_into_shared_memory(gpu: Gpu, compiler: Compiler) -> None:
    schedule = replace(attend(1, 8, 8, 512, 512, 128, True, None), gpu=gpu)
    major, minor = gpu.capability
    for number in generate(schedule).calls:
        assert compiler.shared_memory(generate(schedule), number, 10 * major + minor) <= gpu.shared_memory


@by_name
def test_no_form_that_a_search_tries_asks_for_more_than_there_is(gpu: Gpu) -> None:
    """Loads in flight: stages of rows and columns of half types."""
    kernel = product_of(*SHAPES["a tile"])
    tiles = [f for f in launch_forms(kernel, gpu) if f.name == "tile"]
    assert tiles and all(
        f["STAGES"] * f["KBLOCK"] * (f["YBLOCK"] + f["XBLOCK"]) * 2 <= gpu.shared_memory for f in tiles
    )


def test_a_wider_chip_gets_more_pieces() -> None:
    def pieces(gpu: Gpu) -> int:
        schedule = replace(schedule_of(product_of(64, 256, 8192)), gpu=gpu)
        return len(choose_products(schedule).kernels)

    assert pieces(H200) == 2 and pieces(replace(H200, multiprocessors=4)) == 1


def test_a_chip_with_rows_enough_for_its_multiprocessors_cuts_none() -> None:
    loop = reduced("sum", 64, 1 << 16, DType.f32, DType.f32)
    buffers = {
        name: Buffer(name, DType.f32, shape, strides, "temp")
        for name, shape, strides in (("x", (64, 1 << 16), (1 << 16, 1)), ("y", (64,), (1,)))
    }
    cut = [
        len(split_reductions(Schedule(buffers, [LoopKernel(loop)], [], gpu=gpu)).kernels)
        for gpu in (H200, replace(H200, multiprocessors=58))
    ]
    assert cut == [2, 1]


def test_without_a_gpu_schedules_are_for_the_reference() -> None:
    assert gpu_of(torch.device("cpu")) is REFERENCE
