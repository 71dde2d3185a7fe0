"""Operators as Triton kernels and vendor calls, against eager with float64 as the referee."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from tests.against_eager import check
from tests.gpu.on_device import DEVICE, NO_GATE, randn

pytestmark = pytest.mark.gpu

Case = tuple[Callable[..., Any], Callable[[], tuple[Any, ...]]]


def ids(high: int, *shape: int) -> torch.Tensor:
    return torch.randint(0, high, shape, device=DEVICE)


CASES: dict[str, Case] = {
    "chain": (lambda a, b: F.gelu(a * b + 2).relu() - torch.tanh(a), lambda: (randn(64, 300), randn(300))),
    "softmax": (lambda a: a.softmax(-1) + a.log_softmax(0), lambda: (randn(33, 257),)),
    "layer norm": (lambda a, w: F.layer_norm(a, (768,), w, w), lambda: (randn(50, 768), randn(768))),
    "rms norm": (lambda a, w: a * torch.rsqrt((a * a).mean(-1, True) + 1) * w, lambda: (randn(9, 4, 128), randn(128))),
    "columns": (lambda a: (a.sum(0), a.amax(0)), lambda: (randn(700, 96),)),
    "whole": (lambda a: (a.mean(), a.var(), a.argmax()), lambda: (randn(313, 257),)),
    "one long row": (lambda a: a.sum(-1), lambda: (randn(2, 1 << 20),)),
    "transpose": (lambda a: a.transpose(0, 2).contiguous() * 2, lambda: (randn(40, 50, 60),)),
    "cat, flip, roll": (lambda a: torch.cat([a, a.flip(1) * 2, a.roll(1, 0)], 1), lambda: (randn(30, 40),)),
    "pad and unfold": (lambda a: F.pad(a, (1, 2, 0, 3), value=1.5).unfold(1, 4, 2).sum(-1), lambda: (randn(8, 21),)),
    "where": (lambda a, b: torch.where(a > b, a, b).clamp(-1, 1), lambda: (randn(5, 6, 7), randn(6, 1))),
    "cumsum": (lambda a: a.cumsum(1), lambda: (randn(17, 300),)),
    "embedding": (lambda i, a: F.embedding(i, a) * 2, lambda: (ids(100, 4, 7), randn(100, 64))),
    "gather": (lambda a, i: a.gather(1, i) + 1, lambda: (randn(12, 30), ids(30, 12, 9))),
    "index_add": (lambda a, i, s: a.index_add(0, i, s), lambda: (randn(50, 16), ids(50, 200), randn(200, 16))),
    "scatter": (lambda a, i: a.scatter(1, i, 3.0), lambda: (randn(6, 20), ids(20, 6, 4))),
    "linear gelu": (lambda a, w, b: F.gelu(F.linear(a, w, b)), lambda: (randn(37, 96), randn(160, 96), randn(160))),
    "thin product": (lambda a, w: F.linear(a, w).relu(), lambda: (randn(1, 512), randn(300, 512))),
    "batched product": (lambda a, b: (a @ b) * 0.5, lambda: (randn(6, 33, 48), randn(6, 48, 20))),
    "attention": (lambda q: F.scaled_dot_product_attention(q, q, q, is_causal=True), lambda: (randn(2, 4, 70, 64),)),
    "convolution": (lambda x, w: F.relu(F.conv2d(x, w, padding=1)), lambda: (randn(2, 8, 20, 20), randn(16, 8, 3, 3))),
    "pooling": (lambda x: F.max_pool2d(x, 2) + F.avg_pool2d(x, 2), lambda: (randn(2, 4, 16, 16),)),
    "half": (lambda a: F.silu(a) * a.float().mean(1, True).bfloat16(), lambda: (randn(9, 128, dtype=torch.bfloat16),)),
    "integers": (lambda a: (a // 3 % 7, a.sum(1), a.bitwise_and(5)), lambda: (ids(1000, 20, 30),)),
    "booleans": (lambda a: ((a > 0).any(1), (a > -9).all(0)), lambda: (randn(20, 30),)),
    "double": (lambda a: torch.exp(a).sum(-1).log(), lambda: (randn(10, 20, dtype=torch.float64),)),
    "strided": (lambda a: a[1::2, 3:].t() * 2 + 1, lambda: (randn(20, 30),)),
    "expanded": (lambda a: a.expand(5, 4, 6).contiguous() + a, lambda: (randn(4, 1).expand(4, 6),)),
    "empty": (lambda a: (a * 2, a.sum(0)), lambda: (randn(0, 5),)),
    "scalar": (lambda a: a * 2 + a.sin(), lambda: (randn(),)),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_op(name: str) -> None:
    fn, make = CASES[name]
    with torch.no_grad():
        check(fn, *make(), **NO_GATE)


@pytest.mark.parametrize("name", ["chain", "softmax", "layer norm", "linear gelu", "embedding", "attention"])
def test_gradients(name: str) -> None:
    fn, make = CASES[name]
    check(fn, *(x.requires_grad_() if x.is_floating_point() else x for x in make()), strides=False, **NO_GATE)


def test_sizes_compiled_once() -> None:
    from tests.gpu.on_device import calls_agree, compiled

    fn = lambda a: F.gelu(a.softmax(-1) @ a.transpose(0, 1)) * 2  # noqa: E731
    c = compiled(fn, dynamic=True)
    sizes = iter([5, 64, 130, 1000, 5])
    with torch.no_grad():
        calls_agree(c, fn, lambda: (randn(next(sizes), 40),), 5)


def test_a_kernel_that_cannot_be_printed_runs_in_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the code generator refused one of the program's kernels: the others are compiled, and the result right."""
    from burnish.codegen.triton import module as triton_module
    from tests.gpu.on_device import compiled, notices

    printed, seen = triton_module._printed, []

    def refuse_first(kernel: Any, *how: Any) -> Any:
        seen.append(kernel)
        if len(seen) == 1:
            raise triton_module.NotPrintable("told to")
        return printed(kernel, *how)

    monkeypatch.setattr(triton_module, "_printed", refuse_first)
    monkeypatch.setenv("BURNISH_NO_CACHE", "1")  # a program that is kept was printed long ago
    fn = lambda a: torch.sort(a * 2 + 1).values.softmax(-1)  # noqa: E731
    c, x = compiled(fn), randn(20, 30)
    with torch.no_grad():
        torch.testing.assert_close(c(x), fn(x))
    assert len(seen) > 1 and notices(c)["kernel run in torch: told to"] == 1


def test_a_product_over_one_element_begins_with_zero() -> None:
    from tests.gpu.on_device import compiled

    fn = lambda x, y: 1 / (x @ y)  # noqa: E731
    x, y = torch.zeros(3, 1, device=DEVICE), -torch.zeros(1, 3, device=DEVICE)
    assert torch.equal(compiled(fn)(x, y), fn(x, y))


@pytest.mark.parametrize("dtype", [torch.int8, torch.int16, torch.int32, torch.int64])
@pytest.mark.parametrize("rounding", ["floor", "trunc"])
def test_the_least_number_by_minus_one_wraps_around(dtype: torch.dtype, rounding: str) -> None:
    """Before anything else is computed of it."""
    from tests.gpu.on_device import compiled

    least = torch.iinfo(dtype).min
    x = torch.tensor([least, least + 1, -1, 5], dtype=dtype, device=DEVICE)
    for by in (-1, torch.tensor(-1, dtype=dtype, device=DEVICE)):
        fn = lambda x, by=by: torch.fmod(torch.div(x, by, rounding_mode=rounding), -3)  # noqa: E731
        assert torch.equal(compiled(fn)(x), fn(x))


@pytest.mark.parametrize("dtype", [torch.int8, torch.int16, torch.int32, torch.int64, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("fill", [-1, -2, -100, 3])
def test_what_is_filled_in_beside_what_is_loaded(dtype: torch.dtype, fill: int) -> None:
    """Triton 3.6 extends the signs of several small integers in a register, each into the next."""
    from tests.gpu.on_device import compiled

    for n, pad in ((2, (0, 2)), (3, (1, 2)), (30, (3, 7)), (64, (64, 8))):
        x = torch.randint(-5, 5, (n,), device=DEVICE).to(dtype)
        fn = lambda x, pad=pad: F.pad(x, pad, value=fill)  # noqa: E731
        assert torch.equal(compiled(fn)(x), fn(x))


_STEPS = {
    "negated": lambda x: -x,
    "from zero": lambda x: 0 - x,
    "from five": lambda x: 5 - x,
    "by minus one": lambda x: x * -1,
    "by minus four": lambda x: x * -4,
    "inverted and one more": lambda x: ~x + 1,
    "absolute": torch.abs,
    "less one": lambda x: x - 1,
    "itself taken twice": lambda x: x - x * 2,
    "negated before": lambda x: (-x.to(torch.int32)).to(x.dtype),
    "negated long before": lambda x: (0 - x.to(torch.int64) * 4).to(x.dtype),
    "sign turned": lambda x: x * (x < 0).to(x.dtype) * -2 + x,
}


@pytest.mark.parametrize("dtype", [torch.int8, torch.int16])
@pytest.mark.parametrize("name", _STEPS)
def test_small_integers_wrap_around_before_the_next_step(dtype: torch.dtype, name: str) -> None:
    """Every number, and what is computed of the result: a register has more bits than it."""
    from tests.gpu.on_device import compiled

    def fn(x):
        y = _STEPS[name](x)
        wide = y.to(torch.int32), y.to(torch.int64) * 3, y.to(torch.float32), y.to(torch.float64) / 2
        return wide, y // 3, y % 7, torch.fmod(y, -3), y >> 1, y < 0, y.clamp(-5, 5), y.to(torch.int32).abs()

    limits = torch.iinfo(dtype)
    x = torch.arange(limits.min, limits.max + 1, device=DEVICE).to(dtype)
    torch.testing.assert_close(compiled(fn)(x), fn(x), rtol=0, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("kind", [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8])
def test_numbers_that_fit_no_integer(dtype: torch.dtype, kind: torch.dtype) -> None:
    """Also those that the compiler knows: it may make of them whatever it likes, or leave them out of a choice."""
    from tests.gpu.on_device import compiled

    def fn(x):
        known = x.new_full((8,), float("nan")).to(kind), x.new_full((8,), float("inf")).to(kind), x[:0].std().to(kind)
        chosen = torch.where(x > 0, x, float("-inf")).to(kind), x.masked_fill(x > 1, float("nan")).to(kind)
        return known, chosen, x.to(kind)

    x = torch.tensor([-3e4, -1.5, 0.0, 0.5, 1.5, 7.0, float("nan"), float("-inf")], device=DEVICE, dtype=dtype)
    torch.testing.assert_close(compiled(fn)(x), fn(x), rtol=0, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
def test_zeros_of_a_division_rounded_down_have_its_sign(dtype: torch.dtype) -> None:
    from tests.gpu.on_device import compiled

    def fn(x, y):
        each = x // 2, x // -2.5, x // y, torch.div(x, 3, rounding_mode="floor")
        return each, [torch.atan2(x, q) for q in each], [torch.signbit(q) for q in each]

    x = torch.tensor([-0.0, 0.0, 1.0, -1.0, 1e-7, -1e-7], dtype=dtype, device=DEVICE).repeat(4)
    y = torch.tensor([2.0, -2.0, 3.0, -3.0], dtype=dtype, device=DEVICE).repeat_interleave(6)
    torch.testing.assert_close(compiled(fn)(x, y), fn(x, y))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("scale", [1e3, 1e5, 1e9, 1e15])
@pytest.mark.parametrize("queries", [1, 64])
def test_weights_of_large_scores(dtype: torch.dtype, scale: float, queries: int) -> None:
    """A key of each query's own has all the weight. A score that is rounded in two ways has half a unit of it as an
    exponent."""
    from tests.gpu.on_device import compiled

    def fn(q, k, v):
        written_out = ((q @ k.mT) * 0.37).softmax(-1) @ v
        return F.scaled_dot_product_attention(q, k, v), written_out, (q * 0.3).softmax(-1)

    apart = torch.eye(64, device=DEVICE).flip(0).expand(1, 4, 64, 64) * scale
    q, k = (apart * (1 + torch.rand(1, 4, 64, 1, device=DEVICE)) for _ in range(2))
    q, k, v = q[:, :, :queries].to(dtype), k.to(dtype), randn(1, 4, 64, 64).to(dtype)
    torch.testing.assert_close(compiled(fn)(q, k, v), fn(q, k, v), rtol=0, atol=0)


@pytest.mark.parametrize("p", [1, 2, 3])
def test_norms_of_one_element(p: int) -> None:
    """torch 2.11 traces them with a dimension that they do not have."""
    from tests.gpu.on_device import compiled

    def fn(x):
        x.mul_(2)
        return torch.linalg.vector_norm(x, p, -1), x.norm(p, -1)

    for dtype in (torch.bfloat16, torch.float32):
        ours, theirs = (torch.ones(1, device=DEVICE, dtype=dtype) for _ in range(2))
        torch.testing.assert_close(compiled(fn)(ours), fn(theirs))
        assert torch.equal(ours, theirs)


def test_numbers_of_more_than_32_bits() -> None:
    """Python's, of which one program is made for all."""
    from tests.gpu.on_device import compiled

    call, x = compiled(lambda x, n: x * n + n % 7, dynamic=True), randn(300)
    for n in (5, 21_196_088_001, -(1 << 40) - 3, 12):
        torch.testing.assert_close(call(x, n), x * n + n % 7)
