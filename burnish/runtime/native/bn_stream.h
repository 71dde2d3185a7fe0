/* Products with few rows on one side: bound by reading the long operand once, so nothing is packed.
 *
 *   out[i*ld + j - j0] = sum over k of few[i*few_stride + k] * many(j, k),  i < few_len, j0 <= j < j1
 *
 * `many` must be contiguous along k (summed lane by lane) or along its rows (added up step by step of
 * k), in any dtype. */
#ifndef BN_STREAM_H
#define BN_STREAM_H

#include "bn_simd.h"

BN_INLINE int bn_can_stream(const bn_operand *many) { return many->k == 1 || many->row == 1; }

BN_HIDDEN void bn_stream_f32(const bn_operand *many, int64_t j0, int64_t j1, int64_t k,
                             const float *few, int64_t few_stride, int64_t few_len, float *out,
                             int64_t ld);
BN_HIDDEN void bn_stream_f64(const bn_operand *many, int64_t j0, int64_t j1, int64_t k,
                             const double *few, int64_t few_stride, int64_t few_len, double *out,
                             int64_t ld);

#endif
