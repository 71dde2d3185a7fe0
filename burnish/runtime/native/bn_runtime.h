/* Public ABI of burnish's C runtime: the library of contractions that generated kernels call.
 *
 * Everything here is plain data and plain C functions, so that generated C, ctypes and a cached
 * shared object agree on it without any headers beyond the two fixed-width ones.
 * Strides are counted in elements, never bytes. A stride may be zero (broadcast) or negative.
 */
#ifndef BN_RUNTIME_H
#define BN_RUNTIME_H

#include <stddef.h>
#include <stdint.h>

/* Raised whenever a struct or a function below changes its meaning. */
#define BN_RUNTIME_ABI 2

enum { BN_F32 = 0, BN_F64 = 1, BN_BF16 = 2, BN_F16 = 3, BN_BOOL = 4 };

/* ------------------------------------------------------------------ matrix multiplication
 *
 *   C[b0,b1,m,n] = sum over k of A[b0,b1,m,k] * B[b0,b1,k,n]
 *
 * A's element is at  a + b0*sa0 + b1*sa1 + m*sam + k*sak,
 * B's element is at  b + b0*sb0 + b1*sb1 + k*sbk + n*sbn.
 * Use nb0 = nb1 = 1 where there is no batch. Nothing is cached between calls: editing a weight in
 * place is seen by the next call.
 */
typedef struct {
    const void *a, *b;
    int64_t m, n, k;
    int64_t sam, sak, sbk, sbn;
    int64_t nb0, nb1;
    int64_t sa0, sa1, sb0, sb1;
    int32_t dtype_a, dtype_b;
    int32_t library; /* whether a BLAS is the faster one here, where there is one that can read the operands */
} bn_gemm_args;

/* The epilogue receives finished sums for rows [m0,m1) and columns [n0,n1) of batch (b0,b1):
 * element (m,n) is tile[(m-m0)*ld + (n-n0)]. Every element of C is delivered exactly once, tiles
 * come in any order and from several threads at once, and the tile is dead after the call returns.
 */
typedef void (*bn_epilogue_f32)(void *ctx, int64_t b0, int64_t b1, int64_t m0, int64_t m1,
                                int64_t n0, int64_t n1, const float *tile, int64_t ld);
typedef void (*bn_epilogue_f64)(void *ctx, int64_t b0, int64_t b1, int64_t m0, int64_t m1,
                                int64_t n0, int64_t n1, const double *tile, int64_t ld);

/* f32 sums; operands f32, bf16 or f16 in any mix. */
void bn_gemm_f32(const bn_gemm_args *args, bn_epilogue_f32 epilogue, void *ctx);
/* f64 sums; operands f64. */
void bn_gemm_f64(const bn_gemm_args *args, bn_epilogue_f64 epilogue, void *ctx);

/* A BLAS's sgemm_ and dgemm_, by address; NULL where there is none. Until then every product is our own. */
void bn_use_blas(void *sgemm, void *dgemm);

/* A ready-made epilogue for contractions with nothing fused: ctx is a bn_store. */
typedef struct {
    void *c;
    int64_t scm, scn, sc0, sc1;
    int32_t dtype; /* f32, bf16 or f16 for bn_store_f32; f64 for bn_store_f64 */
} bn_store;
void bn_store_f32(void *ctx, int64_t b0, int64_t b1, int64_t m0, int64_t m1, int64_t n0,
                  int64_t n1, const float *tile, int64_t ld);
void bn_store_f64(void *ctx, int64_t b0, int64_t b1, int64_t m0, int64_t m1, int64_t n0,
                  int64_t n1, const double *tile, int64_t ld);

/* ------------------------------------------------------------------ attention
 *
 *   out = softmax(scale * q @ k^T + mask) @ v       over q [B,Hq,Lq,D], k [B,Hkv,Lk,D],
 *                                                   v [B,Hkv,Lk,Dv], out [B,Hq,Lq,Dv]
 *
 * Strides are in the order [batch, head, length, dim]. Hq is a multiple of Hkv; query head h reads
 * key head h / (Hq / Hkv). The mask is optional (NULL): f32, bf16 or f16 is added to the scores,
 * BN_BOOL keeps where nonzero; its strides are over [B,Hq,Lq,Lk], zero where it is broadcast.
 * causal: query i sees keys j <= i (aligned at the top left, as torch does).
 * lse is optional (NULL): the natural log of the softmax's denominator, f32 over [B,Hq,Lq].
 */
typedef struct {
    const void *q, *k, *v, *mask;
    void *out;
    float *lse;
    int64_t batch, heads_q, heads_kv, len_q, len_k, dim, dim_v;
    int64_t sq[4], sk[4], sv[4], sm[4], so[4];
    int64_t slse[3];
    float scale;
    int32_t causal;
    int32_t dtype_q, dtype_k, dtype_v, dtype_mask, dtype_out;
} bn_attend_args;

void bn_attend(const bn_attend_args *args);

#endif
