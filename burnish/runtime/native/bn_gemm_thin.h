/* Products with few rows on one side (decoding, matrix times vector), for one element type: included
 * by bn_gemm.c. The short operand has "few" rows, the long one "many"; which of them is m depends on
 * the caller. */

typedef struct {
    bn_operand few, many;
    int64_t few_batch[2], many_batch[2];
    int64_t few_len, many_len, k, chunk;
    int64_t nb0, nb1;
    int many_is_n;
    TYPE(bn_epilogue) epilogue;
    void *ctx;
    int64_t tasks;
    bn_share *shares;
} TYPE(thin);

static void TYPE(thin_task)(const TYPE(thin) * thin, int64_t task, REAL *copy)
{
    enum { LD = BN_THIN_CHUNK_BYTES / sizeof(REAL) };
    REAL out[BN_FEW_MAX * LD] __attribute__((aligned(64)));
    const int64_t chunks = bn_ceil_div(thin->many_len, thin->chunk), batch = task / chunks;
    const int64_t b0 = batch / thin->nb1, b1 = batch % thin->nb1, k = thin->k;
    const int64_t j0 = task % chunks * thin->chunk, j1 = bn_min(thin->many_len, j0 + thin->chunk);
    const bn_operand few = bn_batch_of(&thin->few, thin->few_batch, b0, b1);
    const bn_operand many = bn_batch_of(&thin->many, thin->many_batch, b0, b1);
    const REAL *rows = bn_at(&few, 0, 0);
    int64_t stride = few.row;
    if (copy) { /* few is not contiguous REALs: cheap to make it so, being few */
        for (int64_t i = 0; i < thin->few_len; i++)
            TYPE(bn_widen)(copy + i * k, bn_at(&few, i, 0), few.dtype, few.k, k);
        rows = copy, stride = k;
    }
    TYPE(bn_stream)(&many, j0, j1, k, rows, stride, thin->few_len, out, LD);
    if (thin->many_is_n) {
        thin->epilogue(thin->ctx, b0, b1, 0, thin->few_len, j0, j1, out, LD);
        return;
    }
    REAL turned[BN_FEW_MAX * LD] __attribute__((aligned(64)));
    for (int64_t j = 0; j < j1 - j0; j++)
        for (int64_t i = 0; i < thin->few_len; i++) turned[j * thin->few_len + i] = out[i * LD + j];
    thin->epilogue(thin->ctx, b0, b1, j0, j1, 0, thin->few_len, turned, thin->few_len);
}

static void TYPE(thin_work)(void *shared, int me, int threads)
{
    TYPE(thin) *thin = shared;
    const int in_place = thin->few.k == 1 && thin->few.dtype == DTYPE;
    REAL *copy = in_place ? 0 : bn_scratch_take((size_t)(thin->few_len * thin->k) * sizeof(REAL));
    int64_t task;
    while ((task = bn_draw(thin->shares, thin->tasks, me, threads)) >= 0)
        TYPE(thin_task)(thin, task, copy);
    if (copy) bn_scratch_give(copy);
}

static void TYPE(run_thin)(TYPE(thin) * thin)
{
    const int64_t batches = thin->nb0 * thin->nb1;
    const double elements = (double)batches * (double)thin->many_len * (double)thin->k;
    const int threads = elements < BN_SERIAL_ELEMENTS ? 1 : bn_threads();
    const int64_t wanted = threads == 1 ? 1 : bn_ceil_div(4 * threads, batches);
    const int64_t chunk = bn_round_up(bn_ceil_div(thin->many_len, wanted), 16);
    thin->chunk = bn_min(chunk, BN_THIN_CHUNK_BYTES / (int64_t)sizeof(REAL));
    thin->tasks = batches * bn_ceil_div(thin->many_len, thin->chunk);
    if (threads == 1) { /* often tiny: not even scratch memory is taken */
        bn_share share = {0};
        thin->shares = &share;
        TYPE(thin_work)(thin, 0, 1);
        return;
    }
    const size_t shares = (size_t)threads * sizeof(bn_share);
    thin->shares = bn_scratch_take(shares);
    __builtin_memset(thin->shares, 0, shares);
    bn_run(TYPE(thin_work), thin, threads);
    bn_scratch_give(thin->shares);
}

BN_INLINE int TYPE(is_thin)(const bn_operand *many, int64_t few_len, int64_t many_len)
{
    return few_len <= BN_FEW_MAX && many_len >= few_len && bn_can_stream(many);
}
