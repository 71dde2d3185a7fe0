"""Matrices that are looked up or dequantised where a vector product reads them; maps that do the products they need.

No kernel stores anything of a matrix's size, and every kernel leaves what its evaluation does."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch.func import functional_call

from burnish.codegen.triton.module import generate
from burnish.generation.quantize import EightBitLinear, FourBitLinear
from burnish.schedule.evaluate import evaluate_schedule
from burnish.schedule.gpu.vector_loops import is_vector_product, matrices
from burnish.schedule.kernels import ExternKernel, LoopGroup, LoopKernel, Schedule
from burnish.schedule.phases import Phases
from tests.codegen.triton.compiler import Compiler
from tests.codegen.triton.interpreter import Interpreter
from tests.codegen.triton.test_decode import captured, for_gpu, same_as_unfused, same_under
from tests.programs import Capture, copies

EXPERTS, CHOSEN, WIDTH, INNER = 6, 3, 64, 48


def experts(x, chosen, share, gate_up, down):  # type: ignore[no-untyped-def]
    """A few tokens through the experts they go to, with the matrices looked up, as models write it."""
    tokens = x.shape[0]
    numbers = chosen.reshape(-1)
    repeated = x.repeat_interleave(CHOSEN, 0)
    both = torch.bmm(gate_up[numbers], repeated.unsqueeze(-1)).squeeze(-1)
    gate, up = both.chunk(2, -1)
    out = torch.bmm(down[numbers], (F.silu(gate) * up).unsqueeze(-1)).squeeze(-1)
    return x + (out * share.reshape(-1, 1)).view(tokens, CHOSEN, -1).sum(1)


def routed(tokens: int) -> Capture:
    torch.manual_seed(0)
    chosen = torch.stack([torch.randperm(EXPERTS)[:CHOSEN] for _ in range(tokens)])
    gate_up, down = torch.randn(EXPERTS, 2 * INNER, WIDTH) / 8, torch.randn(EXPERTS, WIDTH, INNER) / 7
    share = torch.rand(tokens, CHOSEN).bfloat16()
    return captured(experts, torch.randn(tokens, WIDTH).bfloat16(), chosen, share, gate_up.bfloat16(), down.bfloat16())


def largest_stored(schedule: Schedule) -> int:
    parts = [p for k in schedule.kernels for p in (k.parts if isinstance(k, LoopGroup) else (k,))]
    return max(int(schedule.buffers[name].elements) for p in parts for name in p.writes)


@pytest.mark.parametrize("tokens", [1, 2])
def test_experts_are_read_in_place(tokens: int, interpreter: Interpreter) -> None:
    found = routed(tokens)
    schedule = for_gpu(found)
    gated, summed = schedule.kernels
    assert isinstance(gated, LoopKernel) and isinstance(summed, LoopKernel), schedule
    assert [matrices(k.loop) for k in (gated, summed)] == [2, CHOSEN]
    assert all(is_vector_product(k.loop) for k in (gated, summed))
    assert largest_stored(schedule) <= tokens * CHOSEN * INNER
    same_as_unfused(found, schedule)
    same_under(interpreter, found, schedule)


@pytest.mark.parametrize("chosen", [2, CHOSEN, 6])
def test_routing_is_one_kernel_in_front(chosen: int, interpreter: Interpreter) -> None:
    """Scores, the best of them, and their shares, which the experts' kernel adds up for itself."""

    def step(x: torch.Tensor, router: torch.Tensor, down: torch.Tensor) -> torch.Tensor:
        share, numbers = torch.topk(torch.softmax(router, -1), chosen, -1)
        share = share / share.sum(-1, keepdim=True)
        repeated = x.repeat_interleave(chosen, 0).unsqueeze(-1)
        out = torch.bmm(down[numbers.reshape(-1)], repeated).squeeze(-1) * share.reshape(-1, 1)
        return out.view(x.shape[0], chosen, -1).sum(1)

    torch.manual_seed(0)
    found = captured(step, torch.randn(2, INNER), torch.randn(2, 12), torch.randn(12, WIDTH, INNER))
    schedule = for_gpu(found)
    assert [is_vector_product(k.loop) for k in schedule.kernels if isinstance(k, LoopKernel)] == [False, True]
    assert len(schedule.kernels) == 2, schedule
    same_as_unfused(found, schedule)
    same_under(interpreter, found, schedule)


@pytest.mark.parametrize("chosen", [1, 4, 9])
def test_the_best_of_equal_hidden_and_broken_ones(chosen: int) -> None:
    """Each place is taken once, of equal ones the first, and not-a-number is the greatest."""
    nan, inf = float("nan"), float("inf")
    x = torch.stack([
        torch.tensor([2.0, 1.0, 2.0, 0.0, 2.0, 1.0, 0.0, -0.0, 1.0]),
        torch.tensor([-inf, -inf, -inf, -inf, 1.0, -inf, -inf, -inf, -inf]),
        torch.tensor([1.0, nan, inf, -inf, nan, 0.0, 3.0, 2.0, inf]),
    ])  # fmt: skip
    found = captured(lambda x: tuple(torch.topk(x, chosen, -1)), x)
    schedule = for_gpu(found)
    assert not any(isinstance(k, ExternKernel) for k in schedule.kernels)
    values, places = evaluate_schedule(schedule, copies(found.inputs))
    torch.testing.assert_close(values, torch.topk(x, chosen, -1).values, rtol=0, atol=0, equal_nan=True)
    first = [[0, 2, 4, 1, 5, 8, 3, 6, 7], [4, 0, 1, 2, 3, 5, 6, 7, 8], [1, 4, 2, 8, 6, 7, 0, 5, 3]]
    assert torch.as_tensor(places).tolist() == [row[:chosen] for row in first]


@pytest.mark.parametrize("capability", [80, 90, 100])
def test_experts_compile(compiler: Compiler, capability: int) -> None:
    unit = generate(for_gpu(routed(2)))
    for n in unit.calls:
        assert "st.global" in compiler.compile(unit, n, capability)


def test_what_is_overwritten_in_between_is_read_before() -> None:
    """The rows are looked up in memory that the program changes before the product is done."""

    def step(x: torch.Tensor, table: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        rows = table[at]
        table.mul_(0.5)
        return torch.bmm(rows, (x + table[0, :1]).unsqueeze(-1)).squeeze(-1)

    found = captured(step, torch.randn(3, 32), torch.randn(4, 16, 32), torch.tensor([3, 0, 3]))
    same_as_unfused(found, for_gpu(found))


def test_a_matrix_read_twice_is_stored() -> None:
    def step(x: torch.Tensor, w: torch.Tensor, s: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        whole = w.to(x.dtype) * s
        return F.linear(x, whole), whole

    w, s = torch.randint(-127, 127, (40, 64)).char(), torch.rand(40, 1)
    found = captured(step, torch.randn(1, 64), w, s)
    schedule = for_gpu(found)
    assert largest_stored(schedule) == w.numel()
    same_as_unfused(found, schedule)


def test_a_matrix_of_unequal_or_overwritten_parts_is_stored() -> None:
    def step(x: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        unequal = torch.cat([a * 2, b[:, :16] + 1], 1)
        over = torch.cat([b, a], 1).slice_scatter(b * 3, 1, 32, 64)
        return F.linear(x[:, :48], unequal), F.linear(x, over)

    found = captured(step, torch.randn(1, 64), torch.randn(40, 32), torch.randn(40, 32))
    same_as_unfused(found, for_gpu(found))


def test_no_product_is_done_twice() -> None:
    """A map that reads each sum at several of its points leaves the product alone."""

    def step(x: torch.Tensor, w: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return F.linear(x, w)[0, :, None] * y

    found = captured(step, torch.randn(1, 64), torch.randn(40, 64), torch.randn(40, 50))
    schedule = for_gpu(found)
    assert len(schedule.kernels) == 2 and not any(isinstance(k, ExternKernel) for k in schedule.kernels)
    same_as_unfused(found, schedule)


@pytest.mark.parametrize("bits", [8, 4])
def test_small_integers_become_numbers_inside_the_product(bits: int, interpreter: Interpreter) -> None:
    """A norm, two gated products and one back: as many kernels as with plain matrices, and none stores a matrix."""
    torch.manual_seed(0)
    layers = [torch.nn.Linear(*shape).bfloat16() for shape in ((128, 96), (128, 96), (96, 128))]
    quantised = [EightBitLinear.of(x) if bits == 8 else FourBitLinear.of(x, 16) for x in layers]

    def step(x: torch.Tensor, scale: torch.Tensor, *weights: torch.Tensor) -> torch.Tensor:
        given = list(weights)
        calls = []
        for layer in quantised:
            named = {name: given.pop(0) for name, _ in layer.named_parameters()}
            calls.append(lambda h, layer=layer, named=named: functional_call(layer, named, (h,)))
        wide = x.float()
        h = scale * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype)
        gate, up, down = calls
        return x + down(F.silu(gate(h)) * up(h))

    weights = [p.detach() for layer in quantised for _, p in layer.named_parameters()]
    found = captured(step, torch.randn(1, 128).bfloat16(), torch.randn(128).bfloat16(), *weights)
    schedule = for_gpu(found)
    assert len(schedule.kernels) == 2 and all(isinstance(k, LoopKernel) for k in schedule.kernels), schedule
    assert largest_stored(schedule) <= 128
    assert all(Phases(k.loop).last == 1 for k in schedule.kernels if isinstance(k, LoopKernel)), "the norm's sum first"
    same_as_unfused(found, schedule)
    same_under(interpreter, found, schedule)


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("width", [64, 160])  # elements of a row: of 160, a program has room for more
def test_groups_of_small_integers_are_summed_before_they_are_scaled(
    bits: int, width: int, interpreter: Interpreter
) -> None:
    torch.manual_seed(1)
    linear = torch.nn.Linear(width, 48, bias=False).bfloat16()
    layer = EightBitLinear.of(linear) if bits == 8 else FourBitLinear.of(linear, 16)
    names = [name for name, _ in layer.named_parameters()]

    def step(x: torch.Tensor, *weights: torch.Tensor) -> torch.Tensor:
        return functional_call(layer, dict(zip(names, weights, strict=True)), (x,))

    found = captured(step, torch.randn(1, width).bfloat16(), *(p.detach() for p in layer.parameters()))
    schedule = for_gpu(found)
    unit = generate(schedule)
    (call,) = unit.calls.values()
    text = unit.functions[call.function]
    assert ("bn.halves_in_words" if bits == 4 else "bn.signed_byte") in text and "tl.reshape(" in text
    assert text.count("tl.load(") == (7 if bits == 4 else 3)  # a vector by halves, with a scale and a least for each
    same_as_unfused(found, schedule)
    same_under(interpreter, found, schedule)


@pytest.mark.parametrize("kind", ["int8", "uint8"])
def test_bytes_about_a_middle_of_each_group(kind: str, interpreter: Interpreter) -> None:
    """As others write it: (value - middle) * scale."""
    torch.manual_seed(2)
    dtype = getattr(torch, kind)
    values = torch.randint(*((-128, 128) if kind == "int8" else (0, 256)), (40, 96), dtype=torch.int16).to(dtype)
    middle, scale = torch.rand(40, 6, 1).bfloat16(), (torch.rand(40, 6, 1) / 128).bfloat16()

    def step(x: torch.Tensor, values: torch.Tensor, middle: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        groups = values.view(40, 6, 16).to(x.dtype)
        return F.linear(x, ((groups - middle) * scale).view(40, 96))

    found = captured(step, torch.randn(1, 96).bfloat16(), values, middle, scale)
    schedule = for_gpu(found)
    unit = generate(schedule)
    (call,) = unit.calls.values()
    text = unit.functions[call.function]
    assert f"bn.{'signed' if kind == 'int8' else 'unsigned'}_byte(" in text and "-1.0 * " in text
    same_as_unfused(found, schedule)
    same_under(interpreter, found, schedule)


@pytest.mark.parametrize(("bits", "narrow"), [(8, 0), (4, 4)])
def test_packed_weights_lie_in_the_threads_as_their_vector_does(compiler: Compiler, bits: int, narrow: int) -> None:
    """Nothing goes through shared memory, and what a group shares is loaded once for eight neighbours."""
    linear = torch.nn.Linear(1024, 4096, bias=False).bfloat16()
    layer = EightBitLinear.of(linear) if bits == 8 else FourBitLinear.of(linear, 128)
    names = [name for name, _ in layer.named_parameters()]

    def step(x: torch.Tensor, *weights: torch.Tensor) -> torch.Tensor:
        return functional_call(layer, dict(zip(names, weights, strict=True)), (x,))

    schedule = for_gpu(captured(step, torch.randn(1, 1024).bfloat16(), *(p.detach() for p in layer.parameters())))
    unit = generate(schedule)
    (number,) = unit.calls
    launch = unit.calls[number].launch
    threads, elements = 32 * launch.warps, math.prod(block for _, block in launch.blocks)
    assert threads == 32 and elements * 8 // bits == 128 * threads  # weights enough to share what a thread does once
    for capability in (80, 100):
        assert "st.global" in compiler.compile(unit, number, capability)
    text = compiler.compile(unit, number, 90)
    assert "bar.sync" not in text and "cvt.rn.f32.s" not in text and "cvt.rn.f32.u" not in text
    assert text.count("ld.global.v2.b32") == elements // threads // 8
    assert text.count("ld.global.b16") <= max(narrow * elements // threads // 8, 4), "a scale for each element"
