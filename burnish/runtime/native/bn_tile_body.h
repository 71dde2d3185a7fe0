/* bn_tile.h's functions for one element type. */

#define PANEL (LANES * BN_TILE_VECS)
#define TILE_ROWS BN_TILE_ROWS
/* Rows reached from one pointer register: x86 addresses have room for +0, +stride and +2*stride. */
#define ROWS_PER_POINTER 3

typedef TYPE(bn_vector) TYPE(vec);

BN_INLINE TYPE(vec) TYPE(load)(const REAL *p) { return *(const TYPE(bn_unaligned) *)p; }
BN_INLINE void TYPE(store)(REAL *p, TYPE(vec) x) { *(TYPE(bn_unaligned) *)p = x; }

/* ------------------------------------------------------------------ the register tile */

/* One step of k. rows, vecs and by_column are constants wherever this is inlined, so that the
 * accumulators stay in registers. */
BN_INLINE void TYPE(tile_step)(const int rows, const int vecs, const int by_column,
                               const REAL *const group[], int64_t stride, const int u,
                               const REAL *panel, TYPE(vec) acc[TILE_ROWS][BN_TILE_VECS])
{
    TYPE(vec) x[BN_TILE_VECS];
    _Pragma("GCC unroll 4") for (int j = 0; j < vecs; j++)
        x[j] = TYPE(load)(panel + j * LANES);
#ifdef BN_MULTIPLY_BY_LANE
    if (by_column && rows % LANES == 0) {
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

BN_INLINE void TYPE(tile)(const int rows, const int vecs, const int by_column, const REAL *s,
                          int64_t stride, const REAL *panel, int64_t k, REAL *c, int64_t ldc,
                          int first, bn_fetch *fetch)
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
        bn_fetch_some(fetch);
        for (int q = 0; q < LINE; q += STEPS) {
            /* Without this the compiler keeps one address per row and step, and spills them. */
            _Pragma("GCC unroll 16") for (int g = 0; g < groups; g++)
                __asm__("" : "+r"(group[g]));
            _Pragma("GCC unroll 4") for (int u = 0; u < STEPS; u++)
            {
                TYPE(tile_step)(rows, vecs, by_column, group, stride, u, panel, acc);
                panel += PANEL;
            }
            _Pragma("GCC unroll 16") for (int g = 0; g < groups; g++) group[g] += STEPS * s_step;
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

/* As wide as the panel, or narrower at the right edge of the matrix. */
#define TILE_OF_WIDTH(rows, vecs, by_column)                                                       \
    TYPE(tile)(rows, vecs, by_column, s, stride, panel, k, c, ldc, first, fetch)
#define TILE(rows, by_column)                                                                      \
    do {                                                                                           \
        if (vecs == BN_TILE_VECS) TILE_OF_WIDTH(rows, BN_TILE_VECS, by_column);                    \
        else if (BN_TILE_VECS == 3 && vecs == 2) TILE_OF_WIDTH(rows, 2, by_column);                \
        else TILE_OF_WIDTH(rows, 1, by_column);                                                    \
    } while (0)

void TYPE(bn_tile)(int rows, int by_column, const REAL *s, int64_t stride, const REAL *panel,
                   int64_t k, int vecs, REAL *c, int64_t ldc, int first, bn_fetch *fetch)
{
    if (rows == TILE_ROWS) {
        if (by_column) TILE(TILE_ROWS, 1);
        else TILE(TILE_ROWS, 0);
        return;
    }
    /* The last rows of a matrix: pieces of 4 and 1 compute nothing in vain and read nothing beyond. */
    while (rows > 0) {
        const int piece = rows >= 4 ? 4 : 1;
        if (by_column) {
            if (piece == 4) TILE(4, 1);
            else TILE(1, 1);
        } else {
            if (piece == 4) TILE(4, 0);
            else TILE(1, 0);
        }
        rows -= piece;
        s += by_column ? piece : piece * stride;
        c += piece * ldc;
    }
}

/* ------------------------------------------------------------------ packing */

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

void TYPE(bn_pack_transposed)(const REAL *src, int64_t row_stride, int64_t rows, int64_t k,
                              int64_t width, REAL *dst)
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

void TYPE(bn_pack_rows)(const bn_operand *x, int64_t row0, int64_t rows, int64_t k0, int64_t depth,
                        int width, REAL *panel)
{
    enum { STAGE = 64 };
    REAL stage[LANES * STAGE];
    rows = bn_min(rows, width);
    for (int64_t i0 = 0; i0 < rows; i0 += LANES) {
        const int64_t lanes = bn_min(LANES, rows - i0);
        if (x->dtype == DTYPE && x->k == 1) {
            TYPE(bn_pack_transposed)(bn_at(x, row0 + i0, k0), x->row, lanes, depth, width, panel + i0);
            continue;
        }
        for (int64_t p = 0; p < depth; p += STAGE) {
            const int64_t part = bn_min(STAGE, depth - p);
            for (int64_t i = 0; i < lanes; i++)
                TYPE(bn_widen)(stage + i * STAGE, bn_at(x, row0 + i0 + i, k0 + p), x->dtype, x->k,
                               part);
            TYPE(bn_pack_transposed)(stage, STAGE, lanes, part, width, panel + p * width + i0);
        }
    }
}

/* Memory is read in its own order, along the rows, since each step of k may lie in another page. */
BN_INLINE void TYPE(pack_columns_of)(const int width, const bn_operand *x, int64_t row0, int64_t rows,
                                     int64_t k0, int64_t depth, REAL *panels, int64_t panel_stride)
{
    const int64_t whole = x->dtype == DTYPE ? rows / width * width : 0;
    for (int64_t p = 0; p < depth; p++, panels += width) {
        const REAL *src = bn_at(x, row0, k0 + p);
        REAL *dst = panels;
        int64_t i = 0;
        for (; i < whole; i += width, dst += panel_stride)
            __builtin_memcpy(dst, src + i, (size_t)width * sizeof(REAL));
        for (; i < rows; i += width, dst += panel_stride)
            TYPE(bn_widen)(dst, bn_at(x, row0 + i, k0 + p), x->dtype, 1, bn_min(width, rows - i));
    }
}

/* A width known to the compiler makes whole copies a few instructions. */
void TYPE(bn_pack_columns)(const bn_operand *x, int64_t row0, int64_t rows, int64_t k0, int64_t depth,
                           int width, REAL *panels, int64_t panel_stride)
{
    if (width == PANEL)
        TYPE(pack_columns_of)(PANEL, x, row0, rows, k0, depth, panels, panel_stride);
    else
        TYPE(pack_columns_of)(TILE_ROWS, x, row0, rows, k0, depth, panels, panel_stride);
}
