"""Kernels of equal blocks are printed once, and as each would be by itself."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch.nn import functional as F

from burnish.codegen.triton import module as triton_module
from burnish.ir.body import Load
from burnish.schedule.identical import nameless
from burnish.schedule.kernels import ContractKernel, ExternKernel, LoopKernel, Schedule
from tests.codegen.triton.loops import softmax
from tests.programs import capture, schedules


def blocks(x: torch.Tensor, *weights: torch.Tensor) -> torch.Tensor:
    for norm, up, down in zip(weights[::3], weights[1::3], weights[2::3], strict=True):
        x = x + F.gelu(F.layer_norm(x, x.shape[-1:], norm) @ up) @ down
    return x


@pytest.fixture(scope="module")
def schedule() -> Schedule:
    weights = [w for _ in range(3) for w in (torch.ones(32), torch.randn(32, 64), torch.randn(64, 32))]
    (entry,) = capture(blocks, torch.randn(4, 32), *weights, device="cuda")
    return schedules(entry.captured)[1]


def test_kernels_of_equal_blocks_are_printed_once(schedule: Schedule, monkeypatch: pytest.MonkeyPatch) -> None:
    by_itself, printed = triton_module._printed, []
    monkeypatch.setattr(triton_module, "_printed", lambda *args: printed.append(args[0]) or by_itself(*args))
    unit = triton_module.generate(schedule, overlapped=True)
    unwritten = triton_module.unwritten_buffers(schedule)
    last = [schedule.kernels[n] for n in unit.calls][-(len(unit.calls) // 3) :]  # of three blocks
    assert last and all(kernel not in printed for kernel in last)
    for n, call in unit.calls.items():
        kernel = schedule.kernels[n]
        assert not isinstance(kernel, ExternKernel)
        alone = by_itself(kernel, schedule.gpu, unwritten, None)
        assert unit.functions[call.function] == alone.text
        assert (call.buffers, call.types, call.launch) == (
            tuple(alone.signature.buffers), alone.types, alone.launch,
        )  # fmt: skip


def test_what_else_differs_keeps_kernels_apart(schedule: Schedule) -> None:
    loop = softmax(8, 16)
    (load, *rest), plain = loop.body, nameless(LoopKernel(loop)).form
    assert isinstance(load, Load)
    others = [replace(load, buffer="another"), replace(load, index=load.index + 1), replace(load, guard=0, fill=0.0)]
    renamed, moved, guarded = (nameless(LoopKernel(replace(loop, body=(i, *rest)))) for i in others)
    assert renamed.form == plain and renamed.names[0] == "another"
    assert moved.form != plain and guarded.form != plain
    negative = replace(loop, body=(replace(load, guard=0, fill=-0.0), *rest))
    assert nameless(LoopKernel(negative)).form != guarded.form
    product = next(k for k in schedule.kernels if isinstance(k, ContractKernel))
    both = replace(product, b=replace(product.b, buffer=product.a.buffer))
    assert nameless(both).form != nameless(product).form
