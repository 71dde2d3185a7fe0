/* Scalar math for generated kernels, written so that the compiler can vectorise a loop around it:
 * no calls, no branches (both sides of a choice are computed), no tables except for the reduction of
 * huge angles. NaN, infinities, signed zeros, overflow and denormals behave as in libm.
 *
 * Largest errors found against double-precision libm are noted with each function, in units in the
 * last place (ulp) of float. The polynomials were fitted by iteratively reweighted least squares to
 * the functions themselves, their coefficients rounded to float one after the other.
 *
 * Never compile this with -ffast-math: the order of operations is what makes it accurate. */
#ifndef BN_MATH_H
#define BN_MATH_H

#include <stdint.h>

#define BN_MATH static inline __attribute__((always_inline, unused))

/* Fused where the machine has it, whatever -ffp-contract says; never a library call. */
#ifdef __FP_FAST_FMAF
#define BN_FMAF(x, y, z) __builtin_fmaf(x, y, z)
#else
#define BN_FMAF(x, y, z) ((x) * (y) + (z))
#endif
#ifdef __FP_FAST_FMA
#define BN_FMA(x, y, z) __builtin_fma(x, y, z)
#else
#define BN_FMA(x, y, z) ((x) * (y) + (z))
#endif

#define BN_INFINITY __builtin_inff()
#define BN_NAN __builtin_nanf("")

BN_MATH float bn_as_f32(uint32_t bits)
{
    union { uint32_t bits; float value; } cast = {bits};
    return cast.value;
}

BN_MATH uint32_t bn_as_u32(float value)
{
    union { float value; uint32_t bits; } cast = {value};
    return cast.bits;
}

BN_MATH double bn_as_f64(uint64_t bits)
{
    union { uint64_t bits; double value; } cast = {bits};
    return cast.value;
}

BN_MATH uint64_t bn_as_u64(double value)
{
    union { double value; uint64_t bits; } cast = {value};
    return cast.bits;
}

/* ------------------------------------------------------------------ bf16 and f16 */

BN_MATH float bn_bf16_to_f32(uint16_t x) { return bn_as_f32((uint32_t)x << 16); }

/* Round to nearest even; a NaN stays one though its payload may be cut off. */
BN_MATH uint16_t bn_f32_to_bf16(float x)
{
    const uint32_t bits = bn_as_u32(x), rounded = bits + 0x7fffu + ((bits >> 16) & 1u);
    return (uint16_t)((x != x ? bits | 0x400000u : rounded) >> 16);
}

BN_MATH float bn_f16_to_f32(uint16_t x)
{
    const uint32_t magnitude = x & 0x7fffu, sign = (uint32_t)(x & 0x8000u) << 16;
    const uint32_t normal = (magnitude << 13) + (112u << 23);
    const uint32_t special = normal + (112u << 23); /* Inf and NaN take the largest exponent */
    /* A denormal is a multiple of 2^-24, which is the spacing of floats next to 0.5. */
    const uint32_t denormal = bn_as_u32(bn_as_f32(0x3f000000u + magnitude) - 0.5f);
    const uint32_t finite = magnitude < 0x400u ? denormal : normal;
    return bn_as_f32((magnitude >= 0x7c00u ? special : finite) | sign);
}

BN_MATH uint16_t bn_f32_to_f16(float x)
{
    const uint32_t bits = bn_as_u32(x), magnitude = bits & 0x7fffffffu, sign = bits >> 16 & 0x8000u;
    /* Rounding up may carry into the exponent, to infinity in the end: that is right as it stands. */
    const uint32_t normal = (magnitude - (112u << 23) + 0xfffu + (magnitude >> 13 & 1u)) >> 13;
    const uint32_t denormal = bn_as_u32(bn_as_f32(magnitude) + 0.5f) - 0x3f000000u;
    const uint32_t finite = magnitude < 0x38800000u ? denormal : normal;
    const uint32_t special = magnitude > 0x7f800000u ? 0x7e00u | (magnitude >> 13 & 0x3ffu) : 0x7c00u;
    return (uint16_t)((magnitude >= 0x47800000u ? special : finite) | sign);
}

/* ------------------------------------------------------------------ choosing and rounding */

/* torch.maximum, torch.minimum: a NaN on either side wins. Written as "x > y || x != x", one of them inside the other is
 * a loop that GCC does not make vectors of. */
BN_MATH float bn_fmax(float x, float y) { return !(x <= y) && y == y ? x : y; }
BN_MATH float bn_fmin(float x, float y) { return !(x >= y) && y == y ? x : y; }
BN_MATH double bn_fmax_f64(double x, double y) { return !(x <= y) && y == y ? x : y; }
BN_MATH double bn_fmin_f64(double x, double y) { return !(x >= y) && y == y ? x : y; }

/* torch.round: halves to even. */
BN_MATH float bn_round_even(float x) { return __builtin_rintf(x); }
BN_MATH double bn_round_even_f64(double x) { return __builtin_rint(x); }

/* A float as an integer, toward zero. What C leaves undefined (NaN, and what does not fit) is what the machine's own
 * instruction gives, which is what eager's loops give: on x86 the smallest integer; elsewhere the nearest one, and zero
 * for NaN. Eager makes narrower integers from 32 bits, uint8 from 64 (c10::convert), and keeps the low bits. */
#if defined(__x86_64__) || defined(__i386__)
#define BN_DEFINE_TO_INTEGER(name, real, integer, limit, least, most)                              \
    BN_MATH integer name(real x) { return x >= -(limit) && x < (limit) ? (integer)x : least; }
#else
#define BN_DEFINE_TO_INTEGER(name, real, integer, limit, least, most)                              \
    BN_MATH integer name(real x)                                                                   \
    {                                                                                              \
        const integer outside = x > 0 ? most : x < 0 ? least : 0;                                  \
        return x >= -(limit) && x < (limit) ? (integer)x : outside;                                \
    }
#endif
BN_DEFINE_TO_INTEGER(bn_f32_to_i32, float, int32_t, 0x1p31f, INT32_MIN, INT32_MAX)
BN_DEFINE_TO_INTEGER(bn_f32_to_i64, float, int64_t, 0x1p63f, INT64_MIN, INT64_MAX)
BN_DEFINE_TO_INTEGER(bn_f64_to_i64, double, int64_t, 0x1p63, INT64_MIN, INT64_MAX)
/* Through 64 bits, without them: a float beyond 2^31 is a multiple of 256. */
BN_MATH uint8_t bn_f32_to_u8(float x)
{
#if defined(__x86_64__) || defined(__i386__)
    const int32_t outside = 0;
#else
    const int32_t outside = x >= 0x1p63f ? 255 : 0;
#endif
    return (uint8_t)(x >= -0x1p31f && x < 0x1p31f ? (int32_t)x : outside);
}
BN_MATH uint8_t bn_f64_to_u8(double x) { return (uint8_t)bn_f64_to_i64(x); }

#if defined(__x86_64__) || defined(__i386__)
BN_MATH int32_t bn_f64_to_i32(double x)
{
    return x > -0x1p31 - 1 && x < 0x1p31 ? (int32_t)x : INT32_MIN;
}
#else
/* Eager's vectors go through 64 bits here. (Its last few elements do not: that is in docs/limits.md.) */
BN_MATH int32_t bn_f64_to_i32(double x) { return (int32_t)bn_f64_to_i64(x); }
#endif

/* Python's // and % of indices and known divisors. A zero divisor gives zero and -2^63 // -1 wraps around: those two
 * would otherwise stop the process. */
BN_MATH int64_t bn_floordiv_i64(int64_t x, int64_t y)
{
    const int unsafe = y == 0 || y == -1;
    const int64_t divisor = unsafe ? 1 : y, quotient = x / divisor, rest = x % divisor;
    const int64_t floored = quotient - (rest != 0 && (rest < 0) != (divisor < 0));
    return y == 0 ? 0 : y == -1 ? (int64_t)(0 - (uint64_t)x) : floored;
}

BN_MATH int64_t bn_mod_i64(int64_t x, int64_t y)
{
    const int64_t divisor = y == 0 || y == -1 ? 1 : y, rest = x % divisor;
    return rest != 0 && (rest < 0) != (divisor < 0) ? rest + divisor : rest;
}

/* torch.remainder: the sign of the divisor. fmod is exact, and a library call. */
#define BN_DEFINE_REMAINDER(name, real, fmod)                                                      \
    BN_MATH real name(real x, real y)                                                              \
    {                                                                                              \
        const real rest = fmod(x, y);                                                              \
        return rest != 0 && (y < 0) != (rest < 0) ? rest + y : rest;                               \
    }
BN_DEFINE_REMAINDER(bn_remainder, float, __builtin_fmodf)
BN_DEFINE_REMAINDER(bn_remainder_f64, double, __builtin_fmod)

/* torch.div(rounding_mode="floor"), step by step as ATen's div_floor_floating. */
#define BN_DEFINE_FLOOR_DIVIDE(name, real, fmod, floor, copysign)                                  \
    BN_MATH real name(real x, real y)                                                              \
    {                                                                                              \
        const real rest = fmod(x, y);                                                              \
        real quotient = (x - rest) / y;                                                            \
        quotient -= rest != 0 && (y < 0) != (rest < 0) ? (real)1 : (real)0;                        \
        real floored = floor(quotient);                                                            \
        floored += quotient - floored > (real)0.5 ? (real)1 : (real)0;                             \
        floored = quotient == 0 ? copysign((real)0, x / y) : floored;                              \
        return y == 0 ? x / y : floored;                                                           \
    }
BN_DEFINE_FLOOR_DIVIDE(bn_floor_divide, float, __builtin_fmodf, __builtin_floorf, __builtin_copysignf)
BN_DEFINE_FLOOR_DIVIDE(bn_floor_divide_f64, double, __builtin_fmod, __builtin_floor, __builtin_copysign)

/* ------------------------------------------------------------------ exponentials
 *
 * x = n ln 2 + r with |r| <= ln 2 / 2. Adding 1.5 * 2^23 rounds to an integer and leaves it in the low
 * bits of the sum. ln 2 is cut so that n times its head is exact without fusing. */
#define BN_ROUNDER 0x1.8p23f
#define BN_LOG2_E 0x1.715476p+0f
#define BN_LN2_HEAD 0x1.62e4p-1f
#define BN_LN2_TAIL 0x1.7f7d1cp-20f

/* 2^n as a product of two factors, since 2^n itself may be too large or too small for a float while
 * the product with it is not. */
BN_MATH float bn_scale_by_power(float x, int32_t n)
{
    const int32_t half = n >> 1;
    const float first = bn_as_f32((uint32_t)(half + 127) << 23);
    const float second = bn_as_f32((uint32_t)(n - half + 127) << 23);
    return x * first * second;
}

/* (e^r - 1 - r) / r^2 */
BN_MATH float bn_exp_tail(float r)
{
    float p = 0x1.a242f4p-13f;
    p = BN_FMAF(p, r, 0x1.6d3c98p-10f);
    p = BN_FMAF(p, r, 0x1.111004p-7f);
    p = BN_FMAF(p, r, 0x1.5554f6p-5f);
    p = BN_FMAF(p, r, 0x1.555556p-3f);
    return BN_FMAF(p, r, 0.5f);
}

BN_MATH float bn_expf(float x)
{
    /* Beyond these the result is 0 or infinity anyway; NaN passes both tests. */
    x = x < -104.0f ? -104.0f : x;
    x = x > 89.0f ? 89.0f : x;
    const float shifted = BN_FMAF(x, BN_LOG2_E, BN_ROUNDER), n = shifted - BN_ROUNDER;
    const float r = BN_FMAF(n, -BN_LN2_TAIL, BN_FMAF(n, -BN_LN2_HEAD, x));
    const float p = BN_FMAF(r * r, bn_exp_tail(r), r) + 1.0f;
    return bn_scale_by_power(p, (int32_t)(bn_as_u32(shifted) - bn_as_u32(BN_ROUNDER)));
}

/* e^x for x <= 0 only, at two thirds of the price: what softmax needs. Results too small for a normal
 * float are zero. */
BN_MATH float bn_exp_nonpositive(float x)
{
    const float shifted = BN_FMAF(x, BN_LOG2_E, BN_ROUNDER), n = shifted - BN_ROUNDER;
    const float r = BN_FMAF(n, -BN_LN2_TAIL, BN_FMAF(n, -BN_LN2_HEAD, x));
    float p = 0x1.6a4d60p-10f;
    p = BN_FMAF(p, r, 0x1.12398ep-7f);
    p = BN_FMAF(p, r, 0x1.5558b0p-5f);
    p = BN_FMAF(p, r, 0x1.555492p-3f);
    p = BN_FMAF(p, r, 0x1.fffffcp-2f);
    p = BN_FMAF(r * r, p, r) + 1.0f;
    /* n is in the low bits of shifted: moved up, it is added to the exponent. */
    const float y = bn_as_f32(bn_as_u32(p) + (bn_as_u32(shifted) << 23));
    return x < -87.0f ? 0.0f : y;
}

BN_MATH float bn_expm1f(float x)
{
    const float given = x;
    x = x < -25.0f ? -25.0f : x;
    x = x > 89.0f ? 89.0f : x;
    const float shifted = BN_FMAF(x, BN_LOG2_E, BN_ROUNDER), n = shifted - BN_ROUNDER;
    const float r = BN_FMAF(n, -BN_LN2_TAIL, BN_FMAF(n, -BN_LN2_HEAD, x));
    const float q = BN_FMAF(r * r, bn_exp_tail(r), r);
    /* 2^n q + (2^n - 1), all halved, for 2^128 is not a float. */
    const int32_t exponent = (int32_t)(bn_as_u32(shifted) - bn_as_u32(BN_ROUNDER));
    const float power = bn_as_f32((uint32_t)(exponent + 126) << 23);
    const float y = 2.0f * BN_FMAF(q, power, power - 0.5f);
    return given == 0.0f ? given : y;
}

BN_MATH float bn_exp2f(float x)
{
    x = x < -151.0f ? -151.0f : x;
    x = x > 129.0f ? 129.0f : x;
    const float shifted = x + BN_ROUNDER, r = x - (shifted - BN_ROUNDER);
    float p = 0x1.ec6858p-17f;
    p = BN_FMAF(p, r, 0x1.440c8ap-13f);
    p = BN_FMAF(p, r, 0x1.5d9ccap-10f);
    p = BN_FMAF(p, r, 0x1.3b2a5ep-7f);
    p = BN_FMAF(p, r, 0x1.c6b074p-5f);
    p = BN_FMAF(p, r, 0x1.ebfbe0p-3f);
    p = BN_FMAF(p, r, 0x1.62e430p-1f);
    p = BN_FMAF(p, r, 1.0f);
    return bn_scale_by_power(p, (int32_t)(bn_as_u32(shifted) - bn_as_u32(BN_ROUNDER)));
}

BN_MATH float bn_sigmoidf(float x)
{
    /* Of e^-|x|, so that neither end overflows and small results keep their precision. */
    const float e = bn_expf(-__builtin_fabsf(x));
    return (x < 0.0f ? e : 1.0f) / (1.0f + e);
}

BN_MATH float bn_tanhf(float x)
{
    const float t = __builtin_fabsf(x), s = x * x;
    float p = -0x1.76922ap-8f;
    p = BN_FMAF(p, s, 0x1.52509ep-6f);
    p = BN_FMAF(p, s, -0x1.b84340p-5f);
    p = BN_FMAF(p, s, 0x1.110760p-3f);
    p = BN_FMAF(p, s, -0x1.555534p-2f);
    const float near_zero = BN_FMAF(t * s, p, t);
    const float beyond = 1.0f - 2.0f / (bn_expf(2.0f * t) + 1.0f);
    return __builtin_copysignf(t < 0.625f ? near_zero : beyond, x);
}

/* erf: an odd polynomial near zero, 1 - exp(-p(|x|)) further out. */
BN_MATH float bn_erff(float x)
{
    const float t = __builtin_fabsf(x), s = x * x;
    float p = 0x1.4f6760p-14f;
    p = BN_FMAF(p, s, -0x1.a60a2ep-11f);
    p = BN_FMAF(p, s, 0x1.544a1ap-8f);
    p = BN_FMAF(p, s, -0x1.b8011ap-6f);
    p = BN_FMAF(p, s, 0x1.ce2d64p-4f);
    p = BN_FMAF(p, s, -0x1.812740p-2f);
    p = BN_FMAF(p, s, 0x1.06eba8p-3f);
    const float near_zero = BN_FMAF(t, p, t);
    const float far = t > 3.95f ? 3.95f : t; /* erf rounds to one from 3.92 on; NaN stays */
    float q = 0x1.6416ecp-16f;
    q = BN_FMAF(q, far, -0x1.c91f02p-12f);
    q = BN_FMAF(q, far, 0x1.11d234p-8f);
    q = BN_FMAF(q, far, -0x1.9bdc82p-6f);
    q = BN_FMAF(q, far, 0x1.bba1e0p-4f);
    q = BN_FMAF(q, far, 0x1.4442a8p-1f);
    q = BN_FMAF(q, far, 0x1.2128bap+0f);
    q = BN_FMAF(q, far, -0x1.73e562p-13f);
    const float beyond = 1.0f - bn_expf(-q);
    return __builtin_copysignf(t < 0.92f ? near_zero : beyond, x);
}

/* ------------------------------------------------------------------ logarithms
 *
 * x = 2^n (1 + f) with 1 + f in [2/3, 4/3), then log(1 + f) = f + f^2 (-1/2 + f p(f)). */

typedef struct {
    float n, f;
} bn_log_parts;

/* Of a positive finite x; what comes of others is replaced by bn_log_ends. */
BN_MATH bn_log_parts bn_log_split(float x)
{
    const int denormal = x < 0x1p-126f;
    const uint32_t bits = bn_as_u32(denormal ? x * 0x1p23f : x);
    const int32_t n = (int32_t)(bits - 0x3f2aaaabu) >> 23;
    const bn_log_parts parts = {
        (float)(n - (denormal ? 23 : 0)),
        bn_as_f32(bits - ((uint32_t)n << 23)) - 1.0f,
    };
    return parts;
}

/* (log(1 + f) - f) */
BN_MATH float bn_log_tail(float f)
{
    float p = 0x1.e9d188p-4f;
    p = BN_FMAF(p, f, -0x1.06c2bap-3f);
    p = BN_FMAF(p, f, 0x1.b91efap-4f);
    p = BN_FMAF(p, f, -0x1.f3b02cp-4f);
    p = BN_FMAF(p, f, 0x1.24eb6ep-3f);
    p = BN_FMAF(p, f, -0x1.55978cp-3f);
    p = BN_FMAF(p, f, 0x1.9997eep-3f);
    p = BN_FMAF(p, f, -0x1.ffff18p-3f);
    p = BN_FMAF(p, f, 0x1.555556p-2f);
    p = BN_FMAF(p, f, -0.5f);
    return f * f * p;
}

/* The logarithm's value at the ends of its domain and outside, else y. */
BN_MATH float bn_log_ends(float x, float y)
{
    y = x == BN_INFINITY ? x : y;
    y = x == 0.0f ? -BN_INFINITY : y;
    return x < 0.0f ? BN_NAN : x != x ? x : y;
}

BN_MATH float bn_logf(float x)
{
    const bn_log_parts parts = bn_log_split(x);
    const float tail = BN_FMAF(parts.n, BN_LN2_TAIL, bn_log_tail(parts.f));
    return bn_log_ends(x, BN_FMAF(parts.n, BN_LN2_HEAD, parts.f + tail));
}

BN_MATH float bn_log2f(float x)
{
    const bn_log_parts parts = bn_log_split(x);
    const float tail = BN_FMAF(parts.f, 0x1.4ae0bep-26f, bn_log_tail(parts.f) * BN_LOG2_E);
    return bn_log_ends(x, parts.n + BN_FMAF(parts.f, BN_LOG2_E, tail));
}

BN_MATH float bn_log10f(float x)
{
    const float head = 0x1.bcb7b2p-2f, rest = -0x1.5b235ep-27f; /* 1 / ln 10 */
    const bn_log_parts parts = bn_log_split(x);
    float tail = BN_FMAF(parts.f, rest, bn_log_tail(parts.f) * head);
    tail = BN_FMAF(parts.n, 0x1.3509f8p-18f, tail); /* log10 2, head and tail */
    return bn_log_ends(x, BN_FMAF(parts.n, 0x1.344p-2f, BN_FMAF(parts.f, head, tail)));
}

BN_MATH float bn_log1pf(float x)
{
    /* log(1 + x), where what rounding took from 1 + x is put back into f. */
    const float one_more = 1.0f + x;
    const float lost = x < 1.0f ? x - (one_more - 1.0f) : 1.0f - (one_more - x);
    const uint32_t bits = bn_as_u32(one_more);
    const int32_t n = (int32_t)(bits - 0x3f2aaaabu) >> 23;
    const float down = bn_as_f32((uint32_t)(n < 127 ? 127 - n : 0) << 23); /* by then nothing is lost */
    const float f = BN_FMAF(lost, down, bn_as_f32(bits - ((uint32_t)n << 23)) - 1.0f);
    const float tail = BN_FMAF((float)n, BN_LN2_TAIL, bn_log_tail(f));
    const float y = BN_FMAF((float)n, BN_LN2_HEAD, f + tail);
    return x == 0.0f ? x : bn_log_ends(one_more, y);
}

/* ------------------------------------------------------------------ power
 *
 * 2^(y log2 |x|) in double: the exponent is known to 2^-40, so the result rounds to float correctly
 * but for rare ties. */
BN_MATH float bn_powf(float x, float y)
{
    const double base = __builtin_fabs((double)x), exponent = (double)y;
    /* base = 2^n m with m in [0.7, 1.4); log2 m = s p(s^2) with s = (m - 1) / (m + 1) */
    const uint64_t bits = bn_as_u64(base);
    const int64_t n = (int64_t)(bits - 0x3fe6a09e667f3bcdu) >> 52;
    const double m = bn_as_f64(bits - ((uint64_t)n << 52));
    const double s = (m - 1.0) / (m + 1.0), t = s * s;
    double p = 0x1.edb958270546ap-3;
    p = BN_FMA(p, t, 0x1.0be5a677088a8p-2);
    p = BN_FMA(p, t, 0x1.484e084ff1be6p-2);
    p = BN_FMA(p, t, 0x1.a6175d7847c39p-2);
    p = BN_FMA(p, t, 0x1.2776c50fbb2d6p-1);
    p = BN_FMA(p, t, 0x1.ec709dc3a1e4dp-1);
    p = BN_FMA(p, t, 0x1.71547652b82fcp+1);
    /* n fits 32 bits, which more machines can convert in a vector. */
    double log2_base = BN_FMA(s, p, (double)(int32_t)n);
    log2_base = base == 0.0 ? -__builtin_inf() : base == __builtin_inf() ? base : log2_base;

    double z = exponent * log2_base;
    z = z < -200.0 ? -200.0 : z;
    z = z > 200.0 ? 200.0 : z;
    const double shifted = z + 0x1.8p52, r = z - (shifted - 0x1.8p52);
    double q = 0x1.00f1bd62fe392p-16;
    q = BN_FMA(q, r, 0x1.445f1984558f0p-13);
    q = BN_FMA(q, r, 0x1.5d8722c6f081fp-10);
    q = BN_FMA(q, r, 0x1.3b29f0330185ap-7);
    q = BN_FMA(q, r, 0x1.c6b08df529b4bp-5);
    q = BN_FMA(q, r, 0x1.ebfbe07b81307p-3);
    q = BN_FMA(q, r, 0x1.62e42fef7b123p-1);
    q = BN_FMA(q, r, 1.0);
    const uint64_t power = (bn_as_u64(shifted) - bn_as_u64(0x1.8p52) + 1023u) << 52;
    const float magnitude = (float)(q * bn_as_f64(power));

    /* Negative bases: integral exponents only, odd ones keep the sign. */
    const float whole = __builtin_truncf(y), half = 0.5f * y;
    const int integral = whole == y, odd = integral && __builtin_truncf(half) != half;
    float result = x < 0.0f && !integral && x != -BN_INFINITY ? BN_NAN : magnitude;
    result = odd ? __builtin_copysignf(result, x) : result;
    result = x != x || y != y ? x + y : result;
    /* 1 to any power, anything to the power 0, and -1 to an infinite one. */
    const int is_one = x == 1.0f || y == 0.0f || (x == -1.0f && __builtin_fabsf(y) == BN_INFINITY);
    return is_one ? 1.0f : result;
}

/* ------------------------------------------------------------------ sine and cosine
 *
 * x in quarter turns, modulo 4, for every float: |x| = m 2^(8j) with m < 2^32, and column j holds
 * 2^(8j) 2/pi modulo 4 in three parts, of which the first two times m are exact in double. The
 * last column is that of Inf and NaN, whose result is NaN anyway. */
static const double bn_quarter_turns[3][14] __attribute__((unused)) = {
    {0x1.45f306cp-1, -0x1.067c91ap+0, 0x1.836e4e4p+0, -0x1.236377cp-1, -0x1.b1bbeacp+0,
     -0x1.bbead6p+0, 0x1.529fc2p-4, 0x1.29fc274p+0, 0x1.fc2757cp+0, 0x1.3abe8fp-3, -0x1.505c158p-1,
     -0x1.705659p-3, 0x1.f534ddcp+0, 0},
    {0x1.c9c88p-29, -0x1.1bbeap-28, 0x1.054ap-30, -0x1.5ac04p-29, -0x1.603d8p-28, -0x1.ec54p-31,
     0x1.d5f4p-30, 0x1.7d1f4p-28, 0x1.1f534p-28, 0x1.534dcp-28, -0x1.6447cp-29, -0x1.1f92p-31,
     0x1.b6c4p-33, 0},
    {0x1.529fc2757d1f5p-52, -0x1.ac07b1505c159p-49, 0x1.fc2757d1f534ep-48, -0x1.d8a82e0acb224p-48,
     -0x1.505c1596447e5p-49, -0x1.70565911f924fp-51, 0x1.f534ddc0db629p-48, 0x1.34ddc0db6295ap-48,
     0x1.bb81b6c52b328p-49, 0x1.c0db6295993c4p-48, -0x1.249d6a66c3bc7p-48, -0x1.3ad4cd8778df8p-49,
     0x1.2b32788720840p-49, 0},
};

typedef struct {
    float angle; /* in [-pi/4, pi/4] */
    uint32_t quarter;
} bn_turn;

BN_MATH bn_turn bn_reduce_angle(float x)
{
    const int32_t exponent = (int32_t)(bn_as_u32(x) >> 23 & 0xffu) - (127 + 24);
    /* The larger of that and zero. A conditional here, or a narrower index, would keep the compiler
     * from gathering the constants in a vectorised loop. */
    const int64_t j = (exponent & ~(exponent >> 31)) >> 3;
    const double m = (double)x * bn_as_f64((uint64_t)(1023 - 8 * j) << 52);
    const double rounder = 0x1.8p52;
    const double head = m * bn_quarter_turns[0][j], first = head + rounder;
    const double rest = (head - (first - rounder)) + m * bn_quarter_turns[1][j];
    const double second = rest + rounder;
    const double turns = (rest - (second - rounder)) + m * bn_quarter_turns[2][j];
    const bn_turn turn = {
        (float)(turns * 0x1.921fb54442d18p+0),
        (uint32_t)bn_as_u64(first) + (uint32_t)bn_as_u64(second),
    };
    return turn;
}

/* sin(angle + quarter * pi/2) */
BN_MATH float bn_sine_of_turn(float angle, uint32_t quarter)
{
    const float s = angle * angle;
    float p = 0x1.7ccf12p-19f;
    p = BN_FMAF(p, s, -0x1.a05ba8p-13f);
    p = BN_FMAF(p, s, 0x1.111176p-7f);
    p = BN_FMAF(p, s, -0x1.555556p-3f);
    const float sine = BN_FMAF(p, s * angle, angle);
    float q = 0x1.99e0ecp-16f;
    q = BN_FMAF(q, s, -0x1.6c0c1ap-10f);
    q = BN_FMAF(q, s, 0x1.55554ap-5f);
    q = BN_FMAF(q, s, -0.5f);
    const float cosine = BN_FMAF(q, s, 1.0f);
    return bn_as_f32(bn_as_u32(quarter & 1u ? cosine : sine) ^ (quarter & 2u) << 30);
}

BN_MATH float bn_sinf(float x)
{
    const bn_turn turn = bn_reduce_angle(x);
    return x == 0.0f ? x : bn_sine_of_turn(turn.angle, turn.quarter);
}

BN_MATH float bn_cosf(float x)
{
    const bn_turn turn = bn_reduce_angle(x);
    return bn_sine_of_turn(turn.angle, turn.quarter + 1u);
}

#endif
