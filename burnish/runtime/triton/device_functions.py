"""Device functions that generated Triton kernels call where torch's meaning takes more than one operation.

The counterpart of native/bn_math.h. Parameters have no types: each function is compiled for its argument types.
"""
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

import triton
import triton.language as tl


@triton.jit
def negative_zero(dtype: tl.constexpr):
    return -tl.full([], 1.0, dtype) * 0.0


@triton.jit
def fetch(pointers):
    """Prefetch the data at the pointers into the L2 cache, without waiting for it."""
    tl.inline_asm_elementwise(
        "prefetch.global.L2 [$1]; mov.u32 $0, 0;", "=r,l", [pointers.to(tl.int64)], tl.int32, is_pure=False, pack=1
    )


@triton.jit
def weight(x):
    """2**x of an attention's score, of which the largest is 0. What a float would hold as a subnormal number is zero:
    it would take three more instructions, and is nothing beside the largest one's 1."""
    return tl.inline_asm_elementwise("ex2.approx.ftz.f32 $0, $1;", "=f,f", [x], tl.float32, is_pure=True, pack=1)


# --- functions whose result is rounded to bfloat16 --------------------------------------------------------------


@triton.jit
def tanh_to_bf16(x):
    """One instruction, right to eleven bits."""
    return tl.inline_asm_elementwise("tanh.approx.f32 $0, $1;", "=f,f", [x], tl.float32, is_pure=True, pack=1)


@triton.jit
def erf_to_bf16(x):
    """erf(x) = tanh(x * p(x**2)) with a p fitted to 4e-5."""
    square = tl.minimum(x * x, 16.0)
    p = 1.1281433 + square * (0.10408132 - square * 0.0017865287)
    return tanh_to_bf16(x * p)


# --- small integers as floats: their bits, where a float of a known exponent has them ----------------------------


@triton.jit
def signed_byte(b):
    """2**23 and a byte above it, less that."""
    return bytes_in_words(b.to(tl.uint8, bitcast=True) ^ 128).to(tl.float32, bitcast=True) - 8388736.0


@triton.jit
def unsigned_byte(b):
    return bytes_in_words(b).to(tl.float32, bitcast=True) - 8388608.0


@triton.jit
def low_half(word):
    """2 + n / 64 for the lower four bits of a byte, n."""
    return (word & 0x400F0000).to(tl.float32, bitcast=True)


@triton.jit
def high_half(word):
    """2 + n / 1024 for the upper four bits of a byte, n."""
    return (word & 0x4000F000).to(tl.float32, bitcast=True)


@triton.jit
def bytes_in_words(b):
    """Each byte the lowest of a word whose highest is 0x4B."""
    return tl.inline_asm_elementwise(
        "prmt.b32 $0, $4, 0x4B000000, 0x7440; prmt.b32 $1, $4, 0x4B000000, 0x7441;"
        "prmt.b32 $2, $4, 0x4B000000, 0x7442; prmt.b32 $3, $4, 0x4B000000, 0x7443;",
        "=r,=r,=r,=r,r", [b], tl.int32, is_pure=True, pack=4,
    )  # fmt: skip


@triton.jit
def halves_in_words(b):
    """Each byte twice in the middle of a word whose highest is 0x40."""
    return tl.inline_asm_elementwise(
        "prmt.b32 $0, $4, 0x40000000, 0x7004; prmt.b32 $1, $4, 0x40000000, 0x7114;"
        "prmt.b32 $2, $4, 0x40000000, 0x7224; prmt.b32 $3, $4, 0x40000000, 0x7334;",
        "=r,=r,=r,=r,r", [b], tl.int32, is_pure=True, pack=4,
    )  # fmt: skip


@triton.jit
def widened(x):
    """bfloat16 as float: of two in a word, one is a shift away, and the other all but there."""
    return tl.inline_asm_elementwise(
        "shl.b32 $0, $2, 16; and.b32 $1, $2, 0xFFFF0000;", "=f,=f,r", [x], tl.float32, is_pure=True, pack=2
    )


@triton.jit
def plain_float(b):
    """As the others, for the interpreter."""
    return b.to(tl.float32)


@triton.jit
def plain_words(b):
    """As `halves_in_words`, for the interpreter."""
    return b.to(tl.int32) * 0x010100 | 0x40000000


# --- integers of floats -----------------------------------------------------------------------------------------


@triton.jit
def i32_of_f32(x):
    return tl.inline_asm_elementwise("cvt.rzi.s32.f32 $0, $1;", "=r,f", [x], tl.int32, is_pure=True, pack=1)


@triton.jit
def i64_of_f32(x):
    return tl.inline_asm_elementwise("cvt.rzi.s64.f32 $0, $1;", "=l,f", [x], tl.int64, is_pure=True, pack=1)


@triton.jit
def i32_of_f64(x):
    return tl.inline_asm_elementwise("cvt.rzi.s32.f64 $0, $1;", "=r,d", [x], tl.int32, is_pure=True, pack=1)


@triton.jit
def i64_of_f64(x):
    return tl.inline_asm_elementwise("cvt.rzi.s64.f64 $0, $1;", "=l,d", [x], tl.int64, is_pure=True, pack=1)


@triton.jit
def plain_i32(x):
    """As the others, for the interpreter."""
    return x.to(tl.int32)


@triton.jit
def plain_i64(x):
    return x.to(tl.int64)


# --- integers of 16 bits, computed in 32 -------------------------------------------------------------------------


@triton.jit
def short(word):
    """The lower half. ptxas (of CUDA 12.8) negates 16 bits in 32, and forgets that the least number wraps around. LLVM,
    which would go back to 16 bits, does not look into this."""
    return tl.inline_asm_elementwise("cvt.u16.u32 $0, $1;", "=h,r", [word], tl.int16, is_pure=True, pack=1)


@triton.jit
def plain_short(word):
    """As `short`, for the interpreter."""
    return word.to(tl.int16)


# --- floats -----------------------------------------------------------------------------------------------------


@triton.jit
def add_2(a, b, c, d):
    """Two sums at once."""
    return a + c, b + d


@triton.jit
def add_3(a, b, c, d, e, f):
    """Three sums at once."""
    return a + d, b + e, c + f


@triton.jit
def add_4(a, b, c, d, e, f, g, h):
    """Four sums at once."""
    return a + e, b + f, c + g, d + h


@triton.jit
def maximum(a, b):
    """The larger; NaN if either is."""
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def minimum(a, b):
    return tl.minimum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def fmax(a, b):
    """The larger; a NaN counts as missing."""
    return tl.where(a != a, b, tl.where(b != b, a, tl.maximum(a, b)))


@triton.jit
def fmin(a, b):
    return tl.where(a != a, b, tl.where(b != b, a, tl.minimum(a, b)))


@triton.jit
def product(a, b):
    return a * b


@triton.jit
def remainder(rest, b):
    """`rest` is fmod(a, b); the result has b's sign."""
    return tl.where((rest != 0) & ((b < 0) != (rest < 0)), rest + b, rest)


@triton.jit
def floor_divide(a, b, quotient, rest):
    """floor(a / b) without the error of rounding the quotient first; `rest` is fmod(a, b)."""
    exact = (a - rest) / b
    exact = tl.where((rest != 0) & ((b < 0) != (rest < 0)), exact - 1, exact)
    down = tl.floor(exact)
    down = tl.where(exact - down > 0.5, down + 1, down)
    down = tl.where(exact == 0, tl.where(quotient < 0, 0.0 * quotient, tl.where(quotient == 0, quotient, 0.0)), down)
    return tl.where(b == 0, quotient, down)


@triton.jit
def with_exponential(most, total, x):
    """A running maximum and the sum of exp(x - maximum) so far, with one more x: either the sum or its new term is
    scaled, never both, so one exponential will do."""
    gap = x - maximum(most, -3.4028234663852886e38)  # before the first finite x there is nothing to scale
    scale = tl.exp(-tl.abs(gap))
    return maximum(most, x), tl.where(gap > 0, total * scale + 1.0, total + scale)


# --- integers ---------------------------------------------------------------------------------------------------


@triton.jit
def floordiv(a, b):
    """Rounded down, where the hardware's division truncates."""
    return a // b - ((a % b != 0) & ((a < 0) != (b < 0)))


@triton.jit
def trunc_quotient(a, b):
    """The least number of a type, divided by -1, is itself again. Hardware divides small types in more bits, and LLVM
    does not say what comes of it."""
    turns = b == -1
    return tl.where(turns, 0 - a, a // tl.where(turns, 1, b))


@triton.jit
def floor_quotient(a, b):
    return trunc_quotient(a, b) - ((a % b != 0) & ((a < 0) != (b < 0)))


@triton.jit
def mod(a, b):
    """The remainder with b's sign."""
    rest = a % b
    return tl.where((rest != 0) & ((rest < 0) != (b < 0)), rest + b, rest)


@triton.jit
def shl(a, b, BITS: tl.constexpr):
    inside = (b >= 0) & (b < BITS)
    return tl.where(inside, a << tl.where(inside, b, 0), 0)


@triton.jit
def shr(a, b, BITS: tl.constexpr):
    """A shift by too much leaves the sign alone."""
    inside = (b >= 0) & (b < BITS)
    return tl.where(inside, a >> tl.where(inside, b, 0), tl.where(a < 0, -1, 0).to(a.dtype))


@triton.jit
def checked(index, size, mask, error):
    """The index if it lies in [0, size), else 0 with the error flag raised."""
    astray = ((index < 0) | (index >= size)) & mask
    tl.store(error + index * 0, 1, mask=astray)
    return tl.where(astray, 0, index)


# --- where an extreme lies --------------------------------------------------------------------------------------


@triton.jit
def argmax(a, at_a, b, at_b):
    """The larger value and its place: NaN beats all, the lower place wins among equals."""
    nan_a, nan_b = a != a, b != b
    tie = (a == b) | (nan_a & nan_b)
    first = (a > b) | (nan_a & (nan_b == 0)) | (tie & (at_a < at_b))
    return tl.where(first, a, b), tl.where(first, at_a, at_b)


@triton.jit
def argmin(a, at_a, b, at_b):
    nan_a, nan_b = a != a, b != b
    tie = (a == b) | (nan_a & nan_b)
    first = (a < b) | (nan_a & (nan_b == 0)) | (tie & (at_a < at_b))
    return tl.where(first, a, b), tl.where(first, at_a, at_b)
