"""Kernels for GPUs that are not here: what they take, each of those has."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, replace
from functools import partial

import pytest
import torch
import torch.nn.functional as F

from burnish.codegen.triton.module import generate, launch_forms
from burnish.device import H200, KNOWN, REFERENCE, Gpu, gpu_of
from burnish.ir.body import Loop
from burnish.ir.dtypes import DType
from burnish.schedule.gpu.backends import choose_backends
from burnish.schedule.gpu.split_reductions import split_reductions
from burnish.schedule.kernels import Buffer, LoopKernel, Schedule
from burnish.schedule.lower import lower_graph
from burnish.schedule.passes import Context, run_schedule_passes
from tests.codegen.triton.compiler import Compiler, Resources
from tests.codegen.triton.loops import biased, column_sums, reduced, row_and_column_sums, softmax, transposed
from tests.codegen.triton.test_decode import captured
from tests.codegen.triton.test_products import attend, product_of, schedule_of

SHAPES = {
    "few rows": (16, 4096, 4096),
    "fewest rows": (2, 4096, 4096),
    "a tile": (128, 768, 768),
    "large": (4096, 4096, 1024),
}
_MOST_THREADS = 1024  # of a thread block, on every GPU of NVIDIA's
by_name = pytest.mark.parametrize("gpu", KNOWN, ids=lambda gpu: gpu.name)


def of_loop(loop: Loop) -> Schedule:
    return Schedule({}, [LoopKernel(loop)], [])


SCHEDULES = {
    **{f"product: {name}": partial(schedule_of, product_of(*shape)) for name, shape in SHAPES.items()},
    "attention": lambda: attend(1, 8, 8, 512, 512, 128, True, None),
    **{
        f"attention of {name}": partial(attend, *shape, False, mask)
        for name, shape, mask in (
            ("wide heads", (1, 8, 8, 512, 512, 128), DType.bool),
            ("few queries", (1, 12, 12, 64, 512, 128), DType.f32),
            ("a batch", (16, 16, 4, 1024, 1024, 128), None),
            ("odd heads", (1, 12, 12, 128, 128, 80), DType.bf16),
        )
    },
    "map": lambda: of_loop(biased(8192, 4096, DType.bf16)),
    "transpose": lambda: of_loop(transposed(4, 1024, 1024)),
    "rows": lambda: of_loop(softmax(4096, 4096)),
    "long rows": lambda: of_loop(softmax(64, 1 << 17)),
    "columns": lambda: of_loop(column_sums(4096, 1024)),
    "rows and columns": lambda: of_loop(row_and_column_sums(528, 16, 1024)),
}


def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True)


def decoded(queries: int, keys: int, width: int) -> list[torch.Tensor]:
    sizes = ((1, 32, queries, width), (1, 8, keys, width), (1, 8, keys, width))
    return [*(torch.zeros(size, dtype=torch.bfloat16) for size in sizes), torch.ones(1, 1, queries, keys).bool()]


def images(*sizes: tuple[int, ...]) -> list[torch.Tensor]:
    like = {"dtype": torch.bfloat16, "memory_format": torch.channels_last}
    return [torch.empty(size, **like).zero_() for size in sizes]  # type: ignore[call-overload]


FUNCTIONS: dict[str, tuple[Callable[..., torch.Tensor], Callable[[], list[torch.Tensor]]]] = {
    **{
        f"{queries} over {keys} keys of {width}": (attention, partial(decoded, queries, keys, width))
        for queries, keys, width in ((1, 512, 128), (1, 4096, 64), (1, 4096, 128), (1, 4096, 256), (8, 4096, 128))
    },
    "3 x 3": (partial(F.conv2d, padding=1), partial(images, (8, 64, 56, 56), (64, 64, 3, 3))),
    "1 x 1": (F.conv2d, partial(images, (8, 256, 56, 56), (64, 256, 1, 1))),
    "three channels": (partial(F.conv2d, stride=2, padding=3), partial(images, (1, 3, 224, 224), (64, 3, 7, 7))),
}


def require_room(schedule: Schedule, compiler: Compiler) -> None:
    """Shared memory, threads and registers; and nothing is spilled."""
    unit, gpu = generate(schedule), schedule.gpu
    major, minor = gpu.capability
    for number in unit.calls:
        taken = compiler.resources(unit, number, 10 * major + minor)
        room = Resources(gpu.shared_memory, _MOST_THREADS, gpu.registers // taken.threads, spilled=0)
        assert [k for k, most in asdict(room).items() if asdict(taken)[k] > most] == [], taken


@by_name
@pytest.mark.parametrize("name", SCHEDULES)
def test_a_thread_block_has_what_it_takes(gpu: Gpu, name: str, compiler: Compiler) -> None:
    require_room(replace(SCHEDULES[name](), gpu=gpu), compiler)


@by_name
@pytest.mark.parametrize("name", FUNCTIONS)
def test_what_schedule_passes_make_for_a_gpu_has_what_it_takes(gpu: Gpu, name: str, compiler: Compiler) -> None:
    function, inputs = FUNCTIONS[name]
    unfused = replace(lower_graph(captured(function, *inputs()).captured), gpu=gpu)
    require_room(run_schedule_passes(unfused, "cuda", Context()), compiler)


@by_name
def test_no_form_that_a_search_tries_asks_for_more_than_there_is(gpu: Gpu) -> None:
    """Loads in flight: stages of rows and columns of half types."""
    kernel = product_of(*SHAPES["a tile"])
    tiles = [f for f in launch_forms(kernel, gpu) if f.name == "tile"]
    assert tiles and all(
        f["STAGES"] * f["KBLOCK"] * (f["YBLOCK"] + f["XBLOCK"]) * 2 <= gpu.shared_memory for f in tiles
    )


def test_a_wider_chip_gets_more_splits() -> None:
    def splits(gpu: Gpu) -> int:
        schedule = replace(schedule_of(product_of(64, 256, 8192)), gpu=gpu)
        return len(choose_backends(schedule).kernels)

    assert splits(H200) == 2 and splits(replace(H200, multiprocessors=4)) == 1


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
