/* What generated kernels lean on: integer semantics of torch, checked indices, reductions for simd loops. */
#ifndef BN_KERNEL_H
#define BN_KERNEL_H

#include "bn_math.h"
#include "bn_runtime.h"

#define BN_INF __builtin_inff()
#define BN_NAN __builtin_nanf("")
#define BN_ALIGN __attribute__((aligned(64)))
#define BN_NOINLINE __attribute__((noinline))

#define BN_KFN static inline __attribute__((always_inline, unused))

BN_KFN int64_t bn_max_i64(int64_t a, int64_t b) { return a > b ? a : b; }
BN_KFN int64_t bn_min_i64(int64_t a, int64_t b) { return a < b ? a : b; }

/* What a caller's values can do wrong: bits of the program's error word, which it raises from when it is done.
 * (An atomic OR, since threads share the word; only a call that will raise pays for it.) */
enum { BN_INDEX_OUT_OF_RANGE = 1, BN_ZERO_DIVISION = 2, BN_PLACE_OUT_OF_RANGE = 4 };

BN_KFN void bn_raise(int64_t *error, int64_t what)
{
    __atomic_fetch_or(error, what, __ATOMIC_RELAXED);
}

/* A position that must lie in [0, n). Reading row 0 instead of stray memory keeps the program alive until
 * the caller sees the flag and raises. */
BN_KFN int64_t bn_checked(int64_t i, int64_t n, int64_t what, int64_t *error)
{
    if (__builtin_expect((uint64_t)i >= (uint64_t)n, 0)) {
        bn_raise(error, what);
        return 0;
    }
    return i;
}

/* ------------------------------------------------------------------ integers
 *
 * torch's integers wrap around. In C only unsigned ones do, so these compute in the unsigned type of the same width
 * (conversion back is modulo 2^N with every compiler we know). Narrower types need none of it: C computes in int,
 * which holds every sum, difference and product of theirs, and what the printer casts back. */
#define BN_WRAPPING(T, U, S)                                                                  \
    BN_KFN T bn_add_##S(T a, T b) { return (T)((U)a + (U)b); }                                 \
    BN_KFN T bn_sub_##S(T a, T b) { return (T)((U)a - (U)b); }                                 \
    BN_KFN T bn_mul_##S(T a, T b) { return (T)((U)a * (U)b); }                                 \
    BN_KFN T bn_neg_##S(T a) { return (T)(0 - (U)a); }                                         \
    BN_KFN T bn_abs_##S(T a) { return a < 0 ? (T)(0 - (U)a) : a; }
BN_WRAPPING(int64_t, uint64_t, i64)
BN_WRAPPING(int32_t, uint32_t, i32)

/* Quotients and remainders of values: the divisor is not zero and the quotient fits, but for the smallest integer by
 * -1, which wraps around. (x86 would stop the process there, and does so in eager.) */
BN_KFN int64_t bn_truncdiv_i64(int64_t a, int64_t b)
{
    return b == -1 ? bn_neg_i64(a) : a / (b == 0 ? 1 : b);
}
BN_KFN int64_t bn_rem_i64(int64_t a, int64_t b) { return b == 0 || b == -1 ? 0 : a % b; }

/* The same of divisors that may be zero, which is the caller's mistake: some number, and he is told. */
BN_KFN int64_t bn_divisor(int64_t b, int64_t *error)
{
    if (__builtin_expect(b == 0, 0)) {
        bn_raise(error, BN_ZERO_DIVISION);
        return 1;
    }
    return b;
}

BN_KFN int64_t bn_shl_i64(int64_t a, int64_t b, int bits) { return b < 0 || b >= bits ? 0 : (int64_t)((uint64_t)a << b); }
BN_KFN int64_t bn_shr_i64(int64_t a, int64_t b, int bits) { return b < 0 || b >= bits ? (a < 0 ? -1 : 0) : a >> b; }

/* torch.fmax and fmin (a NaN loses to a number), and division rounded toward zero. */
#define BN_FLOAT_OPS(T, S, F)                                                                \
    BN_KFN T bn_larger_number_##S(T a, T b) { return (b > a || a != a) ? b : a; }             \
    BN_KFN T bn_smaller_number_##S(T a, T b) { return (b < a || a != a) ? b : a; }            \
    BN_KFN T bn_truncdiv_##S(T a, T b) { return __builtin_trunc##F(a / b); }
BN_FLOAT_OPS(float, f32, f)
BN_FLOAT_OPS(double, f64, )

/* Largest and smallest for simd reductions: NaN wins, as in torch. */
#define BN_LARGER(out, in) ((in) > (out) || (in) != (in) ? (in) : (out))
#define BN_SMALLER(out, in) ((in) < (out) || (in) != (in) ? (in) : (out))
#ifdef _OPENMP
#pragma omp declare reduction(bn_sum_i64 : int64_t : omp_out = bn_add_i64(omp_out, omp_in)) initializer(omp_priv = 0)
#pragma omp declare reduction(bn_prod_i64 : int64_t : omp_out = bn_mul_i64(omp_out, omp_in)) initializer(omp_priv = 1)
#pragma omp declare reduction(bn_sum_i32 : int32_t : omp_out = bn_add_i32(omp_out, omp_in)) initializer(omp_priv = 0)
#pragma omp declare reduction(bn_prod_i32 : int32_t : omp_out = bn_mul_i32(omp_out, omp_in)) initializer(omp_priv = 1)
#pragma omp declare reduction(bn_max_f32 : float : omp_out = BN_LARGER(omp_out, omp_in)) initializer(omp_priv = omp_orig)
#pragma omp declare reduction(bn_min_f32 : float : omp_out = BN_SMALLER(omp_out, omp_in)) initializer(omp_priv = omp_orig)
#pragma omp declare reduction(bn_max_f64 : double : omp_out = BN_LARGER(omp_out, omp_in)) initializer(omp_priv = omp_orig)
#pragma omp declare reduction(bn_min_f64 : double : omp_out = BN_SMALLER(omp_out, omp_in)) initializer(omp_priv = omp_orig)
#pragma omp declare reduction(bn_max_i64 : int64_t : omp_out = BN_LARGER(omp_out, omp_in)) initializer(omp_priv = omp_orig)
#pragma omp declare reduction(bn_min_i64 : int64_t : omp_out = BN_SMALLER(omp_out, omp_in)) initializer(omp_priv = omp_orig)
#pragma omp declare reduction(bn_max_i32 : int32_t : omp_out = BN_LARGER(omp_out, omp_in)) initializer(omp_priv = omp_orig)
#pragma omp declare reduction(bn_min_i32 : int32_t : omp_out = BN_SMALLER(omp_out, omp_in)) initializer(omp_priv = omp_orig)
#pragma omp declare reduction(bn_max_i16 : int16_t : omp_out = BN_LARGER(omp_out, omp_in)) initializer(omp_priv = omp_orig)
#pragma omp declare reduction(bn_min_i16 : int16_t : omp_out = BN_SMALLER(omp_out, omp_in)) initializer(omp_priv = omp_orig)
#pragma omp declare reduction(bn_max_i8 : int8_t : omp_out = BN_LARGER(omp_out, omp_in)) initializer(omp_priv = omp_orig)
#pragma omp declare reduction(bn_min_i8 : int8_t : omp_out = BN_SMALLER(omp_out, omp_in)) initializer(omp_priv = omp_orig)
#pragma omp declare reduction(bn_max_u8 : uint8_t : omp_out = BN_LARGER(omp_out, omp_in)) initializer(omp_priv = omp_orig)
#pragma omp declare reduction(bn_min_u8 : uint8_t : omp_out = BN_SMALLER(omp_out, omp_in)) initializer(omp_priv = omp_orig)
#endif

#endif
