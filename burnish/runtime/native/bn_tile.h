/* The innermost pieces of a contraction, for one element type: the register tile, packing and
 * transposes. Included with REAL, LANES and TYPE(name) defined; see bn_gemm.c and bn_attend.c.
 *
 * A contraction has two roles here, which either matrix may play:
 *   the vector operand    packed into panels of PANEL rows, k-major: panel[k][row]
 *   the broadcast operand read one scalar at a time, each multiplied into whole vectors
 * A k-contiguous broadcast operand is read where it lies. That is why weights need no packing: the
 * (few) activations become the vector operand, and each weight is loaded once, straight from the
 * tensor. */

#define PANEL (LANES * BN_TILE_VECS)
#define TILE_ROWS BN_TILE_ROWS
/* Rows reached from one pointer register: x86 addresses have room for +0, +stride and +2*stride. */
#define ROWS_PER_POINTER 3

typedef TYPE(bn_vector) TYPE(vec);

BN_INLINE TYPE(vec) TYPE(load)(const REAL *p) { return *(const TYPE(bn_unaligned) *)p; }
BN_INLINE void TYPE(store)(REAL *p, TYPE(vec) x) { *(TYPE(bn_unaligned) *)p = x; }

#define BN_PASTE_LIST(lanes, f, s) BN_PASTE_LIST_(lanes, f, s)
#define BN_PASTE_LIST_(lanes, f, s) BN_LIST_##lanes(f, s)

/* LANES rows of LANES elements, transposed in registers. */
#define TRANSPOSE_STEP(s)                                                                          \
    _Pragma("GCC unroll 16") for (int i = 0; i < LANES; i++) if (!(i & (s)))                       \
    {                                                                                              \
        TYPE(vec) x = r[i], y = r[i + (s)];                                                        \
        r[i] = BN_SHUFFLE(MASK_BITS, x, y, BN_PASTE_LIST(LANES, BN_LANE_LOW, s));                  \
        r[i + (s)] = BN_SHUFFLE(MASK_BITS, x, y, BN_PASTE_LIST(LANES, BN_LANE_HIGH, s));           \
    }
BN_INLINE void TYPE(transpose)(TYPE(vec) r[LANES])
{
#if LANES >= 16
    TRANSPOSE_STEP(8)
#endif
#if LANES >= 8
    TRANSPOSE_STEP(4)
#endif
#if LANES >= 4
    TRANSPOSE_STEP(2)
#endif
    TRANSPOSE_STEP(1)
}

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

/* ------------------------------------------------------------------ the register tile
 *
 * c[i][0..vecs*LANES) (+)= sum over k of s(i,k) * panel[k][0..vecs*LANES),  i < rows,
 *
 * where s(i,k) is s[k*stride + i] if by_column, else s[i*stride + k]. rows, vecs and by_column are
 * constants at every call, so that the accumulators stay in registers.
 *
 * Meanwhile `ahead`, what this thread will read soon, is fetched: that many rows with the same
 * stride, or that many times each step of k by column. The hardware prefetcher does not follow so
 * many short rows. */
typedef struct {
    const REAL *from;
    int64_t count;
} TYPE(ahead);

BN_INLINE void TYPE(tile_step)(const int rows, const int vecs, const int by_column,
                               const REAL *const group[], int64_t stride, const int u,
                               const REAL *panel, TYPE(vec) acc[TILE_ROWS][BN_TILE_VECS])
{
    TYPE(vec) x[BN_TILE_VECS];
    _Pragma("GCC unroll 4") for (int j = 0; j < vecs; j++)
        x[j] = TYPE(load)(panel + u * PANEL + j * LANES);
#ifdef BN_MULTIPLY_BY_LANE
    if (by_column && rows == TILE_ROWS) {
        _Pragma("GCC unroll 16") for (int i0 = 0; i0 < rows; i0 += LANES)
        {
            TYPE(vec) w = TYPE(load)(group[0] + u * stride + i0);
            _Pragma("GCC unroll 16") for (int i = 0; i < LANES; i++)
                _Pragma("GCC unroll 4") for (int j = 0; j < vecs; j++)
                    acc[i0 + i][j] += w[i] * x[j];
        }
        return;
    }
#endif
    _Pragma("GCC unroll 16") for (int i = 0; i < rows; i++)
    {
        REAL w = by_column ? group[0][u * stride + i]
                           : group[i / ROWS_PER_POINTER][i % ROWS_PER_POINTER * stride + u];
        _Pragma("GCC unroll 4") for (int j = 0; j < vecs; j++) acc[i][j] += w * x[j];
    }
}

BN_INLINE void TYPE(fetch)(TYPE(ahead) ahead, const int by_column, int64_t stride, int64_t k,
                           const int steps)
{
    if (by_column) {
        if (ahead.count)
            for (int u = 0; u < steps; u++) __builtin_prefetch(ahead.from + (k + u) * stride);
    } else {
        const REAL *line = ahead.from + k;
        for (int64_t i = 0; i < ahead.count; i++, line += stride) __builtin_prefetch(line);
    }
}

BN_INLINE void TYPE(tile)(const int rows, const int vecs, const int by_column, const REAL *s,
                          int64_t stride, const REAL *panel, int64_t k, REAL *c, int64_t ldc,
                          int first, TYPE(ahead) ahead)
{
    enum { LINE = 64 / sizeof(REAL), STEPS = 2, MAX_GROUPS = TILE_ROWS / ROWS_PER_POINTER + 1 };
    const int64_t s_step = by_column ? stride : 1;
    const int groups = by_column ? 1 : (rows + ROWS_PER_POINTER - 1) / ROWS_PER_POINTER;
    const REAL *group[MAX_GROUPS];
    _Pragma("GCC unroll 16") for (int g = 0; g < groups; g++)
        group[g] = s + g * ROWS_PER_POINTER * stride;
    TYPE(vec) acc[TILE_ROWS][BN_TILE_VECS];
    _Pragma("GCC unroll 16") for (int i = 0; i < rows; i++)
        _Pragma("GCC unroll 4") for (int j = 0; j < vecs; j++) acc[i][j] = (TYPE(vec)){0};

    int64_t p = 0;
    for (; p + LINE <= k; p += LINE) {
        TYPE(fetch)(ahead, by_column, stride, p, LINE);
        for (int q = 0; q < LINE; q += STEPS) {
            /* Without this the compiler keeps one address per row and step, and spills them. */
            _Pragma("GCC unroll 16") for (int g = 0; g < groups; g++)
                __asm__("" : "+r"(group[g]));
            _Pragma("GCC unroll 4") for (int u = 0; u < STEPS; u++)
                TYPE(tile_step)(rows, vecs, by_column, group, stride, u, panel, acc);
            _Pragma("GCC unroll 16") for (int g = 0; g < groups; g++) group[g] += STEPS * s_step;
            panel += STEPS * PANEL;
        }
    }
    for (; p < k; p++) {
        TYPE(tile_step)(rows, vecs, by_column, group, stride, 0, panel, acc);
        _Pragma("GCC unroll 16") for (int g = 0; g < groups; g++) group[g] += s_step;
        panel += PANEL;
    }
    /* Earlier slabs are added at the end, when nothing waits for those loads. */
    if (!first)
        _Pragma("GCC unroll 16") for (int i = 0; i < rows; i++)
            _Pragma("GCC unroll 4") for (int j = 0; j < vecs; j++)
                acc[i][j] += TYPE(load)(c + i * ldc + j * LANES);
    _Pragma("GCC unroll 16") for (int i = 0; i < rows; i++)
        _Pragma("GCC unroll 4") for (int j = 0; j < vecs; j++)
            TYPE(store)(c + i * ldc + j * LANES, acc[i][j]);
}

/* BN_TILE_VECS vectors wide, or fewer at the right edge of the last panel. */
#define TILE_OF_WIDTH(rows, by_column)                                                             \
    do {                                                                                           \
        if (vecs == BN_TILE_VECS)                                                                  \
            TYPE(tile)(rows, BN_TILE_VECS, by_column, s, stride, panel, k, c, ldc, first, ahead);  \
        else if (BN_TILE_VECS == 3 && vecs == 2)                                                   \
            TYPE(tile)(rows, 2, by_column, s, stride, panel, k, c, ldc, first, ahead);             \
        else                                                                                       \
            TYPE(tile)(rows, 1, by_column, s, stride, panel, k, c, ldc, first, ahead);             \
    } while (0)

static __attribute__((noinline)) void TYPE(tile_by_column)(const REAL *s, int64_t stride,
                                                           const REAL *panel, int64_t k, int vecs,
                                                           REAL *c, int64_t ldc, int first,
                                                           TYPE(ahead) ahead)
{
    TILE_OF_WIDTH(TILE_ROWS, 1);
}

static __attribute__((noinline)) void TYPE(tile_by_row)(const REAL *s, int64_t stride,
                                                        const REAL *panel, int64_t k, int vecs,
                                                        REAL *c, int64_t ldc, int first,
                                                        TYPE(ahead) ahead)
{
    TILE_OF_WIDTH(TILE_ROWS, 0);
}

/* The last rows of a matrix, fewer than TILE_ROWS, by row: pieces of 4, 2 and 1 compute nothing in
 * vain. (By column a last block is packed into room for a whole one; what its spare rows hold does
 * not matter.) */
static __attribute__((noinline)) void TYPE(tile_edge)(int rows, const REAL *s, int64_t stride,
                                                      const REAL *panel, int64_t k, int vecs,
                                                      REAL *c, int64_t ldc, int first)
{
    const TYPE(ahead) ahead = {0, 0};
    while (rows > 0) {
        int piece = rows >= 4 ? 4 : rows >= 2 ? 2 : 1;
        if (piece == 4) TILE_OF_WIDTH(4, 0);
        else if (piece == 2) TILE_OF_WIDTH(2, 0);
        else TILE_OF_WIDTH(1, 0);
        rows -= piece;
        s += piece * stride;
        c += piece * ldc;
    }
}

/* ------------------------------------------------------------------ packing */

/* One matrix of a contraction: element (row, k) at base + (row*row + k*k) elements. */
typedef struct {
    const char *base;
    int64_t row, k;
    int32_t dtype, bytes;
} TYPE(operand);

BN_INLINE const void *TYPE(at)(const TYPE(operand) * x, int64_t row, int64_t k)
{
    return x->base + (row * x->row + k * x->k) * x->bytes;
}

/* dst[p*width + i] = src[i*row_stride + p] for i < LANES, p < k: rows become columns. Rows beyond
 * the matrix repeat the last one, which is readable; their sums are never delivered. */
static __attribute__((noinline)) void TYPE(pack_transposed)(const REAL *src, int64_t row_stride,
                                                            int64_t rows, int64_t k, int64_t width,
                                                            REAL *dst)
{
    const REAL *row[LANES];
    for (int i = 0; i < LANES; i++) row[i] = src + bn_min(i, rows - 1) * row_stride;
    int64_t p = 0;
    for (; p + LANES <= k; p += LANES) {
        TYPE(vec) r[LANES];
        _Pragma("GCC unroll 16") for (int i = 0; i < LANES; i++) r[i] = TYPE(load)(row[i] + p);
        TYPE(transpose)(r);
        _Pragma("GCC unroll 16") for (int i = 0; i < LANES; i++)
            TYPE(store)(dst + (p + i) * width, r[i]);
    }
    for (; p < k; p++)
        for (int i = 0; i < LANES; i++) dst[p * width + i] = row[i][p];
}

/* panel[p*width + i] = element (row0 + i, k0 + p) of x, for i < min(rows, width) and p < depth,
 * where rows lie apart in memory. */
static void TYPE(pack_rows)(const TYPE(operand) * x, int64_t row0, int64_t rows, int64_t k0,
                            int64_t depth, const int width, REAL *panel)
{
    enum { STAGE = 64 };
    REAL stage[LANES * STAGE];
    rows = bn_min(rows, width);
    for (int64_t i0 = 0; i0 < rows; i0 += LANES) {
        const int64_t lanes = bn_min(LANES, rows - i0);
        if (x->dtype == DTYPE && x->k == 1) {
            TYPE(pack_transposed)(TYPE(at)(x, row0 + i0, k0), x->row, lanes, depth, width, panel + i0);
            continue;
        }
        for (int64_t p = 0; p < depth; p += STAGE) {
            const int64_t part = bn_min(STAGE, depth - p);
            for (int64_t i = 0; i < lanes; i++)
                TYPE(bn_widen)(stage + i * STAGE, TYPE(at)(x, row0 + i0 + i, k0 + p), x->dtype, x->k,
                               part);
            TYPE(pack_transposed)(stage, STAGE, lanes, part, width, panel + p * width + i0);
        }
    }
}

/* The same where rows are contiguous, for as many panels as hold `rows`: panel j begins at
 * panels + j*panel_stride. Memory is read in its own order, along the rows, since each step of k may
 * lie in another page. */
BN_INLINE void TYPE(pack_columns)(const TYPE(operand) * x, int64_t row0, int64_t rows, int64_t k0,
                                  int64_t depth, const int width, REAL *panels, int64_t panel_stride)
{
    enum { AHEAD = 8 };
    for (int64_t p = 0; p < depth; p++) {
        const char *src = TYPE(at)(x, row0, k0 + p);
        const char *ahead = p + AHEAD < depth ? TYPE(at)(x, row0, k0 + p + AHEAD) : src;
        for (int64_t byte = 0; byte < rows * x->bytes; byte += 64) __builtin_prefetch(ahead + byte);
        REAL *dst = panels + p * width;
        for (int64_t i = 0; i < rows; i += width, src += width * x->bytes, dst += panel_stride) {
            if (x->dtype == DTYPE && rows - i >= width)
                for (int j = 0; j < width; j++) dst[j] = ((const REAL *)src)[j];
            else
                TYPE(bn_widen)(dst, src, x->dtype, 1, bn_min(width, rows - i));
        }
    }
}

BN_INLINE int64_t TYPE(round_up)(int64_t x, int64_t to) { return bn_ceil_div(x, to) * to; }

BN_INLINE TYPE(operand) TYPE(batch_of)(const TYPE(operand) * x, const int64_t stride[2], int64_t b0,
                                       int64_t b1)
{
    TYPE(operand) y = *x;
    y.base += (b0 * stride[0] + b1 * stride[1]) * x->bytes;
    return y;
}
