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

/* A position that must lie in [0, n). Reading row 0 instead of stray memory keeps the program alive until
 * the caller sees the flag and raises. */
BN_KFN int64_t bn_checked(int64_t i, int64_t n, int64_t *error)
{
    if (__builtin_expect((uint64_t)i >= (uint64_t)n, 0)) {
        *error = 1;
        return 0;
    }
    return i;
}

/* Float to integer as the hardware does it; NaN and out-of-range values are undefined in C, so they are named. */
BN_KFN int64_t bn_to_i64(double x)
{
    return (x >= -9223372036854775808.0 && x < 9223372036854775808.0) ? (int64_t)x : INT64_MIN;
}

BN_KFN int64_t bn_truncdiv_i64(int64_t a, int64_t b) { return b == 0 ? 0 : b == -1 ? -a : a / b; }
BN_KFN int64_t bn_rem_i64(int64_t a, int64_t b) { return b == 0 || b == -1 ? 0 : a % b; }
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
