"""A step of decoding of a few sequences: each matrix is read once, in strips, by as few kernels as there may be."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

from burnish.codegen.triton.module import generate
from burnish.schedule.kernels import AttendSplits, ContractGroup, ContractKernel, ExternKernel, LoopGroup, LoopKernel
from tests.codegen.triton.compiler import Compiler
from tests.codegen.triton.interpreter import Interpreter
from tests.codegen.triton.test_decode import captured, for_gpu, rotated, same_as_unfused, same_under
from tests.programs import Capture

ROWS, WIDTH, GROUPS, HEADS, HEAD, KEYS = 3, 512, 8, 16, 64, 70


def norm(h: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    wide = h.float()
    return scale * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)).to(h.dtype)


def block(x, position, scale, head_scale, wq, wk, wv, wo, wg, wu, wd, keys, values):  # type: ignore[no-untyped-def]
    """One token of each sequence through a transformer's block with normed queries and keys, over a static cache."""
    h = norm(x, scale)
    q, k, v = (F.linear(h, w).view(ROWS, 1, -1, HEAD) for w in (wq, wk, wv))
    q, k, v = (t.transpose(1, 2) for t in (norm(q, head_scale), norm(k, head_scale), v))
    angle = position.float() * torch.arange(HEAD, device=x.device).float().add(1).reciprocal()
    q, k = rotated(q, angle), rotated(k, angle)
    keys.index_copy_(2, position, k)
    values.index_copy_(2, position, v)
    seen = torch.arange(KEYS, device=x.device) <= position
    repeated = [
        t[:, :, None].expand(ROWS, GROUPS, HEADS // GROUPS, KEYS, HEAD).reshape(ROWS, HEADS, KEYS, HEAD)
        for t in (keys, values)
    ]
    out = F.scaled_dot_product_attention(q, *repeated, attn_mask=seen[None, None, None, :])
    x = x + F.linear(out.transpose(1, 2).reshape(ROWS, 1, HEADS * HEAD), wo)
    h = norm(x, scale)
    return x + F.linear(F.silu(F.linear(h, wg)) * F.linear(h, wu), wd)


@pytest.fixture(scope="module")
def step() -> Capture:
    torch.manual_seed(0)

    def weight(*shape: int) -> torch.Tensor:
        return (torch.randn(shape) / shape[-1] ** 0.5).bfloat16()

    heads, shared = HEADS * HEAD, GROUPS * HEAD
    caches = [(torch.randn(ROWS, GROUPS, KEYS, HEAD) / 4).bfloat16() for _ in range(2)]
    return captured(
        block, torch.randn(ROWS, 1, WIDTH).bfloat16(), torch.tensor([40]), weight(WIDTH), weight(HEAD),
        weight(heads, WIDTH), weight(shared, WIDTH), weight(shared, WIDTH), weight(WIDTH, heads), weight(600, WIDTH),
        weight(600, WIDTH), weight(WIDTH, 600), *caches,
    )  # fmt: skip


def test_a_block_reads_its_matrices_in_four_kernels(step: Capture) -> None:
    kernels = for_gpu(step).kernels
    projections, out, gated, down = (k for k in kernels if isinstance(k, ContractGroup | ContractKernel))
    assert isinstance(projections, ContractGroup) and len(projections.parts) == 3
    assert isinstance(gated, ContractKernel) and len(gated.products) == 2, "gate and up meet in registers"
    assert all(isinstance(k, ContractKernel) and len(k.a.shape) == 2 for k in (out, down)), "no sum is split"
    assert not any(isinstance(k, ExternKernel) for k in kernels)
    before = kernels[: next(n for n, k in enumerate(kernels) if isinstance(k, AttendSplits))]
    heads = before[before.index(projections) + 1 :]
    (written,) = (k for k in heads if isinstance(k, LoopGroup) and any(p.loop.reduction for p in k.parts))
    assert len(written.parts) >= 3, "queries and keys are normed and rotated, and both caches written, in one launch"
    assert not any(p.loop.sequential for p in written.parts)


def test_a_block_computes_what_it_did(step: Capture, interpreter: Interpreter) -> None:
    schedule = for_gpu(step)
    same_as_unfused(step, schedule)
    same_under(interpreter, step, schedule)


@pytest.mark.parametrize("capability", [80, 90, 100])
def test_a_block_compiles_for_every_target(step: Capture, compiler: Compiler, capability: int) -> None:
    unit = generate(for_gpu(step), overlapped=capability >= 90)  # as a program has them there
    for number in {call.function: n for n, call in unit.calls.items()}.values():
        assert "st.global" in compiler.compile(unit, number, capability)


def test_keys_and_values_are_under_way_while_others_are_worked_on(compiler: Compiler) -> None:
    """Where a split of the keys has more than one block of them."""
    q, k, v = (torch.randn(8, 16, keys, HEAD).bfloat16() for keys in (1, 1024, 1024))
    mask = torch.arange(1024)[None, None, None] < 700
    schedule = for_gpu(captured(lambda *t: F.scaled_dot_product_attention(*t[:3], attn_mask=t[3]), q, k, v, mask))
    number = next(n for n, k in enumerate(schedule.kernels) if isinstance(k, AttendSplits))
    assembly = compiler.compile(generate(schedule), number, 90)
    assert assembly.count("cp.async.cg") > 2 * 8, "keys and values of more than one block are asked for"
    assert assembly.index("cp.async.wait_group") < assembly.index("mma.sync")


def scattered(keys: torch.Tensor, k: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
    return keys.scatter_(2, position[:, None, None, None].expand(-1, 2, 1, 16), k)


def put(keys: torch.Tensor, k: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
    keys[torch.arange(3, device=keys.device), :, position] = k[:, :, 0]
    return keys


def put_anywhere(keys: torch.Tensor, k: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
    keys[position % 3, :, position] = k[:, :, 0]
    return keys


@pytest.mark.parametrize(("write", "ordered"), [(scattered, False), (put, False), (put_anywhere, True)])
def test_each_sequence_writes_its_own_place(write: Callable[..., torch.Tensor], ordered: bool) -> None:
    """Where two may write one element, the last must win: one after the other."""
    found = captured(write, torch.zeros(3, 2, 40, 16), torch.randn(3, 2, 1, 16), torch.tensor([5, 7, 5]))
    schedule = for_gpu(found)
    assert [k.loop.sequential for k in schedule.kernels if isinstance(k, LoopKernel) and "in0" in k.writes] == [ordered]
    same_as_unfused(found, schedule)


@pytest.mark.parametrize("columns", [512, 600])
def test_small_integers_are_read_as_they_are(columns: int, interpreter: Interpreter, compiler: Compiler) -> None:
    """Gate and up of a layer in 8 bits, of a few rows: no matrix is made wide in memory."""

    def layer(x, gate, up, one, other):  # type: ignore[no-untyped-def]
        return F.silu(F.linear(x, gate.to(x.dtype)) * one) * (F.linear(x, up.to(x.dtype)) * other)

    matrices = [torch.randint(-127, 128, (columns, WIDTH), dtype=torch.int8) for _ in range(2)]
    scales = [(torch.rand(columns) / 2000).bfloat16() for _ in range(2)]
    found = captured(layer, torch.randn(ROWS, WIDTH).bfloat16(), *matrices, *scales)
    schedule = for_gpu(found)
    assert not any(isinstance(k, ExternKernel) for k in schedule.kernels)
    assert sum(isinstance(k, ContractKernel | ContractGroup) for k in schedule.kernels) == len(schedule.kernels)
    same_as_unfused(found, schedule)
    same_under(interpreter, found, schedule)
    unit = generate(schedule)
    for number in {call.function: n for n, call in unit.calls.items()}.values():
        assembly = compiler.compile(unit, number, 90)
        assert "mma.sync" in assembly and "cp.async" in assembly, "on their way while others are multiplied"
