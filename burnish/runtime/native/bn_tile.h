/* The innermost parts of a contraction: the register tile, and packing for it.
 *
 * A contraction has two roles here, which either matrix may play:
 *   the vector operand    packed into panels of PANEL rows, k-major: panel[k*PANEL + row]
 *   the broadcast operand read one scalar at a time, each multiplied into whole vectors
 * A broadcast operand contiguous in k is read where it lies. That is why weights need no packing: the
 * (few) activations become the vector operand, and each weight is loaded once, straight from the
 * tensor. */
#ifndef BN_TILE_H
#define BN_TILE_H

#include "bn_simd.h"

#define BN_PANEL_F32 (BN_LANES_F32 * BN_TILE_VECS)
#define BN_PANEL_F64 (BN_LANES_F64 * BN_TILE_VECS)

/* c[i*ldc + j] (+)= sum over k of s(i,k) * panel[k*PANEL + j],  i < rows, j < vecs*LANES,
 *
 * where s(i,k) is s[k*stride + i] if by_column, else s[i*stride + k], and rows <= TILE_ROWS. `first`
 * says that c holds nothing yet. Meanwhile `fetch`, what this thread will read next, is brought into
 * the cache a few lines at a time.
 *
 * bn_pack_transposed: dst[p*width + i] = src[i*row_stride + p] for p < k, i < LANES. Rows from `rows`
 * on repeat the last one, which is readable; nobody looks at what comes of them.
 * bn_pack_rows: panel[p*width + i] = element (row0 + i, k0 + p) of x, i < min(rows, width), p < depth.
 * bn_pack_columns: the same for rows contiguous in memory and as many panels as hold `rows`; panel j
 * begins at panels + j*panel_stride. */
#define BN_DECLARE_TILE(real, type)                                                                \
    BN_HIDDEN void bn_tile_##type(int rows, int by_column, const real *s, int64_t stride,          \
                                  const real *panel, int64_t k, int vecs, real *c, int64_t ldc,    \
                                  int first, bn_fetch *fetch);                                     \
    BN_HIDDEN void bn_pack_transposed_##type(const real *src, int64_t row_stride, int64_t rows,    \
                                             int64_t k, int64_t width, real *dst);                 \
    BN_HIDDEN void bn_pack_rows_##type(const bn_operand *x, int64_t row0, int64_t rows,            \
                                       int64_t k0, int64_t depth, int width, real *panel);         \
    BN_HIDDEN void bn_pack_columns_##type(const bn_operand *x, int64_t row0, int64_t rows,         \
                                          int64_t k0, int64_t depth, int width, real *panels,      \
                                          int64_t panel_stride);
BN_DECLARE_TILE(float, f32)
BN_DECLARE_TILE(double, f64)

#endif
