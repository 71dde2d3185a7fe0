"""Loops of captured graphs: each kernel of the fused schedule, as Triton, leaves its buffers as the reference does."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from burnish.codegen.triton.module import TritonUnit, generate
from burnish.schedule.evaluate import ScheduleEvaluation
from burnish.schedule.gpu.split_reductions import split_reductions
from burnish.schedule.kernels import Kernel, Schedule
from tests.codegen.triton.interpreter import Interpreter, assert_close, job
from tests.programs import capture, copies, schedules, sizes_of


class SideBySide(ScheduleEvaluation):
    """The reference evaluation; each loop is run as Triton, too, on copies of the buffers it touches."""

    def __init__(
        self, interpreter: Interpreter, schedule: Schedule, inputs: list[Any], sizes: Mapping[str, int]
    ) -> None:
        super().__init__(schedule, inputs, sizes)
        self.interpreter = interpreter
        self.unit: TritonUnit = generate(schedule, interpreted=True)
        self.numbers = {id(k): n for n, k in enumerate(schedule.kernels)}
        self.compared = 0

    def run_kernel(self, kernel: Kernel) -> None:
        call = self.unit.calls.get(self.numbers.get(id(kernel), -1))  # parts of a group have no number
        if call is None:
            super().run_kernel(kernel)
            return
        held = {b: self.memory[b].clone() for b in call.buffers}
        super().run_kernel(kernel)
        assert self.interpreter.run([job(self.unit.text, call, self.sizes)], held) == 0
        for b in call.buffers:
            assert_close(held[b], self.memory[b], 2e-5, b)
        self.compared += 1


def side_by_side(
    interpreter: Interpreter, fn: Callable[..., Any], *inputs: Any, dynamic: bool = False, split: bool = False
) -> int:
    """Capture, schedule and compare; the number of loops compared."""
    compared = 0
    for entry in capture(fn, *inputs, dynamic=dynamic):
        _, schedule = schedules(entry.captured)
        if split:
            schedule = split_reductions(schedule, least=1 << 12)
            schedule.verify()
        both = SideBySide(interpreter, schedule, copies(entry.inputs), sizes_of(entry.captured, entry.inputs))
        assert not both.unit.refused, both.unit.refused
        both.run()
        compared += both.compared
    return compared


def randn(*shape: int, dtype: torch.dtype = torch.float32, grad: bool = True) -> torch.Tensor:
    return torch.randn(*shape, dtype=dtype, requires_grad=grad)


def layer_norm(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return F.layer_norm(x, (x.shape[-1],), w, b)


def batch_norm(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    centred = x - x.mean((0, 2, 3), keepdim=True)
    scaled = centred * torch.rsqrt(centred.pow(2).mean((0, 2, 3), keepdim=True) + 1e-5)
    return torch.relu(scaled * w[:, None, None] + b[:, None, None])


def rope(q: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    a, b = q.chunk(2, -1)
    return q * cos + torch.cat([-b, a], -1) * sin


def causal_scores(x: torch.Tensor) -> torch.Tensor:
    n = x.shape[-1]
    mask = torch.arange(n)[:, None] >= torch.arange(n)
    return torch.where(mask, x, float("-inf")).softmax(-1)


def update_cache(cache: torch.Tensor, at: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
    return cache.index_put((at,), new).transpose(0, 1).contiguous()


def padded_difference(x: torch.Tensor) -> torch.Tensor:
    return F.pad(x, (1, 2), value=0.5).diff(dim=-1).cumsum(-1)


def pick(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return x.argmax(-1), x.amin(0), (x > 2).any(-1), x.flip(-1)


def ids(high: int, *shape: int) -> torch.Tensor:
    return torch.randint(0, high, shape)


BF16 = torch.bfloat16
GRAPHS: dict[str, tuple[Callable[..., Any], Callable[[], list[torch.Tensor]]]] = {
    "layer_norm": (layer_norm, lambda: [randn(4, 6, 96), randn(96), randn(96)]),
    "layer_norm_bf16": (layer_norm, lambda: [randn(*shape, dtype=BF16) for shape in ((4, 6, 96), (96,), (96,))]),
    "softmax": (lambda x: x.softmax(-1), lambda: [randn(2, 3, 5, 40)]),
    "gelu": (lambda x, b: F.gelu(x + b), lambda: [randn(20, 48), randn(48)]),
    "gelu_tanh_bf16": (lambda x: F.gelu(x, approximate="tanh"), lambda: [randn(20, 48, dtype=BF16)]),
    "cross_entropy": (F.cross_entropy, lambda: [randn(12, 50), ids(50, 12)]),
    "embedding": (lambda w, i: F.embedding(i, w) * 2, lambda: [randn(30, 16), ids(30, 3, 5)]),
    "rope": (rope, lambda: [randn(2, 3, 7, 16), randn(7, 16, grad=False), randn(7, 16, grad=False)]),
    "batch_norm": (batch_norm, lambda: [randn(4, 6, 5, 5), randn(6), randn(6)]),
    "causal_scores": (causal_scores, lambda: [randn(3, 17, 17)]),
    "update_cache": (update_cache, lambda: [randn(9, 40, 8, grad=False), ids(9, 3), randn(3, 40, 8, grad=False)]),
    "padded_difference": (padded_difference, lambda: [randn(5, 30, grad=False)]),
    "pick": (pick, lambda: [randn(6, 33, grad=False)]),
}


@pytest.mark.parametrize("name", GRAPHS)
def test_graph(interpreter: Interpreter, name: str) -> None:
    fn, inputs = GRAPHS[name]
    assert side_by_side(interpreter, fn, *inputs()) > 0


@pytest.mark.parametrize("name", ["layer_norm", "softmax", "gelu", "cross_entropy", "causal_scores"])
def test_graph_of_symbolic_sizes(interpreter: Interpreter, name: str) -> None:
    fn, inputs = GRAPHS[name]
    assert side_by_side(interpreter, fn, *inputs(), dynamic=True) > 0


def test_reductions_cut_in_splits(interpreter: Interpreter) -> None:
    assert side_by_side(interpreter, lambda x, b: F.gelu(x + b), randn(600, 48), randn(48), split=True) > 2
    assert side_by_side(interpreter, batch_norm, randn(16, 2, 20, 20), randn(2), randn(2), split=True) > 2
    assert side_by_side(interpreter, lambda x: (x.sum(), x.argmax()), randn(9001, grad=False), split=True) == 2
