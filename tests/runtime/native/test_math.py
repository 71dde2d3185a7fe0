"""bn_math.h: errors in units in the last place over the whole range of float, special values, and torch's semantics."""

from __future__ import annotations

import ctypes
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from .conftest import Build

# Largest error allowed, in units in the last place, against float64.
UNARY = {
    "expf": (1.1, torch.exp),
    "expm1f": (1.5, torch.expm1),
    "exp2f": (1.1, torch.exp2),
    "sigmoidf": (2.5, torch.sigmoid),
    "tanhf": (1.5, torch.tanh),
    "erff": (1.2, torch.erf),
    "logf": (1.0, torch.log),
    "log2f": (1.6, torch.log2),
    "log10f": (1.6, torch.log10),
    "log1pf": (1.7, torch.log1p),
    "sinf": (1.6, torch.sin),
    "cosf": (1.6, torch.cos),
}
SOURCE = """
#include "bn_math.h"
#define UNARY(name, from, to) \\
    void map_##name(const from *x, to *y, int64_t n) { for (int64_t i = 0; i < n; i++) y[i] = bn_##name(x[i]); }
#define BINARY(name, real) \\
    void map_##name(const real *x, const real *y, real *z, int64_t n) \\
    { for (int64_t i = 0; i < n; i++) z[i] = bn_##name(x[i], y[i]); }
UNARY(exp_nonpositive, float, float) UNARY(round_even, float, float)
UNARY(bf16_to_f32, uint16_t, float) UNARY(f32_to_bf16, float, uint16_t)
UNARY(f16_to_f32, uint16_t, float) UNARY(f32_to_f16, float, uint16_t)
BINARY(powf, float) BINARY(fmax, float) BINARY(fmin, float) BINARY(remainder, float) BINARY(floor_divide, float)
BINARY(remainder_f64, double) BINARY(floor_divide_f64, double)
BINARY(floordiv_i64, int64_t) BINARY(mod_i64, int64_t)
""" + "".join(f"UNARY({name}, float, float)\n" for name in UNARY)

Array = NDArray[np.generic]


@pytest.fixture(scope="module", params=["-ffp-contract=off", "-ffp-contract=fast"])
def math(request: pytest.FixtureRequest, build: Build, tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    source = tmp_path_factory.mktemp("math") / "math.c"
    source.write_text(SOURCE)
    return build(f"math{request.param}", [Path(source)], [request.param])


def mapped(math: ctypes.CDLL, name: str, *arrays: Array, to: type = np.float32) -> Array:
    result = np.empty(arrays[0].shape, dtype=to)
    inputs = [np.ascontiguousarray(x) for x in arrays]
    pointers = [ctypes.c_void_p(x.ctypes.data) for x in (*inputs, result)]
    getattr(math, f"map_{name}")(*pointers, ctypes.c_int64(result.size))
    return result


def all_over(step: int = 20011) -> NDArray[np.float32]:
    """Floats of every sign and size, denormals, infinities and NaNs among them, and more of them near one."""
    spread = np.arange(0, 2**32, step, dtype=np.uint64).astype(np.uint32).view(np.float32)
    special = [0.0, -0.0, 1, -1, np.inf, -np.inf, np.nan, 1e-45, -1e-45, 3.4028235e38, -3.4028235e38, 1e-38]
    usual = np.concatenate([np.linspace(-20, 20, 50001), np.linspace(-2, 2, 20001), special])
    return np.concatenate([spread, usual.astype(np.float32)])


def errors(actual: Array, exact: NDArray[np.float64]) -> NDArray[np.float64]:
    """In units in the last place of float; zero where both round to the same infinity, zero or NaN."""
    with np.errstate(over="ignore", invalid="ignore"):
        expected = exact.astype(np.float32)
        _, exponent = np.frexp(exact)
        ulp = np.ldexp(1.0, np.maximum(exponent, -125) - 24)
        off = np.abs(actual.astype(np.float64) - exact) / ulp
    # An overflow is right as soon as rounding could have gone there.
    same = (expected == actual) | (np.isnan(expected) & np.isnan(actual))
    near_overflow = np.isinf(actual) & (np.abs(exact) > 3.4028234e38) & (np.sign(actual) == np.sign(exact))
    off = np.where(same | near_overflow, np.where(np.isfinite(exact) & ~near_overflow, off, 0), off)
    return np.where(np.isnan(off) | np.isinf(off), np.where(same | near_overflow, 0, np.inf), off)


@pytest.mark.parametrize("name", UNARY)
def test_within_ulps_everywhere(math: ctypes.CDLL, name: str) -> None:
    allowed, reference = UNARY[name]
    x = all_over()
    exact = reference(torch.from_numpy(x).double()).numpy()
    actual = mapped(math, name, x)
    off = errors(actual, exact)
    worst = int(off.argmax())
    assert off[worst] <= allowed, (x[worst], actual[worst], exact[worst])
    zeros = (exact == 0) & (x == 0)
    assert np.array_equal(np.signbit(actual[zeros]), np.signbit(exact[zeros]))


def test_exp_for_softmax(math: ctypes.CDLL) -> None:
    x = np.concatenate([-np.geomspace(1e-30, 86.9, 100001), [0.0, -0.0, -1e4, -np.inf, np.nan]]).astype(np.float32)
    actual = mapped(math, "exp_nonpositive", x)
    assert errors(actual[:-3], np.exp(x[:-3].astype(np.float64))).max() <= 1.1
    assert actual[-3] == 0 and actual[-2] == 0 and np.isnan(actual[-1])


def test_pow(math: ctypes.CDLL) -> None:
    random = np.random.default_rng(0)
    x = np.exp(random.uniform(-80, 80, 200000)).astype(np.float32)
    y = (random.uniform(-1, 1, 200000) * 100 / np.maximum(np.abs(np.log(x)), 1e-3)).astype(np.float32)
    with np.errstate(over="ignore", under="ignore"):
        assert errors(mapped(math, "powf", x, y), np.power(x.astype(np.float64), y.astype(np.float64))).max() <= 0.51
    half = [0.0, 1, 2, 0.5, 3, 2.5, np.inf, 1e-45, 3e38, 16777217, 8388609]
    edge = [*half, *(-x for x in half), np.nan]
    a, b = (g.ravel().astype(np.float32) for g in np.meshgrid(edge, edge))
    with np.errstate(all="ignore"):
        exact = np.power(a.astype(np.float64), b.astype(np.float64))
    actual = mapped(math, "powf", a, b)
    off = errors(actual, exact)
    worst = int(off.argmax())
    assert off[worst] <= 0.51, (a[worst], b[worst], actual[worst], exact[worst])
    assert np.array_equal(np.signbit(actual[~np.isnan(actual)]), np.signbit(exact[~np.isnan(exact)]))


@pytest.mark.parametrize(("name", "dtype"), [("bf16", torch.bfloat16), ("f16", torch.float16)])
def test_narrow_dtypes(math: ctypes.CDLL, name: str, dtype: torch.dtype) -> None:
    bits = np.arange(2**16, dtype=np.uint16)
    wide = mapped(math, f"{name}_to_f32", bits)
    expected = torch.from_numpy(bits.view(np.int16)).view(dtype).float().numpy()
    assert np.array_equal(wide, expected, equal_nan=True)
    x = np.concatenate([all_over(), wide[np.isfinite(wide)], np.linspace(6e4, 7e4, 5001, dtype=np.float32)])
    narrow = mapped(math, f"f32_to_{name}", x, to=np.uint16)
    back = torch.from_numpy(narrow.view(np.int16)).view(dtype).float().numpy()
    expected = torch.from_numpy(x).to(dtype).float().numpy()
    assert np.array_equal(back, expected, equal_nan=True)
    numbers = ~np.isnan(x)  # torch does not keep the sign of a NaN everywhere
    assert np.array_equal(np.signbit(back[numbers]), np.signbit(x[numbers]))


def floats(special: list[float]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    a, b = (g.ravel() for g in np.meshgrid(special, special))
    random = np.random.default_rng(1)
    return np.concatenate([a, random.normal(size=5000) * 100]), np.concatenate([b, random.normal(size=5000)])


@pytest.mark.parametrize(
    ("name", "reference"),
    [
        ("fmax", torch.maximum),
        ("fmin", torch.minimum),
        ("remainder", torch.remainder),
        ("floor_divide", lambda x, y: torch.div(x, y, rounding_mode="floor")),
        ("remainder_f64", torch.remainder),
        ("floor_divide_f64", lambda x, y: torch.div(x, y, rounding_mode="floor")),
    ],
)
def test_torch_semantics(math: ctypes.CDLL, name: str, reference) -> None:  # type: ignore[no-untyped-def]
    real = np.float64 if name.endswith("f64") else np.float32
    edge = [0.0, -0.0, 1, -1, 0.1, -0.1, 2.5, -2.5, 7, -7, 1e30, 1e-30, np.inf, -np.inf, np.nan]
    x, y = (v.astype(real) for v in floats(edge))
    # One element at a time: torch's vectorised and scalar code disagree on the zeros, and ours is the scalar.
    expected = np.array([reference(torch.tensor(a), torch.tensor(b)).item() for a, b in zip(x, y, strict=True)], real)
    assert np.array_equal(mapped(math, name, x, y, to=real), expected, equal_nan=True)


def test_rounding_halves_to_even(math: ctypes.CDLL) -> None:
    x = np.array([0.5, 1.5, 2.5, -0.5, -1.5, 8388607.5, np.inf, np.nan, -0.0, 0.4999999], dtype=np.float32)
    assert np.array_equal(mapped(math, "round_even", x), np.rint(x), equal_nan=True)


def test_integer_division_is_pythons(math: ctypes.CDLL) -> None:
    edge = [0, 1, -1, 2, -2, 3, -3, 7, -7, 2**62, -(2**62), 2**63 - 1, -(2**63)]
    pairs = [(a, b) for a in edge for b in edge if b and (a, b) != (-(2**63), -1)]
    x, y = (np.array(column, dtype=np.int64) for column in zip(*pairs, strict=True))
    assert mapped(math, "floordiv_i64", x, y, to=np.int64).tolist() == [a // b for a, b in pairs]
    assert mapped(math, "mod_i64", x, y, to=np.int64).tolist() == [a % b for a, b in pairs]
    bad_x, bad_y = np.array([5, -(2**63)], dtype=np.int64), np.array([0, -1], dtype=np.int64)
    mapped(math, "floordiv_i64", bad_x, bad_y, to=np.int64)  # must return at all
    mapped(math, "mod_i64", bad_x, bad_y, to=np.int64)
