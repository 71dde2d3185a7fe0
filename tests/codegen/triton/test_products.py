"""Products and attention as Triton kernels: they leave what the reference leaves, and compile for every target."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from burnish.codegen.triton.module import generate, launch_forms
from burnish.ir.body import Apply, BodyBuilder, Load, Loop, Store, make_axis
from burnish.ir.dtypes import DType
from burnish.ir.expr import Dim, Expr, contiguous_strides
from burnish.ir.graph import Attend
from burnish.schedule.evaluate import ScheduleEvaluation
from burnish.schedule.gpu.backends import choose_backends
from burnish.schedule.gpu.products import group_siblings
from burnish.schedule.gpu.siblings import join_siblings
from burnish.schedule.kernels import (
    AttendKernel,
    Buffer,
    ContractGroup,
    ContractKernel,
    ExternKernel,
    Kernel,
    LoopKernel,
    Operand,
    Schedule,
)
from tests.codegen.triton.compiler import Compiler
from tests.codegen.triton.interpreter import Interpreter, assert_close, job
from tests.codegen.triton.test_graphs import SideBySide
from tests.programs import capture, copies, sizes_of

HALF = DType.bf16


def product_of(m: int, n: int, k: int, dtype: DType = HALF, name: str = "0", flipped: bool = False) -> ContractKernel:
    """(a @ b + bias) rounded, with a column-major b as `F.linear` has it."""
    axes = tuple(make_axis(f"i{d}", s) for d, s in enumerate((m, n)) if s != 1)
    place: dict[str, Dim] = {a.name: Expr({(a.sym,): 1}) for a in axes}
    linear = place.get("i0", 0) * n + place.get("i1", 0)
    body = BodyBuilder()
    acc = body.emit(Load(f"acc{name}", linear, dtype.compute))
    total = body.emit(Apply("add", (acc, body.emit(Load("bias", place.get("i1", 0), dtype))), dtype.compute))
    body.emit(Store(f"out{name}", linear, total, "set", dtype))
    b = Operand(f"w{name}", 0, (k, n), (n, 1) if flipped else (1, k), dtype)
    return ContractKernel(
        Operand("a", 0, (m, k), (k, 1), dtype), b, f"acc{name}", dtype.compute, Loop(axes, tuple(body.instrs))
    )


def schedule_of(kernel: ContractKernel | ContractGroup) -> Schedule:
    parts = kernel.parts if isinstance(kernel, ContractGroup) else (kernel,)
    buffers: dict[str, Buffer] = {}
    for part in parts:
        m, n = part.product_shape
        for name, shape, role in (
            (part.a.buffer, part.a.shape, "temp"),
            (part.b.buffer, part.b.shape, "temp"),
            ("bias", (max(p.b.shape[-1] for p in parts),), "temp"),  # type: ignore[type-var]
            (part.loop.stores[0].buffer, (m, n), "temp"),
        ):
            strides = (shape[1], 1) if len(shape) == 2 else (1,)
            buffers[name] = Buffer(name, part.a.dtype, shape, strides, role)
    return Schedule(buffers, [kernel], [])


def compare(interpreter: Interpreter, schedule: Schedule) -> None:
    torch.manual_seed(0)
    evaluation = ScheduleEvaluation(schedule, [], {})
    for memory in evaluation.memory.values():
        memory.copy_(torch.randn(memory.shape))
    held = {name: memory.clone() for name, memory in evaluation.memory.items()}
    evaluation.run()
    unit = generate(schedule, interpreted=True)
    assert not unit.refused
    assert interpreter.run([job(unit.text, unit.calls[0], {})], held) == 0
    for name, memory in evaluation.memory.items():
        assert_close(held[name], memory, 2e-4, name)


@pytest.mark.parametrize("dtype", [DType.f32, DType.bf16, DType.f16])
@pytest.mark.parametrize(("m", "n", "k"), [(64, 64, 128), (100, 70, 50), (1, 33, 40), (5, 1, 300), (17, 160, 16)])
def test_product_with_epilogue(interpreter: Interpreter, m: int, n: int, k: int, dtype: DType) -> None:
    compare(interpreter, schedule_of(product_of(m, n, k, dtype)))


def test_row_major_right_operand(interpreter: Interpreter) -> None:
    compare(interpreter, schedule_of(product_of(40, 72, 96, flipped=True)))


@pytest.mark.parametrize("widths", [(64, 64, 64), (96, 32, 17)])
def test_siblings_in_one_kernel(interpreter: Interpreter, widths: tuple[int, ...]) -> None:
    group = ContractGroup(tuple(product_of(70, n, 80, name=str(k)) for k, n in enumerate(widths)))
    compare(interpreter, schedule_of(group))


def attend(b: int, h: int, shared: int, n: int, s: int, d: int, causal: bool, mask: DType | None) -> Schedule:
    def operand(name: str, *shape: int, dtype: DType = HALF) -> Operand:
        return Operand(name, 0, shape, contiguous_strides(shape), dtype)

    inputs = [operand("q", b, h, n, d), operand("k", b, shared, s, d), operand("v", b, shared, s, d)]
    inputs += [operand("mask", b, h, n, s, dtype=mask)] if mask else []
    out, lse = operand("out", b, h, n, d), operand("lse", b, h, n, dtype=DType.f32)
    kernel = AttendKernel(Attend(causal, 0.3, mask is not None), tuple(inputs), out, lse)
    buffers = {o.buffer: Buffer(o.buffer, o.dtype, o.shape, o.strides, "temp") for o in (*inputs, out, lse)}
    return Schedule(buffers, [kernel], [])


@pytest.mark.parametrize(
    ("b", "h", "shared", "n", "s", "d", "causal", "mask"),
    [
        (2, 4, 4, 64, 64, 32, False, None),
        (1, 6, 2, 40, 40, 24, True, None),
        (1, 2, 2, 17, 130, 64, False, DType.bf16),
        (2, 2, 1, 20, 33, 16, False, DType.bool),
        (1, 2, 2, 1, 50, 16, False, None),
    ],
)
def test_attention(
    interpreter: Interpreter,
    b: int, h: int, shared: int, n: int, s: int, d: int, causal: bool, mask: DType | None,
) -> None:  # fmt: skip
    compare(interpreter, attend(b, h, shared, n, s, d, causal, mask))


@pytest.mark.parametrize("capability", [80, 90, 100])
def test_compiles_for_every_architecture(compiler: Compiler, capability: int) -> None:
    for schedule in (
        schedule_of(product_of(128, 768, 768)),
        schedule_of(ContractGroup(tuple(product_of(100, n, 700, name=str(k)) for k, n in enumerate((96, 32, 17))))),
        attend(1, 6, 2, 40, 40, 24, True, None),
    ):
        unit = generate(schedule)
        assert not unit.refused
        assert ".target sm_" in compiler.compile(unit, 0, capability)


# --- who multiplies ---------------------------------------------------------------------------------------------


def on_cuda(fn: Callable[..., Any], *inputs: Any) -> tuple[Schedule, list[Any], dict[str, int]]:
    """The schedule a GPU would get, of a function captured here."""
    from burnish.schedule.fuse import fuse
    from burnish.schedule.lower import lower_graph

    entry, *_ = capture(fn, *inputs, device="cuda", runs=False)
    schedule = choose_backends(fuse(lower_graph(entry.captured), only_products=True))
    schedule = group_siblings(fuse(schedule))
    schedule.verify()
    return schedule, copies(entry.inputs), sizes_of(entry.captured, entry.inputs)


def kinds(schedule: Schedule) -> list[type[Kernel]]:
    return [type(k) for k in schedule.kernels]


def bf16(*shape: int) -> torch.Tensor:
    return torch.randn(*shape).to(torch.bfloat16) * 0.2


def check(interpreter: Interpreter, found: tuple[Schedule, list[Any], dict[str, int]]) -> None:
    both = SideBySide(interpreter, *found)
    assert not both.unit.refused
    both.run()


def test_siblings_that_meet_are_not_one_launch(interpreter: Interpreter) -> None:
    """The third goes on with what the second made: beside the first are the second, or the third, and not both."""

    def gated(x: torch.Tensor, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        gate = F.silu(x @ b)
        return torch.relu(x @ a), (x @ c) * gate

    found = on_cuda(gated, bf16(64, 128), *(bf16(128, 128) for _ in range(3)))
    assert kinds(found[0]) == [ContractGroup, ContractKernel]
    check(interpreter, found)


def test_small_product_keeps_its_epilogue(interpreter: Interpreter) -> None:
    found = on_cuda(lambda x, w, b: F.gelu(F.linear(x, w, b)), bf16(48, 64), bf16(96, 64), bf16(96))
    assert kinds(found[0]) == [ContractKernel]
    check(interpreter, found)


def test_long_product_is_split_and_its_reader_adds_the_parts(interpreter: Interpreter) -> None:
    def block(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor, r: torch.Tensor) -> torch.Tensor:
        return F.layer_norm(F.linear(x, w, b) + r, (64,))

    found = on_cuda(block, bf16(32, 4096), bf16(64, 4096), bf16(64), bf16(32, 64))
    assert kinds(found[0]) == [ContractKernel, LoopKernel]
    first = found[0].kernels[0]
    assert isinstance(first, ContractKernel) and first.a.shape == (4, 32, 1024)
    check(interpreter, found)


def test_large_product_is_the_librarys_with_its_bias(interpreter: Interpreter) -> None:
    found = on_cuda(lambda x, w, b: F.linear(x, w, b).softmax(-1), bf16(2048, 64), bf16(2048, 64), bf16(2048))
    assert kinds(found[0]) == [ExternKernel, LoopKernel]
    call = found[0].kernels[0]
    assert isinstance(call, ExternKernel) and call.op.name == "aten.addmm.default"


def test_library_writes_the_result_itself() -> None:
    schedule, *_ = on_cuda(lambda x, w: x @ w, bf16(2048, 64), bf16(64, 2048))
    assert kinds(schedule) == [ExternKernel]


def test_siblings_share_a_kernel(interpreter: Interpreter) -> None:
    def project(x: torch.Tensor, *weights: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(F.linear(x, w) for w in weights)

    found = on_cuda(project, bf16(24, 64), bf16(64, 64), bf16(32, 64), bf16(32, 64))
    assert kinds(found[0]) == [ContractGroup]
    check(interpreter, found)


def test_a_sibling_that_needs_another_stays_apart() -> None:
    def chain(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        y = F.linear(x, w)
        return F.linear(x, y)

    schedule, *_ = on_cuda(chain, bf16(64, 64), bf16(64, 64))
    assert ContractGroup not in kinds(schedule)


def test_overlapped_kernels_fetch_parameters_before_they_wait(compiler: Compiler) -> None:
    found, *_ = on_cuda(lambda x, w, b: F.gelu(F.linear(x, w, b)), bf16(48, 64), bf16(96, 64), bf16(96))
    unit = generate(found, overlapped=True)
    assembly = compiler.compile(unit, 0, 90)
    order = [assembly.index(word) for word in ("griddepcontrol.launch_dependents", "prefetch", "griddepcontrol.wait")]
    assert order == sorted(order)
    assert "griddepcontrol" not in generate(found).text


# --- large products ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("flipped", [False, True])
def test_large_product_is_persistent(interpreter: Interpreter, flipped: bool) -> None:
    schedule = schedule_of(product_of(2048 + 40, 1032, 72, flipped=flipped))
    assert "make_tensor_descriptor" in generate(schedule).text
    compare(interpreter, schedule)


@pytest.mark.parametrize("capability", [80, 90, 100])
def test_persistent_form_compiles(compiler: Compiler, capability: int) -> None:
    found, *_ = on_cuda(lambda x, w, b: F.gelu(F.linear(x, w, b)) @ w, bf16(4096, 768), bf16(3072, 768), bf16(3072))
    assert kinds(found) == [ContractKernel, ExternKernel]
    assembly = compiler.compile(generate(found), 0, capability)
    assert ("wgmma" in assembly and "cp.async.bulk.tensor" in assembly) == (capability == 90)
    assert "tanh.approx" in assembly


# --- few rows ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("m", "widths", "k"), [(3, (520,), 640), (8, (512, 600), 512), (32, (512,), 1000)])
def test_few_rows_are_multiplied_in_strips(interpreter: Interpreter, m: int, widths: tuple[int, ...], k: int) -> None:
    group = ContractGroup(tuple(product_of(m, n, k, name=str(number)) for number, n in enumerate(widths)))
    schedule = schedule_of(group if len(widths) > 1 else group.parts[0])
    assert "CUTS" in generate(schedule).text
    compare(interpreter, schedule)
    forms = launch_forms(schedule.kernels[0])
    assert len(forms) > 3 and forms[0].name == "strip"
    schedule.forms = {0: forms[-1]}
    compare(interpreter, schedule)


def test_a_strip_is_on_its_way_in_several_steps_and_never_split(compiler: Compiler) -> None:
    schedule, *_ = on_cuda(lambda x, w, r: r + F.linear(x, w), bf16(8, 2048), bf16(512, 2048), bf16(8, 512))
    assert kinds(schedule) == [ContractKernel]
    assembly = compiler.compile(generate(schedule, overlapped=True), 0, 90)
    order = [assembly.index(word) for word in ("griddepcontrol.wait", "cp.async", "cp.async.wait_group", "mma.sync")]
    assert order == sorted(order)
    steps = assembly[: order[2]].count("cp.async.commit_group")
    assert steps >= 2 * 4  # of both operands, before the first is waited for


def exact(*shape: int) -> torch.Tensor:
    """Sums of products of these are the same in any order, so what is rounded after them is, too."""
    return torch.randint(-2, 3, shape).to(torch.bfloat16) / 16


def test_gate_and_up_meet_in_one_kernel(interpreter: Interpreter, compiler: Compiler) -> None:
    def gated(x: torch.Tensor, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
        return F.silu(F.linear(x, gate)) * F.linear(x, up)

    found = on_cuda(gated, exact(5, 512), exact(520, 512), exact(520, 512))
    schedule = join_siblings(found[0])
    schedule.verify()
    assert kinds(schedule) == [ContractKernel]
    check(interpreter, found)
    assembly = compiler.compile(generate(schedule, overlapped=True), 0, 90)
    assert assembly.index("griddepcontrol.wait") < assembly.index("mma.sync")


def test_a_product_that_others_need_is_kept_when_it_is_joined(interpreter: Interpreter) -> None:
    def both(x: torch.Tensor, gate: torch.Tensor, up: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = F.linear(x, gate)
        return y, y.exp() * F.linear(x, up)

    schedule, *given = on_cuda(both, exact(8, 512), exact(512, 512), exact(512, 512))
    joined = join_siblings(schedule)
    assert kinds(joined) == [ContractKernel] and len(joined.kernels[0].writes) == 2
    check(interpreter, (joined, *given))


def test_a_product_with_anothers_result_stays_apart() -> None:
    def chain(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        y = F.linear(x, w)
        return F.linear(x, y.repeat(64, 1)) + y

    schedule, *_ = on_cuda(chain, bf16(8, 512), bf16(512, 512))
    assert len(join_siblings(schedule).kernels) == len(schedule.kernels) > 1
    assert not any(isinstance(k, ContractKernel) and k.others for k in schedule.kernels)
