/* Double precision is neither widened nor narrowed: strides alone differ. */
#include "bn_simd.h"

void bn_widen_f64(double *restrict dst, const void *src, int32_t dtype, int64_t stride,
                  int64_t n)
{
    const double *f64 = src;
    (void)dtype;
    for (int64_t i = 0; i < n; i++) dst[i] = f64[i * stride];
}

void bn_narrow_f64(void *dst, int32_t dtype, int64_t stride, const double *restrict src,
                   int64_t n)
{
    double *f64 = dst;
    (void)dtype;
    for (int64_t i = 0; i < n; i++) f64[i * stride] = src[i];
}
