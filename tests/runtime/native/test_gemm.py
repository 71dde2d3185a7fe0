"""bn_gemm_f32 and bn_gemm_f64: every layout, dtype and odd size, against float64."""

from __future__ import annotations

import ctypes
import platform
import random
from collections.abc import Iterator
from ctypes import c_double, c_float, c_int32, c_int64, c_void_p

import pytest
import torch
from torch import Tensor

from burnish.runtime.cpu.blas import connect

from .conftest import NATIVE, Build

DTYPES = {torch.float32: 0, torch.float64: 1, torch.bfloat16: 2, torch.float16: 3}


class GemmArgs(ctypes.Structure):
    _fields_ = [
        ("a", c_void_p),
        ("b", c_void_p),
        *((name, c_int64) for name in "m n k sam sak sbk sbn nb0 nb1 sa0 sa1 sb0 sb1".split()),
        ("dtype_a", c_int32),
        ("dtype_b", c_int32),
        ("library", c_int32),
    ]


class Store(ctypes.Structure):
    _fields_ = [
        ("c", c_void_p),
        *((name, c_int64) for name in "scm scn sc0 sc1".split()),
        ("dtype", c_int32),
    ]


def gemm_args(a: Tensor, b: Tensor, library: bool = False) -> GemmArgs:
    """Of a [nb0, nb1, m, k] and b [nb0, nb1, k, n]."""
    nb0, nb1, m, k = a.shape
    strides = (a.stride(2), a.stride(3), b.stride(2), b.stride(3))
    batches = (nb0, nb1, a.stride(0), a.stride(1), b.stride(0), b.stride(1))
    kinds = (DTYPES[a.dtype], DTYPES[b.dtype], library)
    return GemmArgs(a.data_ptr(), b.data_ptr(), m, b.shape[3], k, *strides, *batches, *kinds)


def multiply(native: ctypes.CDLL, a: Tensor, b: Tensor, c: Tensor, library: bool = False) -> Tensor:
    store = Store(c.data_ptr(), c.stride(2), c.stride(3), c.stride(0), c.stride(1), DTYPES[c.dtype])
    suffix = "f64" if a.dtype == torch.float64 else "f32"
    epilogue = getattr(native, f"bn_store_{suffix}")
    getattr(native, f"bn_gemm_{suffix}")(ctypes.byref(gemm_args(a, b, library)), epilogue, ctypes.byref(store))
    return c


def laid_out(x: Tensor, layout: str) -> Tensor:
    """The same values with the last axis contiguous, the one before it, or neither."""
    if layout == "rows":
        return x.contiguous()
    if layout == "columns":
        return x.transpose(-1, -2).contiguous().transpose(-1, -2)
    apart = x.new_full((*x.shape[:2], x.shape[2] * 2, x.shape[3] * 3), float("nan"))[:, :, ::2, ::3]
    return apart.copy_(x)


def assert_as_good_as_eager(c: Tensor, a: Tensor, b: Tensor) -> None:
    exact = a.double() @ b.double()
    wide = torch.float64 if a.dtype == torch.float64 else torch.float32
    eager = (a.to(wide) @ b.to(wide)).double()
    # In float64 eager is the reference itself, so what rounding may do is allowed outright.
    epsilon = torch.finfo(c.dtype).eps * exact.abs().max() + 32 * torch.finfo(wide).eps * a.shape[-1] ** 0.5
    assert not c.isnan().any()
    assert (c.double() - exact).abs().max() <= 2 * (eager - exact).abs().max() + epsilon


SIZES = [1, 2, 3, 4, 5, 8, 11, 12, 13, 16, 17, 31, 32, 33, 48, 64, 97, 130, 200]
DEPTHS = [1, 2, 3, 15, 16, 17, 64, 100, 255, 383, 384, 385, 800]


def multiply_at_random(native: ctypes.CDLL, seed: int, times: int, library: bool = False) -> None:
    choose = random.Random(seed)
    for _ in range(times):
        m, n, k = choose.choice(SIZES), choose.choice(SIZES), choose.choice(DEPTHS)
        batches = choose.choice([(1, 1), (1, 1), (1, 3), (2, 3), (5, 1)])
        dtype = choose.choice([torch.float32, torch.float32, torch.float64, torch.bfloat16, torch.float16])
        other = choose.choice([torch.float32, dtype]) if dtype != torch.float64 else dtype
        a = laid_out(torch.randn(*batches, m, k).to(dtype), choose.choice(["rows", "columns", "apart"]))
        b = laid_out(torch.randn(*batches, k, n).to(other), choose.choice(["rows", "columns", "apart"]))
        out = torch.float64 if dtype == torch.float64 else choose.choice([torch.float32, dtype])
        c = laid_out(torch.full((*batches, m, n), float("nan"), dtype=out), choose.choice(["rows", "columns", "apart"]))
        assert_as_good_as_eager(multiply(native, a, b, c, library), a, b)


@pytest.mark.parametrize("seed", range(12))
def test_any_shape_layout_and_dtype(native: ctypes.CDLL, seed: int) -> None:
    multiply_at_random(native, seed, 25)


@pytest.mark.slow
@pytest.mark.skipif(platform.machine() != "x86_64", reason="pretends to be other machines")
@pytest.mark.parametrize(
    ("name", "flags"),
    [("avx2", ["-march=x86-64-v3"]), ("sse", ["-march=x86-64"]), ("neon", ["-march=x86-64", "-D__ARM_NEON"])],
)
def test_other_vector_widths(build: Build, name: str, flags: list[str]) -> None:
    """The tile of every kind of machine. NEON's is plain C with vector types, so it runs here as well."""
    multiply_at_random(build(name, sorted(NATIVE.glob("*.c")), flags), 0, 150)


@pytest.mark.threads
@pytest.mark.parametrize("weight", ["rows", "columns"])
@pytest.mark.parametrize(
    ("m", "k", "n"), [(128, 768, 768), (1, 768, 2304), (7, 1024, 500), (333, 129, 700), (768, 128, 512)]
)
def test_sizes_that_use_threads(native: ctypes.CDLL, m: int, k: int, n: int, weight: str) -> None:
    a, b = torch.randn(1, 1, m, k), laid_out(torch.randn(1, 1, k, n), weight)
    assert_as_good_as_eager(multiply(native, a, b, torch.full((1, 1, m, n), float("nan"))), a, b)


@pytest.mark.threads
def test_packing_in_several_rounds(native: ctypes.CDLL) -> None:
    # The packed operand is larger than what is packed at once, within one product and over many.
    a, b = torch.randn(1, 1, 260, 5000), torch.randn(1, 1, 5000, 1200)
    assert_as_good_as_eager(multiply(native, a, b, torch.full((1, 1, 260, 1200), float("nan"))), a, b)
    a, b = torch.randn(40, 1, 20, 1600), torch.randn(40, 1, 1600, 100).transpose(-1, -2).contiguous().transpose(-1, -2)
    assert_as_good_as_eager(multiply(native, a, b, torch.full((40, 1, 20, 100), float("nan"))), a, b)


def test_broadcast_operands(native: ctypes.CDLL) -> None:
    a, b = torch.randn(1, 1, 9, 40).expand(3, 4, 9, 40), torch.randn(1, 1, 1, 1).expand(3, 4, 40, 30)
    assert_as_good_as_eager(multiply(native, a, b, torch.empty(3, 4, 9, 30)), a, b)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_nothing_to_sum_gives_zeros(native: ctypes.CDLL, dtype: torch.dtype) -> None:
    a, b = torch.empty(2, 1, 9, 0, dtype=dtype), torch.empty(2, 1, 0, 300, dtype=dtype)
    assert (multiply(native, a, b, torch.full((2, 1, 9, 300), 7.0, dtype=dtype)) == 0).all()


def test_nothing_to_compute(native: ctypes.CDLL) -> None:
    for m, n, batch in [(0, 4, 1), (4, 0, 1), (4, 4, 0)]:
        multiply(native, torch.empty(batch, 1, m, 3), torch.empty(batch, 1, 3, n), torch.empty(batch, 1, m, n))


def test_infinities_and_nans_stay_in_their_rows_and_columns(native: ctypes.CDLL) -> None:
    a, b = torch.randn(1, 1, 50, 70), torch.randn(1, 1, 70, 60)
    a[0, 0, 3, 5], b[0, 0, 6, 59] = float("inf"), float("nan")
    c = multiply(native, a, b, torch.empty(1, 1, 50, 60))
    expected = a @ b
    assert torch.equal(c.isnan(), expected.isnan()) and torch.equal(c.isinf(), expected.isinf())


@pytest.mark.parametrize(("real", "dtype"), [(c_float, torch.float32), (c_double, torch.float64)])
def test_epilogue_sees_every_element_once(native: ctypes.CDLL, real: type, dtype: torch.dtype) -> None:
    suffix = "f32" if dtype == torch.float32 else "f64"
    kind = ctypes.CFUNCTYPE(None, c_void_p, *[c_int64] * 6, c_void_p, c_int64)
    for m, n, k in [(3, 700, 20), (700, 3, 20), (70, 90, 33), (90, 70, 33), (200, 300, 500)]:
        a, b = torch.randn(2, 1, m, k, dtype=dtype), torch.randn(2, 1, k, n, dtype=dtype)
        seen, c = torch.zeros(2, 1, m, n), torch.zeros(2, 1, m, n, dtype=dtype)

        def epilogue(ctx, b0, b1, m0, m1, n0, n1, tile, ld, seen=seen, c=c):  # type: ignore[no-untyped-def]
            seen[b0, b1, m0:m1, n0:n1] += 1
            memory = (real * ((m1 - m0 - 1) * ld + n1 - n0)).from_address(tile)
            c[b0, b1, m0:m1, n0:n1] = torch.frombuffer(memory, dtype=dtype).as_strided((m1 - m0, n1 - n0), (ld, 1))

        getattr(native, f"bn_gemm_{suffix}")(ctypes.byref(gemm_args(a, b)), kind(epilogue), None)
        assert (seen == 1).all()
        assert_as_good_as_eager(c, a, b)


def test_weights_edited_in_place_are_seen(native: ctypes.CDLL) -> None:
    a, w, c = torch.randn(1, 1, 20, 64), torch.randn(1, 1, 64, 96), torch.empty(1, 1, 20, 96)
    multiply(native, a, w, c)
    w.mul_(2)
    assert_as_good_as_eager(multiply(native, a, w, c), a, w)


# --- by torch's BLAS ----------------------------------------------------------------------------------------------


@pytest.fixture
def connected(native: ctypes.CDLL) -> Iterator[ctypes.CDLL]:
    if not connect(native):
        pytest.skip("this torch shows no BLAS")
    yield native
    native.bn_use_blas(None, None)


@pytest.mark.parametrize("seed", range(100, 106))
def test_any_shape_layout_and_dtype_by_blas(connected: ctypes.CDLL, seed: int) -> None:
    """What it cannot read (half types, gaps in both directions) is multiplied by our own all the same."""
    multiply_at_random(connected, seed, 25, library=True)


@pytest.mark.threads
@pytest.mark.parametrize("weight", ["rows", "columns"])
@pytest.mark.parametrize(("m", "n"), [(1030, 2500), (130, 12000)])
def test_blocks_of_rows_by_blas(connected: ctypes.CDLL, m: int, n: int, weight: str) -> None:
    a, b = torch.randn(2, 1, m, 40), laid_out(torch.randn(2, 1, 40, n), weight)
    c = torch.full((2, 1, m, n), float("nan"))
    assert_as_good_as_eager(multiply(connected, a, b, c, library=True), a, b)


def test_blas_multiplies_only_where_asked(native: ctypes.CDLL) -> None:
    """A stand-in that writes a mark and no product."""

    @ctypes.CFUNCTYPE(None, *[c_void_p] * 13)
    def marking(*arguments: int) -> None:
        c_float.from_address(arguments[11]).value = 77.0

    native.bn_use_blas(marking, None)
    try:
        a, b = torch.randn(1, 1, 40, 64), torch.randn(1, 1, 64, 96)
        ours, theirs = (multiply(native, a, b, torch.zeros(1, 1, 40, 96), library) for library in (False, True))
    finally:
        native.bn_use_blas(None, None)
    assert theirs[0, 0, 0, 0] == 77.0
    assert_as_good_as_eager(ours, a, b)


def test_without_a_blas_the_product_is_ours(native: ctypes.CDLL) -> None:
    native.bn_use_blas(None, None)
    a, b = torch.randn(1, 1, 40, 64), torch.randn(1, 1, 64, 96)
    c = [multiply(native, a, b, torch.empty(1, 1, 40, 96), library) for library in (False, True)]
    assert torch.equal(*c)
