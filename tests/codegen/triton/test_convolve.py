"""Convolutions on a GPU: who convolves, and what our kernel leaves against the reference."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.func import functional_call

from burnish.codegen.triton.module import generate
from burnish.device import H200
from burnish.ir.body import BodyBuilder, Load, Loop, Store, make_axis
from burnish.ir.dtypes import DType
from burnish.ir.expr import Dim, Expr, sym
from burnish.ir.graph import Convolve
from burnish.ir.reference import evaluate_graph
from burnish.schedule.evaluate import ScheduleEvaluation, evaluate_schedule
from burnish.schedule.form import Form
from burnish.schedule.fuse import fuse
from burnish.schedule.gpu.backends import backend_forms, choose_backends
from burnish.schedule.gpu.convolution_epilogues import FUSED
from burnish.schedule.gpu.convolutions import is_ours, splits_of
from burnish.schedule.kernels import (
    Buffer,
    ContractKernel,
    ConvolveKernel,
    ExternKernel,
    LoopKernel,
    Operand,
    Schedule,
    channels_last_strides,
)
from burnish.schedule.lower import lower_graph
from burnish.tools.explain.traffic import kernel_bytes, kernel_flops
from burnish.tools.workloads.resnet import ResNet
from tests.codegen.triton.compiler import Compiler
from tests.codegen.triton.interpreter import Interpreter, assert_close, job
from tests.codegen.triton.test_products import check, kinds, on_cuda
from tests.programs import capture, copies
from tests.runtime.cuda.on_cpu import assembled


def half(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    x = (torch.randn(*shape) * 0.3).to(dtype)
    return x.to(memory_format=torch.channels_last) if x.dim() == 4 else x


def convolution(schedule: Schedule, number: int = 0) -> ConvolveKernel:
    kernel = schedule.kernels[number]
    assert isinstance(kernel, ConvolveKernel)
    return kernel


# --- the kernel -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    ("x", "k", "settings"),
    [
        ((1, 16, 8, 8), (32, 16, 1, 1), {}),  # a matrix product
        ((2, 32, 9, 7), (24, 32, 1, 1), {}),
        ((2, 48, 5, 6), (16, 48, 3, 3), {"padding": 1}),
        ((1, 16, 12, 11), (40, 16, 3, 3), {"stride": 2, "padding": 1}),
        ((1, 32, 9, 9), (16, 32, 3, 3), {"padding": 2, "dilation": 2}),
        ((2, 16, 10, 9), (16, 16, 1, 1), {"stride": 2}),
        ((1, 16, 7, 9), (16, 16, 3, 1), {"padding": (1, 0)}),
        ((1, 16, 4, 5), (16, 16, 1, 1), {"padding": 1}),
        ((3, 32, 1, 1), (16, 32, 1, 1), {}),
        ((1, 64, 6, 6), (100, 64, 2, 3), {"stride": (1, 2)}),
        ((1, 3, 16, 14), (16, 3, 7, 7), {"stride": 2, "padding": 3}),  # few channels: rows of taps
        ((2, 3, 9, 9), (24, 3, 3, 3), {"padding": 1}),
        ((2, 4, 7, 8), (16, 4, 1, 1), {}),
        ((1, 3, 48, 32), (32, 3, 16, 16), {"stride": 16}),
        ((1, 8, 9, 9), (16, 8, 3, 3), {"stride": 2, "padding": 1, "dilation": (2, 1)}),
        ((1, 1, 12, 12), (16, 1, 5, 5), {"padding": (0, 2)}),
        ((2, 16, 6, 5), (17, 16, 3, 3), {"stride": (2, 1), "padding": (0, 1), "dilation": (1, 2)}),
    ],
)
def test_convolution(
    interpreter: Interpreter, x: tuple[int, ...], k: tuple[int, ...], settings: dict[str, Any], dtype: torch.dtype
) -> None:
    found = on_cuda(lambda x, k: F.conv2d(x, k, **settings), half(*x, dtype=dtype), half(*k, dtype=dtype))
    assert kinds(found[0]) == [ConvolveKernel]
    check(interpreter, found)


@pytest.mark.parametrize(
    ("x", "k", "settings"),
    [
        ((2, 3, 16, 14), (16, 3, 7, 7), {"stride": 2, "padding": 3}),
        ((1, 3, 9, 10), (24, 3, 3, 3), {"padding": 1, "dilation": (2, 1)}),
        ((2, 1, 12, 11), (16, 1, 5, 5), {"padding": (0, 2), "stride": (1, 3)}),
        ((1, 8, 9, 9), (16, 8, 3, 3), {}),
    ],
)
@pytest.mark.parametrize("last", [True, False])
def test_few_channels_with_room(
    interpreter: Interpreter, monkeypatch: pytest.MonkeyPatch, x: tuple[int, ...], k: tuple[int, ...],
    settings: dict[str, Any], last: bool,
) -> None:  # fmt: skip
    """As for a large one: copied into an order that our kernel reads, whatever order it was in."""
    monkeypatch.setattr("burnish.schedule.gpu.convolutions.is_ours", lambda kernel, gpu: False)
    monkeypatch.setattr("burnish.schedule.gpu.convolutions._is_many", lambda kernel, gpu: True)
    image = half(*x) if last else half(*x).contiguous()
    found = on_cuda(lambda x, k: torch.relu(F.conv2d(x, k, **settings)), image, half(*k))
    assert kinds(found[0]) == [LoopKernel, LoopKernel, ConvolveKernel]
    assert convolution(found[0], 2).op.padding == (0, 0)
    check(interpreter, found)
    (got,) = evaluate_schedule(found[0], copies(found[1]))
    want = torch.relu(F.conv2d(*(t.double() for t in found[1]), **settings))
    assert isinstance(got, torch.Tensor)
    torch.testing.assert_close(got.double(), want, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("capability", [80, 90, 100])
def test_a_large_image_gets_room_and_is_read_16_bytes_at_a_time(compiler: Compiler, capability: int) -> None:
    x, k = half(16, 3, 224, 224), half(64, 3, 7, 7)
    schedule = on_cuda(lambda x, k: torch.relu(F.conv2d(x, k, stride=2, padding=3)), x, k)[0]
    assert kinds(schedule) == [LoopKernel, LoopKernel, ConvolveKernel]
    assembly = compiler.compile(generate(schedule), 2, capability)
    assert "cp.async.cg.shared.global" in assembly and "ld.global.b16" not in assembly


def block(
    x: torch.Tensor, k: torch.Tensor, residual: torch.Tensor, mean: torch.Tensor, var: torch.Tensor,
    weight: torch.Tensor, bias: torch.Tensor,
) -> torch.Tensor:  # fmt: skip
    y = F.conv2d(x, k, padding=k.shape[-1] // 2)
    return torch.relu(F.batch_norm(y, mean, var, weight, bias) + residual)


def block_inputs(batch: int, c: int, o: int, size: int, taps: int) -> list[torch.Tensor]:
    mean, var, weight, bias = half(o), half(o).abs() + 0.5, half(o), half(o)
    k = half(o, c, taps, taps) / (taps * c**0.5)  # sums below 1: one rounded the other way stays within the tolerance
    return [half(batch, c, size, size), k, half(batch, o, size, size), mean, var, weight, bias]


@pytest.mark.parametrize("taps", [1, 3])
def test_norm_residual_and_activation_are_its_epilogue(interpreter: Interpreter, taps: int) -> None:
    found = on_cuda(block, *block_inputs(2, 32, 48, 6, taps))
    assert kinds(found[0]) == [ConvolveKernel]
    check(interpreter, found)


def test_bias_is_added_before_rounding(interpreter: Interpreter) -> None:
    found = on_cuda(lambda x, k, b: F.conv2d(x, k, b, padding=1), half(1, 16, 6, 6), half(32, 16, 3, 3), half(32))
    assert kinds(found[0]) == [ConvolveKernel]
    check(interpreter, found)


def test_result_in_another_layout(interpreter: Interpreter) -> None:
    found = on_cuda(lambda x, k: F.conv2d(x, k).contiguous() * 2, half(2, 16, 6, 6), half(32, 16, 1, 1))
    check(interpreter, found)


def test_long_sum_is_cut_in_splits_and_its_reader_adds_them(interpreter: Interpreter) -> None:
    found = on_cuda(block, *block_inputs(1, 256, 32, 5, 3))
    assert kinds(found[0]) == [ConvolveKernel, LoopKernel]
    assert convolution(found[0]).splits == 2
    check(interpreter, found)


@pytest.mark.parametrize("size", [12, 11])
def test_large_matrix_product_is_persistent(
    interpreter: Interpreter, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    monkeypatch.setattr("burnish.codegen.triton.convolve.is_persistent", lambda kernel, gpu: True)
    found = on_cuda(block, *block_inputs(2, 64, 128, size, 1))
    check(interpreter, found)
    assert "make_tensor_descriptor" in generate(found[0]).text


def test_graph_and_schedule_mean_what_torch_does() -> None:
    inputs = block_inputs(2, 32, 16, 5, 3)
    entry, *_ = capture(block, *inputs, device="cuda")
    want = block(*(t.double() for t in inputs))
    (graph,) = evaluate_graph(entry.captured.graph, copies(entry.inputs))
    (schedule,) = evaluate_schedule(on_cuda(block, *inputs)[0], copies(entry.inputs))
    for got in (graph, schedule):
        assert isinstance(got, torch.Tensor)
        torch.testing.assert_close(got.double(), want, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("capability", [80, 90, 100])
def test_compiles_for_every_architecture(compiler: Compiler, capability: int) -> None:
    for inputs in (block_inputs(1, 64, 64, 14, 3), block_inputs(1, 256, 64, 14, 1), block_inputs(1, 256, 32, 7, 3)):
        unit = generate(on_cuda(block, *inputs)[0])
        assert not unit.refused
        assembly = compiler.compile(unit, 0, capability)
        assert "cp.async.cg.shared.global" in assembly  # the whole of a step in 16 bytes at a time,
        assert "ld.global.b16" not in assembly  # and nothing by the element


# --- the library with what follows in its call ------------------------------------------------------------------


@pytest.fixture
def cudnn_on_cpu() -> Iterator[None]:
    """What cuDNN's two calls compute, here."""

    def relu(x: Any, k: Any, bias: Any, stride: Any, padding: Any, dilation: Any, groups: int) -> torch.Tensor:
        return add_relu(x, k, torch.zeros(()), 1.0, bias, stride, padding, dilation, groups)

    def add_relu(
        x: Any, k: Any, z: Any, alpha: Any, bias: Any, stride: Any, padding: Any, dilation: Any, groups: int
    ) -> torch.Tensor:
        b = None if bias is None else bias.float()
        y = F.conv2d(x.float(), k.float(), b, stride, padding, dilation, groups)
        return torch.relu(y + alpha * z.float()).to(x.dtype)

    library = torch.library.Library("aten", "IMPL")
    library.impl("cudnn_convolution_relu", relu, "CPU")
    library.impl("cudnn_convolution_add_relu", add_relu, "CPU")
    yield
    library._destroy()


def chosen(fn: Any, form: Form, *inputs: torch.Tensor) -> tuple[Schedule, list[Any]]:
    entry, *_ = capture(fn, *inputs, device="cuda")
    schedule = fuse(lower_graph(entry.captured), only_products=True)
    assert form in backend_forms(schedule, schedule.kernels[0])
    schedule = fuse(choose_backends(schedule, {0: form}))
    schedule.verify()
    return schedule, copies(entry.inputs)


def without_residual(x: torch.Tensor, k: torch.Tensor, residual: torch.Tensor, *norm: torch.Tensor) -> torch.Tensor:
    mean, var, weight, bias = norm
    return torch.relu(F.batch_norm(F.conv2d(x, k, padding=k.shape[-1] // 2), mean, var, weight, bias))


def biased(x: torch.Tensor, k: torch.Tensor, residual: torch.Tensor, *norm: torch.Tensor) -> torch.Tensor:
    return torch.relu(F.conv2d(x, k, norm[3], padding=k.shape[-1] // 2))


@pytest.mark.parametrize(
    ("fn", "name", "loops"),
    [(block, "add_relu", 2), (without_residual, "convolution_relu", 2), (biased, "convolution_relu", 1)],
)
@pytest.mark.parametrize("taps", [1, 3])
def test_norm_sum_and_activation_are_the_librarys(
    cudnn_on_cpu: None, fn: Any, name: str, loops: int, taps: int
) -> None:
    """Weights and bias are made in each call; nothing passes over the result again. As right as eager is."""
    inputs = block_inputs(2, 32, 48, 9, taps)
    schedule, given = chosen(fn, FUSED, *inputs)
    assert kinds(schedule) == [LoopKernel] * loops + [ExternKernel] and name in call(schedule, loops).op.name
    (found,) = evaluate_schedule(schedule, given)
    exact = fn(*(x.double() for x in inputs))
    assert isinstance(found, torch.Tensor) and found.stride() == exact.stride()
    ours, theirs = ((y.double() - exact).abs().max() for y in (found, fn(*inputs)))
    assert ours <= 2 * theirs
    unit = generate(schedule)
    assert not unit.refused and len(unit.calls) == loops


@pytest.mark.parametrize(
    "fn",
    [
        lambda x, k, r, *norm: F.conv2d(x, k) + r,  # no activation
        lambda x, k, r, *norm: torch.relu(F.conv2d(x, k) * r),  # by more than a channel's number
        lambda x, k, r, *norm: torch.relu(F.conv2d(x, k) + r.transpose(2, 3)),  # not as the result lies
        lambda x, k, r, *norm: F.relu6(F.conv2d(x, k) + r),
        lambda x, k, r, *norm: (y := torch.relu(F.conv2d(x, k)), y + r),  # and more than one result
    ],
)
def test_what_the_library_cannot_do_in_its_call(fn: Any) -> None:
    entry, *_ = capture(fn, *block_inputs(2, 32, 48, 9, 1), device="cuda")
    schedule = fuse(lower_graph(entry.captured), only_products=True)
    assert FUSED not in backend_forms(schedule, schedule.kernels[0])


# --- who convolves ----------------------------------------------------------------------------------------------


def call(schedule: Schedule, number: int = 0) -> ExternKernel:
    kernel = schedule.kernels[number]
    assert isinstance(kernel, ExternKernel)
    return kernel


def fuses(x: torch.Tensor, k: torch.Tensor) -> Schedule:
    return on_cuda(lambda x, k: torch.relu(F.conv2d(x, k, padding=k.shape[-1] // 2)), x, k)[0]


def test_few_tiles_are_ours_and_many_the_librarys() -> None:
    k = half(64, 64, 3, 3)
    assert kinds(fuses(half(1, 64, 56, 56), k)) == [ConvolveKernel]
    many = fuses(half(16, 64, 56, 56), k)
    assert kinds(many) == [ExternKernel] and call(many).op.name == "aten::cudnn_convolution_relu.default"
    assert kinds(fuses(half(8, 512, 14, 14), half(512, 512, 3, 3))) == [ExternKernel]  # few, but long


def test_short_sums_are_ours_whatever_their_number() -> None:
    assert kinds(fuses(half(16, 64, 56, 56), half(64, 64, 1, 1))) == [ConvolveKernel]
    assert kinds(fuses(half(16, 512, 56, 56), half(64, 512, 1, 1))) == [ExternKernel]


def test_large_matrix_products_are_ours_if_more_than_rounding_follows() -> None:
    x, k = half(8, 1024, 42, 42), half(128, 1024, 1, 1)
    assert kinds(fuses(x, k)) == [ConvolveKernel]
    assert "make_tensor_descriptor" in generate(fuses(x, k)).text
    assert kinds(on_cuda(F.conv2d, x, k)[0]) == [ExternKernel]
    assert kinds(on_cuda(lambda x, k: torch.relu(F.conv2d(x, k, stride=2)), x, k)[0]) == [ConvolveKernel]


def test_other_layouts_and_odd_channels_are_the_librarys() -> None:
    x, k = half(1, 16, 8, 8), half(16, 16, 3, 3)
    for given, kernel in (
        (x.contiguous(), k.contiguous()),
        (x.contiguous(), k),
        (half(1, 24, 8, 8), half(16, 24, 3, 3)),
    ):
        assert ConvolveKernel not in kinds(fuses(given, kernel))


def test_library_writes_the_result_itself(interpreter: Interpreter) -> None:
    found = on_cuda(lambda x, k: F.conv2d(x, k), half(1, 24, 8, 8), half(16, 24, 3, 3))
    assert kinds(found[0]) == [ExternKernel]
    assert call(found[0]).op.name == "aten::convolution.default"
    (got,) = evaluate_schedule(found[0], found[1])
    assert isinstance(got, torch.Tensor)
    assert torch.equal(got, F.conv2d(*found[1]))
    assert got.stride() == F.conv2d(*found[1]).stride()


def test_librarys_result_is_rounded_before_the_bias(interpreter: Interpreter) -> None:
    found = on_cuda(lambda x, k, b: F.conv2d(x, k, b), half(1, 24, 8, 8), half(16, 24, 3, 3), half(16))
    assert kinds(found[0]) == [ExternKernel, LoopKernel]
    check(interpreter, found)


@pytest.mark.parametrize(
    "fn",
    [
        lambda x, k: F.conv2d(x.float(), k.float()),
        lambda x, k: F.conv2d(x, k[:, :8], groups=2),
        lambda x, k: F.conv_transpose2d(x, k),
        lambda x, k: F.conv1d(x.flatten(2), k.flatten(2)),
    ],
)
def test_other_convolutions_stay_calls(fn: Any) -> None:
    schedule, *_ = on_cuda(fn, half(1, 16, 6, 6), half(16, 16, 3, 3))
    assert ConvolveKernel not in kinds(schedule) and ExternKernel in kinds(schedule)


def test_on_a_cpu_they_stay_calls() -> None:
    entry, *_ = capture(lambda x, k: F.conv2d(x, k), half(1, 16, 6, 6), half(16, 16, 3, 3))
    assert [name for name, _ in entry.captured.externs] == ["aten::convolution.default"]


def test_its_work_is_counted() -> None:
    schedule = fuses(half(2, 16, 8, 8), half(32, 16, 3, 3))
    (kernel,) = schedule.kernels
    assert kernel_flops(kernel, {}) == 2 * (2 * 32 * 8 * 8) * (16 * 3 * 3)
    assert kernel_bytes(kernel, schedule, {}) == 2 * (2 * 16 * 8 * 8 + 32 * 16 * 3 * 3 + 2 * 32 * 8 * 8)


# --- a network --------------------------------------------------------------------------------------------------


def test_a_network_has_a_kernel_for_each_convolution_and_few_more(interpreter: Interpreter) -> None:
    torch.manual_seed(0)
    model = ResNet((1, 1), width=16, classes=10).eval().to(torch.bfloat16).to(memory_format=torch.channels_last)
    held = {name: t.detach() for name, t in (*model.named_parameters(), *model.named_buffers())}

    def call(x: torch.Tensor, *tensors: torch.Tensor) -> Any:
        return functional_call(model, dict(zip(held, tensors, strict=True)), (x,))

    with torch.no_grad():
        found = on_cuda(call, half(2, 3, 32, 32), *held.values())
    count = Counter(kinds(found[0]))
    # After the stem comes pooling; at the end are the mean and the classifier.
    assert count == {ConvolveKernel: 9, LoopKernel: 2, ContractKernel: 1}
    check(interpreter, found)


def test_overlapped_kernels_load_vectors_and_fetch_weights_before_they_wait(compiler: Compiler) -> None:
    unit = generate(on_cuda(block, *block_inputs(1, 128, 64, 8, 1))[0], overlapped=True)
    assembly = compiler.compile(unit, 0, 90)
    ahead, behind = assembly.split("griddepcontrol.wait")
    assert "prefetch" in ahead and ahead.count("ld.global") >= 4  # the norm's four vectors
    assert "prefetch" not in behind


@pytest.mark.parametrize("taps", [1, 3])
def test_batch_of_a_size_known_at_launch(interpreter: Interpreter, compiler: Compiler, taps: int) -> None:
    batch = sym("s0", 1)
    x = Operand("x", 0, (batch, 16, 5, 6), channels_last_strides((batch, 16, 5, 6)), DType.bf16)
    k = Operand("k", 0, (32, 16, taps, taps), channels_last_strides((32, 16, taps, taps)), DType.bf16)
    shape = (batch, 32, 5, 6)
    axes = tuple(make_axis(f"i{d}", size) for d, size in enumerate(shape))
    place: Dim = 0
    for axis, stride in zip(axes, channels_last_strides(shape), strict=True):
        place = place + stride * Expr({(axis.sym,): 1})
    body = BodyBuilder()
    body.emit(Store("out", place, body.emit(Load("acc", place, DType.f32)), "set", DType.bf16))
    op = Convolve((1, 1), (taps // 2, taps // 2), (1, 1))
    kernel = ConvolveKernel(op, x, k, "acc", DType.f32, Loop(axes, tuple(body.instrs)))
    assert is_ours(kernel, H200) and splits_of(kernel, H200) == 1  # a sum this short is, however many of them there are
    out = Buffer("out", DType.bf16, shape, channels_last_strides(shape), "temp")
    buffers = {o.buffer: Buffer(o.buffer, o.dtype, o.shape, o.strides, "temp") for o in (x, k)}
    schedule = Schedule({**buffers, "out": out}, [kernel], [])
    unit = generate(schedule, interpreted=True)
    for size in (1, 3):
        evaluation = ScheduleEvaluation(schedule, [], {"s0": size})
        for name in "xk":
            evaluation.memory[name].copy_(torch.randn(evaluation.memory[name].shape) * 0.2)
        held = {name: memory.clone() for name, memory in evaluation.memory.items()}
        evaluation.run()
        assert interpreter.run([job(unit.text, unit.calls[0], {"s0": size})], held) == 0
        assert_close(held["out"], evaluation.memory["out"], 2e-4)
    assert ".target sm_" in compiler.compile(generate(schedule), 0, 90)


def test_a_program_of_ours_the_librarys_and_splits(cudnn_on_cpu: None) -> None:
    def chain(x: torch.Tensor, *weights: torch.Tensor) -> torch.Tensor:
        for k in weights:
            x = torch.relu(F.conv2d(x, k, padding=k.shape[-1] // 2))
        return x

    inputs = [half(1, 24, 6, 6), half(256, 24, 3, 3), half(64, 256, 3, 3), half(32, 64, 1, 1)]
    schedule, held, _ = on_cuda(chain, *inputs)
    assert kinds(schedule) == [ExternKernel, ConvolveKernel, LoopKernel, ConvolveKernel]
    on = assembled(schedule, {}, held)
    (got,) = on.run(list(inputs))
    want = chain(*(t.double() for t in inputs))
    theirs = (chain(*inputs).double() - want).abs().max()
    assert (got.double() - want).abs().max() <= 2 * theirs
    assert got.stride() == want.stride()
    assert len(on.launcher.launched) == 3
