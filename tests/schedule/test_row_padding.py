"""Products over a vocabulary of odd size: the library's, evened out, with the same numbers."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from burnish.schedule.evaluate import evaluate_schedule
from burnish.schedule.fuse import fuse
from burnish.schedule.gpu.backends import choose_backends
from burnish.schedule.kernels import ContractKernel, ExternKernel, Schedule
from burnish.schedule.lower import lower_graph
from burnish.schedule.passes import finished
from tests.programs import capture, copies
from tests.runtime.cuda.on_cpu import assembled

ROWS, WORDS, WIDTH = 512, 2057, 1040


@pytest.fixture(autouse=True)
def wide_products() -> Iterator[None]:
    """ATen has a product of halves with a result in full precision on GPUs only."""
    library = torch.library.Library("aten", "IMPL")
    library.impl("mm.dtype", lambda a, b, dtype: a.to(dtype) @ b.to(dtype), "CPU")
    yield
    library._destroy()


def gradients(h: torch.Tensor, w: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    g = torch.tanh(h)
    return torch.relu(g @ w), g.t() @ x


def operands() -> list[torch.Tensor]:
    torch.manual_seed(0)
    shapes = ((ROWS, WORDS), (WORDS, WIDTH), (ROWS, WIDTH))
    return [(torch.randn(*shape) / 8).bfloat16() for shape in shapes]


def lowered() -> tuple[Schedule, list[torch.Tensor]]:
    (step,) = capture(gradients, *operands(), device="cuda")
    return finished(choose_backends(fuse(lower_graph(step.captured), only_products=True))), list(step.inputs)


def test_both_are_the_librarys_and_right() -> None:
    schedule, inputs = lowered()
    schedule.verify()
    calls = [k for k in schedule.kernels if isinstance(k, ExternKernel)]
    assert not any(isinstance(k, ContractKernel) for k in schedule.kernels)
    assert sorted(k.inputs[0].shape for k in calls) == [(ROWS, WORDS - 1), (WORDS + 7, ROWS)]
    found = evaluate_schedule(schedule, copies(inputs))
    exact = gradients(*(x.double() for x in inputs))
    for mine, eager, want in zip(found, gradients(*inputs), exact, strict=True):
        assert isinstance(mine, torch.Tensor) and mine.shape == want.shape
        ours, theirs = (float((y.double() - want).abs().max()) for y in (mine, eager))
        assert ours <= 1.5 * theirs + 1e-3


def test_what_lies_between_the_rows_reaches_no_result() -> None:
    schedule, inputs = lowered()
    program = assembled(schedule, {}, inputs)
    want = evaluate_schedule(schedule, copies(inputs))
    torch.use_deterministic_algorithms(True)  # memory that nobody wrote is full of NaN
    try:
        found = program.run(list(inputs))
    finally:
        torch.use_deterministic_algorithms(False)
    for mine, right in zip(found, want, strict=True):
        assert mine.isfinite().all()
        torch.testing.assert_close(mine, right, rtol=2e-2, atol=2e-2)
