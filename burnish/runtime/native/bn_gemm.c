/* C = A B for any strides, handing finished tiles to a generated epilogue. See bn_runtime.h.
 *
 * Files named *_f64.c are a library of their own, built when a program has products in double precision. */
#include "bn_gemm.h"

bn_blas bn_blas_f32, bn_blas_f64;

void bn_use_blas(void *sgemm, void *dgemm)
{
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    bn_blas_f32 = (bn_blas)sgemm;
    bn_blas_f64 = (bn_blas)dgemm;
#else
    (void)sgemm, (void)dgemm;
#endif
}

#include "bn_real_f32.h"
#include "bn_gemm_packed.h"
#include "bn_gemm_thin.h"
#include "bn_gemm_blas.h"
#include "bn_gemm_entry.h"
