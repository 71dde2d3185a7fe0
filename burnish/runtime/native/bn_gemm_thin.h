/* Products with few rows on one side (decoding, matrix times vector), for one element type: included
 * by bn_gemm.c once for f32 and once for f64, after bn_tile.h.
 *
 * Such products are bound by reading the long operand once, so nothing is packed. The short operand
 * has "few" rows, the long one "many"; which of them is m depends on the caller. */

/* Few rows are taken this many at a time; more would spill accumulators. */
#if BN_VECTOR_BYTES == 32
#define FEW_AT_ONCE 2
#else
#define FEW_AT_ONCE 4
#endif
/* Long rows read side by side: enough streams to keep memory busy. */
#define MANY_AT_ONCE 4

typedef struct {
    TYPE(operand) few, many;
    int64_t few_batch[2], many_batch[2];
    int64_t few_len, many_len, k, chunk;
    int64_t nb0, nb1;
    int many_is_n;
    TYPE(bn_epilogue) epilogue;
    void *ctx;
    bn_queue tasks;
} TYPE(thin);

/* ------------------------------------------------------------------ long rows contiguous in k */

/* out[i*ld + j] = few row i . many row j. few_rows, many_rows and dtype are constants. */
BN_INLINE void TYPE(dot_block)(const int few_rows, const int many_rows, const int32_t dtype,
                               const REAL *few, int64_t few_stride, const char *many,
                               int64_t many_bytes, int64_t k, REAL *out, int64_t ld)
{
    const int64_t element = bn_element_bytes(dtype);
    TYPE(vec) acc[FEW_AT_ONCE][MANY_AT_ONCE];
    _Pragma("GCC unroll 4") for (int i = 0; i < few_rows; i++)
        _Pragma("GCC unroll 4") for (int j = 0; j < many_rows; j++) acc[i][j] = (TYPE(vec)){0};
    int64_t p = 0;
    for (; p + LANES <= k; p += LANES) {
        TYPE(vec) y[MANY_AT_ONCE];
        _Pragma("GCC unroll 4") for (int j = 0; j < many_rows; j++)
            y[j] = TYPE(bn_load_as)(many + j * many_bytes + p * element, dtype);
        _Pragma("GCC unroll 4") for (int i = 0; i < few_rows; i++)
        {
            TYPE(vec) x = TYPE(load)(few + i * few_stride + p);
            _Pragma("GCC unroll 4") for (int j = 0; j < many_rows; j++) acc[i][j] += x * y[j];
        }
    }
    _Pragma("GCC unroll 4") for (int i = 0; i < few_rows; i++)
        _Pragma("GCC unroll 4") for (int j = 0; j < many_rows; j++)
            out[i * ld + j] = TYPE(sum_lanes)(acc[i][j]);
    if (p == k) return;
    for (int j = 0; j < many_rows; j++) {
        REAL tail[LANES];
        TYPE(bn_widen)(tail, many + j * many_bytes + p * element, dtype, 1, k - p);
        for (int i = 0; i < few_rows; i++)
            for (int64_t q = p; q < k; q++) out[i * ld + j] += few[i * few_stride + q] * tail[q - p];
    }
}

BN_INLINE void TYPE(dot_chunk_as)(const int32_t dtype, const REAL *few, int64_t few_stride,
                                  int64_t few_len, const char *many, int64_t many_bytes,
                                  int64_t many_len, int64_t k, REAL *out, int64_t ld)
{
    int64_t j = 0;
    for (; j + MANY_AT_ONCE <= many_len; j += MANY_AT_ONCE, many += MANY_AT_ONCE * many_bytes) {
        int64_t i = 0;
#if FEW_AT_ONCE == 4
        for (; i + 4 <= few_len; i += 4)
            TYPE(dot_block)(4, MANY_AT_ONCE, dtype, few + i * few_stride, few_stride, many, many_bytes,
                            k, out + i * ld + j, ld);
#endif
        for (; i + 2 <= few_len; i += 2)
            TYPE(dot_block)(2, MANY_AT_ONCE, dtype, few + i * few_stride, few_stride, many, many_bytes,
                            k, out + i * ld + j, ld);
        for (; i < few_len; i++)
            TYPE(dot_block)(1, MANY_AT_ONCE, dtype, few + i * few_stride, few_stride, many, many_bytes,
                            k, out + i * ld + j, ld);
    }
    for (; j < many_len; j++, many += many_bytes)
        for (int64_t i = 0; i < few_len; i++)
            TYPE(dot_block)(1, 1, dtype, few + i * few_stride, few_stride, many, many_bytes, k,
                            out + i * ld + j, ld);
}

/* ------------------------------------------------------------------ long side contiguous in rows */

/* out[0..width) += sum over steps of k of x[k] * many[k][0..width), for one few row. */
BN_INLINE void TYPE(axpy_block)(const int steps, const int32_t dtype, const REAL *x, const char *many,
                                int64_t k_bytes, int64_t width, REAL *out)
{
    const int64_t element = bn_element_bytes(dtype);
    int64_t j = 0;
    for (; j + LANES <= width; j += LANES) {
        TYPE(vec) sum = {0};
        _Pragma("GCC unroll 8") for (int p = 0; p < steps; p++)
            sum += x[p] * TYPE(bn_load_as)(many + p * k_bytes + j * element, dtype);
        TYPE(store)(out + j, TYPE(load)(out + j) + sum);
    }
    for (int p = 0; p < steps && j < width; p++) {
        REAL tail[LANES];
        TYPE(bn_widen)(tail, many + p * k_bytes + j * element, dtype, 1, width - j);
        for (int64_t q = j; q < width; q++) out[q] += x[p] * tail[q - j];
    }
}

BN_INLINE void TYPE(axpy_chunk_as)(const int32_t dtype, const REAL *few, int64_t few_stride,
                                   int64_t few_len, const char *many, int64_t k_bytes,
                                   int64_t many_len, int64_t k, REAL *out, int64_t ld)
{
    for (int64_t i = 0; i < few_len; i++)
        for (int64_t j = 0; j < many_len; j++) out[i * ld + j] = 0;
    int64_t p = 0;
    /* Eight rows of `many` at a time stay in the first-level cache for all few rows. */
    for (; p + 8 <= k; p += 8, many += 8 * k_bytes)
        for (int64_t i = 0; i < few_len; i++)
            TYPE(axpy_block)(8, dtype, few + i * few_stride + p, many, k_bytes, many_len, out + i * ld);
    for (; p < k; p++, many += k_bytes)
        for (int64_t i = 0; i < few_len; i++)
            TYPE(axpy_block)(1, dtype, few + i * few_stride + p, many, k_bytes, many_len, out + i * ld);
}

/* ------------------------------------------------------------------ chunks of the long side */

static void TYPE(thin_chunk)(const TYPE(operand) * many, const REAL *few, int64_t few_stride,
                             int64_t few_len, int64_t j0, int64_t j1, int64_t k, REAL *out, int64_t ld)
{
    const char *from = TYPE(at)(many, j0, 0);
    const int by_k = many->k == 1;
    const int64_t step = (by_k ? many->row : many->k) * many->bytes;
#define IN_ORDER(dtype)                                                                            \
    if (by_k) TYPE(dot_chunk_as)(dtype, few, few_stride, few_len, from, step, j1 - j0, k, out, ld);  \
    else TYPE(axpy_chunk_as)(dtype, few, few_stride, few_len, from, step, j1 - j0, k, out, ld);
#if DTYPE_HAS_NARROW
    if (many->dtype == BN_BF16) {
        IN_ORDER(BN_BF16)
        return;
    }
    if (many->dtype == BN_F16) {
        IN_ORDER(BN_F16)
        return;
    }
#endif
    IN_ORDER(DTYPE)
#undef IN_ORDER
}

static void TYPE(thin_task)(const TYPE(thin) * thin, int64_t task, REAL *copy)
{
    enum { LD = BN_THIN_CHUNK };
    REAL out[BN_FEW_MAX * LD] __attribute__((aligned(64)));
    const int64_t chunks = bn_ceil_div(thin->many_len, thin->chunk), batch = task / chunks;
    const int64_t b0 = batch / thin->nb1, b1 = batch % thin->nb1, k = thin->k;
    const int64_t j0 = task % chunks * thin->chunk, j1 = bn_min(thin->many_len, j0 + thin->chunk);
    const TYPE(operand) few = TYPE(batch_of)(&thin->few, thin->few_batch, b0, b1);
    const TYPE(operand) many = TYPE(batch_of)(&thin->many, thin->many_batch, b0, b1);
    const REAL *rows = TYPE(at)(&few, 0, 0);
    int64_t stride = few.row;
    if (copy) { /* few is not contiguous REALs: cheap to make it so, being few */
        for (int64_t i = 0; i < thin->few_len; i++)
            TYPE(bn_widen)(copy + i * k, TYPE(at)(&few, i, 0), few.dtype, few.k, k);
        rows = copy, stride = k;
    }
    TYPE(thin_chunk)(&many, rows, stride, thin->few_len, j0, j1, k, out, LD);
    if (thin->many_is_n) {
        thin->epilogue(thin->ctx, b0, b1, 0, thin->few_len, j0, j1, out, LD);
        return;
    }
    REAL turned[BN_FEW_MAX * LD] __attribute__((aligned(64)));
    for (int64_t j = 0; j < j1 - j0; j++)
        for (int64_t i = 0; i < thin->few_len; i++) turned[j * thin->few_len + i] = out[i * LD + j];
    thin->epilogue(thin->ctx, b0, b1, j0, j1, 0, thin->few_len, turned, thin->few_len);
}

static void TYPE(thin_work)(TYPE(thin) * thin)
{
    const int64_t tasks = thin->nb0 * thin->nb1 * bn_ceil_div(thin->many_len, thin->chunk);
    const int in_place = thin->few.k == 1 && thin->few.dtype == DTYPE;
    REAL *copy = in_place ? 0 : bn_scratch_take((size_t)(thin->few_len * thin->k) * sizeof(REAL));
    for (int64_t t = bn_queue_draw(&thin->tasks); t < tasks; t = bn_queue_draw(&thin->tasks))
        TYPE(thin_task)(thin, t, copy);
    if (copy) bn_scratch_give(copy);
}

static void TYPE(run_thin)(TYPE(thin) * thin)
{
    const double elements = (double)(thin->nb0 * thin->nb1) * (double)thin->many_len * (double)thin->k;
    const int threads = elements < BN_SERIAL_ELEMENTS ? 1 : bn_threads();
    const int64_t wanted = threads == 1 ? 1 : bn_ceil_div(4 * threads, thin->nb0 * thin->nb1);
    const int64_t chunk = TYPE(round_up)(bn_ceil_div(thin->many_len, wanted), 16);
    thin->chunk = bn_min(chunk, BN_THIN_CHUNK);
#ifdef _OPENMP
    if (threads > 1) {
#pragma omp parallel
        TYPE(thin_work)(thin);
        return;
    }
#endif
    TYPE(thin_work)(thin);
}

BN_INLINE int TYPE(is_thin)(const TYPE(operand) * many, int64_t few_len, int64_t many_len)
{
    return few_len <= BN_FEW_MAX && many_len >= few_len && (many->k == 1 || many->row == 1);
}
