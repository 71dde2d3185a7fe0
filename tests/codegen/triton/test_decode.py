"""A step of decoding: one row times matrices, loops side by side, split attention; as the reference has them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

from burnish.codegen.triton.module import generate
from burnish.fuel import Fuel
from burnish.ir.body import BodyBuilder, Load, Loop, Store, make_axis
from burnish.ir.dtypes import DType
from burnish.ir.expr import Expr
from burnish.passes import run_passes
from burnish.schedule.evaluate import ScheduleEvaluation, evaluate_schedule
from burnish.schedule.gpu.vector_products import is_vector_product
from burnish.schedule.kernels import AttendSplits, ExternKernel, LoopGroup, LoopKernel, Schedule
from burnish.schedule.lower import lower_graph
from burnish.schedule.passes import Context, run_schedule_passes
from burnish.schedule.phases import Phases
from tests.codegen.triton.compiler import Compiler
from tests.codegen.triton.interpreter import Interpreter, job
from tests.programs import Capture, capture, copies

WIDTH, GROUPS, HEADS, HEAD, KEYS = 64, 2, 4, 32, 130


def captured(fn: Callable[..., object], *inputs: torch.Tensor) -> Capture:
    with torch.no_grad():
        (found,) = capture(fn, *inputs, device="cuda")
    found.captured.graph = run_passes(found.captured.graph, Fuel(None), lambda name, graph: graph.verify(), "cuda")
    return found


def for_gpu(found: Capture) -> Schedule:
    schedule = run_schedule_passes(lower_graph(found.captured), "cuda", Context())
    schedule.verify()
    return schedule


def same_as_unfused(found: Capture, schedule: Schedule) -> None:
    plain, joined = copies(found.inputs), copies(found.inputs)
    want, got = evaluate_schedule(lower_graph(found.captured), plain), evaluate_schedule(schedule, joined)
    for a, b in zip([*want, *plain], [*got, *joined], strict=True):
        if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
            torch.testing.assert_close(b.float(), a.float(), rtol=2e-2, atol=2e-2)


def close(got: torch.Tensor, want: torch.Tensor, message: Callable[[str], str]) -> None:
    """What neither of them wrote is not a number in both."""
    torch.testing.assert_close(got, want, rtol=2e-2, atol=2e-2, equal_nan=True, msg=message)


def same_under(interpreter: Interpreter, found: Capture, schedule: Schedule) -> None:
    """Every kernel leaves what the evaluation of it leaves."""
    unit = generate(schedule, interpreted=True)
    assert not unit.refused
    evaluation = ScheduleEvaluation(schedule, copies(found.inputs), {})
    for n, kernel in enumerate(schedule.kernels):
        held = {name: evaluation.memory[name].clone() for name in kernel.reads | kernel.writes}
        evaluation.run_kernel(kernel)
        if isinstance(kernel, ExternKernel):
            continue
        assert interpreter.run([job(unit.text, unit.calls[n], {})], held) == 0
        for name in kernel.writes:
            want = evaluation.memory[name].float()
            close(held[name].float(), want, lambda m: f"{kernel}\n{m}")  # noqa: B023


def rotated(x: torch.Tensor, angle: torch.Tensor) -> torch.Tensor:
    half = x.shape[-1] // 2
    turned = torch.cat((-x[..., half:], x[..., :half]), -1)
    return x * angle.cos().to(x.dtype) + turned * angle.sin().to(x.dtype)


def block(x, position, scale, wq, wk, wv, wo, wg, wu, wd, keys, values):  # type: ignore[no-untyped-def]
    """One token through a transformer's block over a static cache, as models write it."""

    def norm(h: torch.Tensor) -> torch.Tensor:
        wide = h.float()
        return scale * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)).to(h.dtype)

    h = norm(x)
    q, k, v = (F.linear(h, w).view(1, 1, -1, HEAD).transpose(1, 2) for w in (wq, wk, wv))
    angle = position.float() * torch.arange(HEAD, device=x.device).float().add(1).reciprocal()
    q, k = rotated(q, angle), rotated(k, angle)
    keys.index_copy_(2, position, k)
    values.index_copy_(2, position, v)
    seen = torch.arange(KEYS, device=x.device) <= position
    repeated = [
        t[:, :, None].expand(1, GROUPS, HEADS // GROUPS, KEYS, HEAD).reshape(1, HEADS, KEYS, HEAD)
        for t in (keys, values)
    ]
    out = F.scaled_dot_product_attention(q, *repeated, attn_mask=seen[None, None, None, :])
    x = x + F.linear(out.transpose(1, 2).reshape(1, 1, HEADS * HEAD), wo)
    h = norm(x)
    return x + F.linear(F.silu(F.linear(h, wg)) * F.linear(h, wu), wd)


@pytest.fixture(scope="module")
def step() -> Capture:
    torch.manual_seed(0)

    def weight(*shape: int) -> torch.Tensor:
        return (torch.randn(shape) / shape[-1] ** 0.5).bfloat16()

    heads, shared = HEADS * HEAD, GROUPS * HEAD
    caches = [torch.randn(1, GROUPS, KEYS, HEAD).bfloat16() for _ in range(2)]
    return captured(
        block, torch.randn(1, 1, WIDTH).bfloat16(), torch.tensor([70]), weight(WIDTH), weight(heads, WIDTH),
        weight(shared, WIDTH), weight(shared, WIDTH), weight(WIDTH, heads), weight(96, WIDTH), weight(96, WIDTH),
        weight(WIDTH, 96), *caches,
    )  # fmt: skip


def test_a_block_is_six_kernels(step: Capture) -> None:
    schedule = for_gpu(step)
    assert not any(isinstance(k, ExternKernel) for k in schedule.kernels)
    maps = [k for k in schedule.kernels if isinstance(k, LoopKernel) and not k.loop.reduction]
    assert len(maps) == 1, "the mask"
    projections, attend, together, *rest = (k for k in schedule.kernels if k not in maps)
    assert isinstance(projections, LoopGroup) and len(projections.parts) == 3
    assert all(is_vector_product(p.loop) for p in projections.parts)
    assert isinstance(attend, AttendSplits) and attend.inputs[1].shape[1] == GROUPS, "keys are not repeated"
    cache = {attend.inputs[1].buffer, attend.inputs[2].buffer}
    assert cache < projections.writes, "keys are rotated and written by the kernel that makes them"
    assert isinstance(together, LoopKernel) and together.reads == attend.writes
    assert len(rest) == 3 and all(isinstance(k, LoopKernel) and is_vector_product(k.loop) for k in rest)
    products = [*projections.parts, *(k for k in rest if isinstance(k, LoopKernel))]
    assert all(Phases(p.loop).last == 1 for p in products), "the norm's sum and the product's are of one pass"
    assert "bn.add_3(" not in (text := generate(schedule).text) and "bn.add_3" in text, "and of one reduction"


def test_a_block_computes_what_it_did(step: Capture, interpreter: Interpreter) -> None:
    schedule = for_gpu(step)
    same_as_unfused(step, schedule)
    same_under(interpreter, step, schedule)


@pytest.mark.parametrize(("capability", "overlapped"), [(80, False), (90, True), (100, True)])
def test_a_block_compiles_for_every_target(
    step: Capture, compiler: Compiler, capability: int, overlapped: bool
) -> None:
    unit = generate(for_gpu(step), overlapped=overlapped)
    for number in {call.function: n for n, call in unit.calls.items()}.values():
        assert "st.global" in compiler.compile(unit, number, capability)


@pytest.mark.parametrize(("keys", "width"), [(48, 16), (64, 24), (256, 64), (200, 80)])
def test_keys_are_asked_for_before_the_queries_are_there(compiler: Compiler, keys: int, width: int) -> None:
    q, k, v = (torch.randn(1, 4, n, width).bfloat16() for n in (1, keys, keys))
    schedule = for_gpu(captured(F.scaled_dot_product_attention, q, k, v))
    (number,) = (n for n, kernel in enumerate(schedule.kernels) if isinstance(kernel, AttendSplits))
    text = compiler.compile(generate(schedule, overlapped=True), number, 90)
    wait = text.index("griddepcontrol.wait")
    assert 0 < text.index("prefetch.global.L2") < wait < text.index("ld.global")
    assert "prefetch" not in compiler.compile(generate(schedule), number, 90)


@pytest.mark.parametrize(
    ("heads", "shared", "queries", "keys", "width"), [(6, 2, 1, 64, 16), (4, 4, 3, 200, 24), (8, 1, 2, 70, 64)]
)
@pytest.mark.parametrize("mask", ["none", "rows", "alike", "added"])
def test_attention_in_splits(
    interpreter: Interpreter, heads: int, shared: int, queries: int, keys: int, width: int, mask: str
) -> None:
    torch.manual_seed(1)
    q = torch.randn(2, heads, queries, width).bfloat16()
    k, v = (torch.randn(2, shared, keys, width).bfloat16() for _ in range(2))
    seen = torch.rand(2, 1, queries if mask == "rows" else 1, keys) < 0.4
    seen[..., 0] = True
    seen[:, :, :, 64:128] = False  # a block that nobody sees
    bias = torch.where(seen, 0.0, torch.finfo(torch.float16).min).bfloat16()
    given = {"none": (), "rows": (seen,), "alike": (seen,), "added": (bias,)}[mask]

    def attend(q, k, v, *masks):  # type: ignore[no-untyped-def]
        k, v = (
            t[:, :, None].expand(2, shared, heads // shared, keys, width).reshape(2, heads, keys, width) for t in (k, v)
        )
        return F.scaled_dot_product_attention(q, k, v, attn_mask=masks[0] if masks else None)

    found = captured(attend, q, k, v, *given)
    schedule = for_gpu(found)
    splits = [kernel for kernel in schedule.kernels if isinstance(kernel, AttendSplits)]
    assert len(splits) == 1 and splits[0].inputs[1].shape[1] == shared
    same_as_unfused(found, schedule)
    same_under(interpreter, found, schedule)


def test_one_text_over_two_types_is_two_kernels() -> None:
    """What a store writes is its pointer's type, which the text does not name."""

    def copy_into(dtype: DType) -> LoopKernel:
        axis, body = make_axis("i0", 40), BodyBuilder()
        here = Expr({(axis.sym,): 1})
        body.emit(Store(f"y_{dtype.value}", here, body.emit(Load("x", here, DType.f32)), "set", dtype))
        return LoopKernel(Loop((axis,), tuple(body.instrs)))

    unit = generate(Schedule({}, [copy_into(DType.f32), copy_into(DType.bf16)], []))
    first, second = unit.calls[0], unit.calls[1]
    assert unit.functions[first.function] == unit.functions[second.function]
    assert first.function != second.function and first.types != second.types


def test_a_loop_that_needs_another_is_not_beside_it() -> None:
    def chain(x: torch.Tensor, y: torch.Tensor, at: torch.Tensor) -> tuple[torch.Tensor, ...]:
        a = torch.zeros(64).index_put((at,), x)
        return a, y + 1, a.flip(0)[at] * 2

    found = captured(chain, torch.randn(8), torch.randn(50), torch.arange(8))
    schedule = for_gpu(found)
    for kernel in schedule.kernels:
        if isinstance(kernel, LoopGroup):
            for first in kernel.parts:
                assert not any(
                    first.writes & (other.reads | other.writes) for other in kernel.parts if other is not first
                )
    same_as_unfused(found, schedule)
