"""bn_attend: every layout, dtype, mask and odd size, against float64 and against torch's own kernel."""

from __future__ import annotations

import ctypes
import random
from ctypes import c_float, c_int32, c_int64, c_void_p

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

DTYPES = {torch.float32: 0, torch.bfloat16: 2, torch.float16: 3, torch.bool: 4}
MINUS_INFINITY = float("-inf")


class AttendArgs(ctypes.Structure):
    _fields_ = [
        *((name, c_void_p) for name in "q k v mask out lse".split()),
        *((name, c_int64) for name in "batch heads_q heads_kv len_q len_k dim dim_v".split()),
        *((name, c_int64 * 4) for name in "sq sk sv sm so".split()),
        ("slse", c_int64 * 3),
        ("scale", c_float),
        ("causal", c_int32),
        *((name, c_int32) for name in "dtype_q dtype_k dtype_v dtype_mask dtype_out".split()),
    ]


def attend(
    native: ctypes.CDLL,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None = None,
    causal: bool = False,
    scale: float | None = None,
) -> tuple[Tensor, Tensor]:
    """The result, laid out [batch, length, head, dim] as models like it, and the logarithms of the sums."""
    batch, heads, length, dim = q.shape
    out = torch.full((batch, length, heads, v.shape[3]), float("nan"), dtype=q.dtype).transpose(1, 2)
    lse = torch.full((batch, heads, length), float("nan"))
    args = AttendArgs(
        *(x.data_ptr() for x in (q, k, v)), None, out.data_ptr(), lse.data_ptr(),
        batch, heads, k.shape[1], length, k.shape[2], dim, v.shape[3],
    )  # fmt: skip
    args.sq, args.sk, args.sv, args.so = ((c_int64 * 4)(*x.stride()) for x in (q, k, v, out))
    args.slse = (c_int64 * 3)(*lse.stride())
    args.dtype_q, args.dtype_k, args.dtype_v, args.dtype_out = (DTYPES[x.dtype] for x in (q, k, v, out))
    args.scale, args.causal = dim**-0.5 if scale is None else scale, causal
    if mask is not None:
        whole = mask.expand(batch, heads, length, k.shape[2])
        args.mask, args.sm, args.dtype_mask = whole.data_ptr(), (c_int64 * 4)(*whole.stride()), DTYPES[mask.dtype]
    native.bn_attend(ctypes.byref(args))
    return out, lse


def spelled_out(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None = None,
    causal: bool = False,
    scale: float | None = None,
    *,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor]:
    group = q.shape[1] // k.shape[1]
    keys, values = (x.to(dtype).repeat_interleave(group, 1) for x in (k, v))
    scores = q.to(dtype) @ keys.transpose(-1, -2) * (q.shape[-1] ** -0.5 if scale is None else scale)
    if causal:
        scores = scores.masked_fill(~torch.ones(scores.shape[-2:], dtype=torch.bool).tril(), MINUS_INFINITY)
    if mask is not None and mask.dtype == torch.bool:
        scores = scores.masked_fill(~mask, MINUS_INFINITY)
    elif mask is not None:
        scores = scores + mask.to(dtype)
    blind = (scores == MINUS_INFINITY).all(-1)
    lse = torch.logsumexp(scores, -1).masked_fill(blind, 0)
    return torch.softmax(scores, -1).masked_fill(blind[..., None], 0) @ values, lse


def assert_as_good_as_eager(actual: tuple[Tensor, Tensor], *inputs: Tensor | bool | float | None) -> None:
    exact = spelled_out(*inputs, dtype=torch.float64)  # type: ignore[arg-type]
    eager = spelled_out(*inputs, dtype=torch.float32)  # type: ignore[arg-type]
    for ours, theirs, truth, dtype in zip(actual, eager, exact, (actual[0].dtype, torch.float32), strict=True):
        size = truth.abs().max().clamp(min=1)
        allowed = 2 * (theirs - truth).abs().max() + size * (torch.finfo(dtype).eps + 1e-6)
        assert (ours.double() - truth).abs().max() <= allowed


def tensor(shape: tuple[int, int, int, int], dtype: torch.dtype, layout: str) -> Tensor:
    """[batch, head, length, dim], stored so, with the heads inside, or with no axis contiguous in f32's way."""
    batch, heads, length, dim = shape
    if layout == "heads outside":
        return torch.randn(shape).to(dtype)
    if layout == "heads inside":
        return torch.randn(batch, length, heads, dim).to(dtype).transpose(1, 2)
    return torch.randn(batch, heads, dim, 2 * length).to(dtype).transpose(2, 3)[:, :, ::2]


def some_mask(choose: random.Random, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    mask = torch.rand(shape) < 0.7 if choose.random() < 0.5 else torch.randn(shape).to(dtype)
    if choose.random() < 0.4:  # a row that may look at nothing
        mask[..., :1, :] = False if mask.dtype == torch.bool else MINUS_INFINITY
    return mask


@pytest.mark.parametrize("seed", range(10))
def test_any_shape_layout_dtype_and_mask(native: ctypes.CDLL, seed: int) -> None:
    choose = random.Random(seed)
    for _ in range(20):
        batch, kv_heads, group = choose.choice([1, 2]), choose.choice([1, 2, 3]), choose.choice([1, 1, 2, 4])
        len_q, len_k = choose.choice([1, 1, 2, 5, 16, 17, 33, 70, 130]), choose.choice([1, 3, 16, 31, 100, 257, 513])
        dim = choose.choice([1, 4, 8, 17, 32, 64, 80])
        dim_v = choose.choice([dim, dim, 12, 33])
        dtype = choose.choice([torch.float32, torch.float32, torch.bfloat16, torch.float16])
        layout = choose.choice(["heads outside", "heads inside", "apart"])
        heads = kv_heads * group
        q = tensor((batch, heads, len_q, dim), dtype, layout)
        k = tensor((batch, kv_heads, len_k, dim), dtype, layout)
        v = tensor((batch, kv_heads, len_k, dim_v), dtype, layout)
        causal, mask = choose.random() < 0.3, None
        if choose.random() < 0.5:
            shapes = [(len_q, len_k), (batch, 1, 1, len_k), (batch, heads, len_q, len_k), (1, 1, len_q, 1)]
            mask = some_mask(choose, choose.choice(shapes), dtype)
        scale = choose.choice([None, 0.3, -0.2])
        assert_as_good_as_eager(attend(native, q, k, v, mask, causal, scale), q, k, v, mask, causal, scale)


@pytest.mark.threads
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("heads", "len_q", "len_k"), [(12, 128, 128), (2, 300, 600), (1, 1, 5000), (2, 2, 3000)])
def test_sizes_that_use_threads(native: ctypes.CDLL, heads: int, len_q: int, len_k: int, causal: bool) -> None:
    q, k, v = (tensor((1, heads, n, 64), torch.float32, "heads inside") for n in (len_q, len_k, len_k))
    assert_as_good_as_eager(attend(native, q, k, v, causal=causal), q, k, v, None, causal)


@pytest.mark.parametrize("len_q", [2, 40])
@pytest.mark.parametrize("kind", ["keep", "add"])
def test_rows_that_see_nothing_are_as_in_torch(native: ctypes.CDLL, len_q: int, kind: str) -> None:
    q, k, v = (torch.randn(1, 2, n, 16) for n in (len_q, 30, 30))
    keep = torch.rand(len_q, 30) < 0.5
    keep[1] = False
    mask = keep if kind == "keep" else torch.zeros(len_q, 30).masked_fill(~keep, MINUS_INFINITY)
    out, lse = attend(native, q, k, v, mask)
    torch.testing.assert_close(out, F.scaled_dot_product_attention(q, k, v, attn_mask=mask), atol=1e-6, rtol=1e-5)
    assert (out[:, :, 1] == 0).all() and (lse[:, :, 1] == 0).all()


@pytest.mark.parametrize("len_q", [3, 40])
def test_first_keys_masked_for_longer_than_a_block(native: ctypes.CDLL, len_q: int) -> None:
    q, k, v = (torch.randn(1, 1, n, 16) for n in (len_q, 700, 700))
    keep = torch.arange(700).expand(len_q, 700) >= 650
    assert_as_good_as_eager(attend(native, q, k, v, keep), q, k, v, keep)


@pytest.mark.parametrize("len_q", [1, 40])
def test_nan_reaches_only_its_own_row(native: ctypes.CDLL, len_q: int) -> None:
    q, k, v = (torch.randn(1, 1, n, 16) for n in (len_q, 50, 50))
    q[0, 0, 0, 0] = float("nan")
    out, _ = attend(native, q, k, v)
    assert out[:, :, 0].isnan().all() and not out[:, :, 1:].isnan().any()


@pytest.mark.parametrize("len_q", [1, 40])
def test_no_keys_gives_zeros(native: ctypes.CDLL, len_q: int) -> None:
    q, k, v = (torch.randn(1, 2, n, 16) for n in (len_q, 0, 0))
    assert (attend(native, q, k, v)[0] == 0).all()


@pytest.mark.parametrize("len_q", [1, 64])
def test_large_scores_do_not_overflow(native: ctypes.CDLL, len_q: int) -> None:
    q, k, v = (torch.randn(1, 2, n, 32) * 40 for n in (len_q, 300, 300))
    assert_as_good_as_eager(attend(native, q, k, v), q, k, v)
