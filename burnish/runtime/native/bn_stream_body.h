/* bn_stream.h's function for one element type. */

/* Few rows are taken this many at a time; more would spill accumulators. */
#if BN_VECTOR_BYTES == 32
#define FEW_AT_ONCE 2
#else
#define FEW_AT_ONCE 4
#endif
/* Long rows read side by side: enough streams to keep memory busy. */
#define MANY_AT_ONCE 4

typedef TYPE(bn_vector) TYPE(vec);

BN_INLINE TYPE(vec) TYPE(load)(const REAL *p) { return *(const TYPE(bn_unaligned) *)p; }
BN_INLINE void TYPE(store)(REAL *p, TYPE(vec) x) { *(TYPE(bn_unaligned) *)p = x; }

BN_INLINE REAL TYPE(sum_lanes)(TYPE(vec) x)
{
#define FLIP_STEP(s) x += BN_SHUFFLE(MASK_BITS, x, x, BN_PASTE_LIST(LANES, BN_LANE_FLIP, s));
#if LANES >= 16
    FLIP_STEP(8)
#endif
#if LANES >= 8
    FLIP_STEP(4)
#endif
#if LANES >= 4
    FLIP_STEP(2)
#endif
    FLIP_STEP(1)
    return x[0];
#undef FLIP_STEP
}

/* ------------------------------------------------------------------ long rows contiguous in k */

/* The operands of a block of dot products: out[i*ld + j] = few row i . many row j. */
typedef struct {
    const REAL *few;
    int64_t few_stride;
    const char *many;
    int64_t many_bytes; /* from row to row */
    int64_t k;
    REAL *out;
    int64_t ld;
} TYPE(dots);

/* The lanes added up, and the end of the rows that fills no vector. Not inlined: there are many
 * kinds of blocks, and they end alike. */
static __attribute__((noinline)) void TYPE(finish_dots)(const TYPE(dots) * x, int few_rows,
                                                        int many_rows, int32_t dtype,
                                                        TYPE(vec) acc[FEW_AT_ONCE][MANY_AT_ONCE])
{
    const int64_t whole = x->k / LANES * LANES;
    for (int j = 0; j < many_rows; j++) {
        REAL rest[LANES];
        TYPE(bn_widen)(rest, x->many + j * x->many_bytes + whole * bn_element_bytes(dtype), dtype, 1,
                       x->k - whole);
        for (int i = 0; i < few_rows; i++) {
            REAL sum = TYPE(sum_lanes)(acc[i][j]);
            const REAL *few = x->few + i * x->few_stride + whole;
            for (int64_t q = 0; q < x->k - whole; q++) sum += few[q] * rest[q];
            x->out[i * x->ld + j] = sum;
        }
    }
}

/* few_rows, many_rows and dtype are constants wherever this is inlined. */
BN_INLINE void TYPE(dot_block)(const int few_rows, const int many_rows, const int32_t dtype,
                               const REAL *few, int64_t few_stride, const char *many,
                               int64_t many_bytes, int64_t k, REAL *out, int64_t ld)
{
    const int64_t element = bn_element_bytes(dtype);
    TYPE(vec) acc[FEW_AT_ONCE][MANY_AT_ONCE];
    _Pragma("GCC unroll 4") for (int i = 0; i < few_rows; i++)
        _Pragma("GCC unroll 4") for (int j = 0; j < many_rows; j++) acc[i][j] = (TYPE(vec)){0};
    for (int64_t p = 0; p + LANES <= k; p += LANES) {
        TYPE(vec) y[MANY_AT_ONCE];
        _Pragma("GCC unroll 4") for (int j = 0; j < many_rows; j++)
            y[j] = TYPE(bn_load_as)(many + j * many_bytes + p * element, dtype);
        _Pragma("GCC unroll 4") for (int i = 0; i < few_rows; i++)
        {
            TYPE(vec) x = TYPE(load)(few + i * few_stride + p);
            _Pragma("GCC unroll 4") for (int j = 0; j < many_rows; j++) acc[i][j] += x * y[j];
        }
    }
    const TYPE(dots) block = {few, few_stride, many, many_bytes, k, out, ld};
    TYPE(finish_dots)(&block, few_rows, many_rows, dtype, acc);
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

/* ------------------------------------------------------------------ by dtype and order */

void TYPE(bn_stream)(const bn_operand *many, int64_t j0, int64_t j1, int64_t k, const REAL *few,
                     int64_t few_stride, int64_t few_len, REAL *out, int64_t ld)
{
    const char *from = bn_at(many, j0, 0);
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
