/* Widening to f32 and narrowing back, by dtype and stride. The dtype and a stride of one are tested
 * outside the loops, so that each loop vectorises. */
#include "bn_simd.h"

void bn_widen_f32(float *restrict dst, const void *src, int32_t dtype, int64_t stride,
                  int64_t n)
{
    const float *f32 = src;
    const uint16_t *u16 = src;
    if (dtype == BN_F32) {
        if (stride == 1)
            for (int64_t i = 0; i < n; i++) dst[i] = f32[i];
        else
            for (int64_t i = 0; i < n; i++) dst[i] = f32[i * stride];
    } else if (dtype == BN_BF16) {
        if (stride == 1)
            for (int64_t i = 0; i < n; i++) dst[i] = bn_bf16_to_f32(u16[i]);
        else
            for (int64_t i = 0; i < n; i++) dst[i] = bn_bf16_to_f32(u16[i * stride]);
    } else {
        if (stride == 1)
            for (int64_t i = 0; i < n; i++) dst[i] = bn_f16_to_f32(u16[i]);
        else
            for (int64_t i = 0; i < n; i++) dst[i] = bn_f16_to_f32(u16[i * stride]);
    }
}

/* f32 into n elements of the given dtype and stride. */
void bn_narrow_f32(void *dst, int32_t dtype, int64_t stride, const float *restrict src,
                   int64_t n)
{
    float *f32 = dst;
    uint16_t *u16 = dst;
    if (dtype == BN_F32) {
        if (stride == 1)
            for (int64_t i = 0; i < n; i++) f32[i] = src[i];
        else
            for (int64_t i = 0; i < n; i++) f32[i * stride] = src[i];
    } else if (dtype == BN_BF16) {
        for (int64_t i = 0; i < n; i++) u16[i * stride] = bn_f32_to_bf16(src[i]);
    } else {
        for (int64_t i = 0; i < n; i++) u16[i * stride] = bn_f32_to_f16(src[i]);
    }
}
