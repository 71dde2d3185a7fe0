/* Products by the BLAS that torch brings, for one element type: included by bn_gemm.c. A block of rows at a time goes
 * through the epilogue while it is still in the cache. */

/* Rows of k elements one after the other, or columns of `rows` elements: what BLAS can read. */
BN_INLINE int TYPE(blas_reads)(const bn_operand *x, int64_t rows, int64_t k)
{
    if (x->dtype != DTYPE) return 0;
    return x->k == 1 ? x->row >= k && x->row <= INT32_MAX : x->row == 1 && x->k >= rows && x->k <= INT32_MAX;
}

BN_INLINE int TYPE(blas_multiplies)(const bn_gemm_args *args, const bn_operand *a, const bn_operand *b)
{
    return args->library && TYPE(bn_blas) && args->m <= INT32_MAX && args->n <= INT32_MAX &&
           args->k <= INT32_MAX && TYPE(blas_reads)(a, args->m, args->k) &&
           TYPE(blas_reads)(b, args->n, args->k);
}

typedef struct {
    int64_t b0, b1, m0, m1, n;
    const REAL *sums;
    TYPE(bn_epilogue) epilogue;
    void *ctx;
} TYPE(blas_block);

static void TYPE(deliver_block)(void *shared, int me, int threads)
{
    const TYPE(blas_block) *block = shared;
    const int64_t chunks = bn_ceil_div(block->m1 - block->m0, BN_BLAS_CHUNK);
    for (int64_t c = chunks * me / threads; c < chunks * (me + 1) / threads; c++) {
        const int64_t m = block->m0 + c * BN_BLAS_CHUNK, end = bn_min(block->m1, m + BN_BLAS_CHUNK);
        block->epilogue(block->ctx, block->b0, block->b1, m, end, 0, block->n,
                        block->sums + (m - block->m0) * block->n, block->n);
    }
}

/* BLAS counts along columns, so it is asked for the transpose: C' = B' A'. */
static void TYPE(multiply_by_blas)(const bn_gemm_args *args, const bn_operand *a, const bn_operand *b,
                                   TYPE(bn_epilogue) epilogue, void *ctx)
{
    const REAL one = 1, zero = 0;
    const int64_t fitting = BN_BLAS_BYTES / (args->n * (int64_t)sizeof(REAL));
    const int64_t rows = bn_min(args->m, bn_max(BN_BLAS_ROWS, fitting / BN_BLAS_CHUNK * BN_BLAS_CHUNK));
    const int64_t ld_a = a->k == 1 ? a->row : a->k, ld_b = b->k == 1 ? b->row : b->k;
    const int threads = bn_threads();
    REAL *sums = bn_scratch_take((size_t)(rows * args->n) * sizeof(REAL));
    for (int64_t batch = 0; batch < args->nb0 * args->nb1; batch++) {
        const int64_t b0 = batch / args->nb1, b1 = batch % args->nb1;
        const int64_t batch_a[2] = {args->sa0, args->sa1}, batch_b[2] = {args->sb0, args->sb1};
        const bn_operand left = bn_batch_of(a, batch_a, b0, b1), right = bn_batch_of(b, batch_b, b0, b1);
        for (int64_t m0 = 0; m0 < args->m; m0 += rows) {
            TYPE(blas_block) block = {
                .b0 = b0, .b1 = b1, .m0 = m0, .m1 = bn_min(args->m, m0 + rows), .n = args->n,
                .sums = sums, .epilogue = epilogue, .ctx = ctx,
            };
            const int64_t m = block.m1 - m0;
            TYPE(bn_blas)(b->k == 1 ? "T" : "N", a->k == 1 ? "N" : "T", &args->n, &m, &args->k, &one,
                          bn_at(&right, 0, 0), &ld_b, bn_at(&left, m0, 0), &ld_a, &zero, sums, &args->n);
            bn_run(TYPE(deliver_block), &block, threads);
        }
    }
    bn_scratch_give(sums);
}
