/* Scaled dot-product attention, forward. See bn_runtime.h for what it computes.
 *
 * The query heads that read one key head are taken together: their queries, head after head, are the
 * "rows" of one problem. Two ways to solve it:
 *   wide   Many rows. Queries are the lanes of vectors and keys lie along the tile's rows, so that K
 *          and V are read where they are, the softmax runs down the lanes without ever crossing them,
 *          and its result already is the panel which the product with V wants.
 *   thin   A few rows, as in decoding: K and V are streamed once. Long contexts are cut into spans of
 *          keys, for other threads to share, whose results are merged at the end. */
#include "bn_stream.h"
#include "bn_tile.h"

enum {
    PANEL = BN_PANEL_F32,
    LANES = BN_LANES_F32,
    PANELS_MAX = 4,    /* panels of rows in one wide task */
    KEYS = 256,        /* keys taken at once by a wide task: one panel's scores fit a first-level cache */
    THIN_ROWS = 8,
    THIN_SPAN = 2048,  /* the most keys of one thin span */
    SHORTEST_SPAN = 256,
};
/* Problems below this many multiply-adds are over before other threads would have woken. */
#define SERIAL_WORK 400e3
#define MINUS_INFINITY (-__builtin_inff())

/* ------------------------------------------------------------------ what all tasks share */

typedef struct {
    const bn_attend_args *args;
    int64_t group, rows;     /* query heads for each key head, and the rows they make */
    int64_t chunks;          /* tasks of each problem: of rows if wide, of keys if thin */
    int64_t chunk;           /* the length of such a task */
    float *partial;          /* thin: results of spans, to be merged */
    int64_t tasks;
    bn_share *shares;
} plan;

/* Where row r of a problem is: its head within the group and its place in the sequence. */
typedef struct {
    int64_t head, query;
} place;

BN_INLINE place place_of(const plan *p, int64_t row)
{
    return (place){row / p->args->len_q, row % p->args->len_q};
}

/* One task's problem: a batch and a key head. */
typedef struct {
    int64_t batch, kv_head;
} problem;

BN_INLINE const char *offset(const void *base, int32_t dtype, int64_t elements)
{
    return (const char *)base + elements * bn_element_bytes(dtype);
}

BN_INLINE bn_operand tensor_of(const void *base, int32_t dtype, const int64_t stride[4], problem at)
{
    return (bn_operand){offset(base, dtype, at.batch * stride[0] + at.kv_head * stride[1]), stride[2],
                        stride[3], dtype, (int32_t)bn_element_bytes(dtype)};
}

/* A row that may look at no key has no largest score and sums to nothing; its result is zero, and so
 * is its logarithm, as in torch. */
BN_INLINE float largest_or_zero(float largest) { return largest == MINUS_INFINITY ? 0.0f : largest; }
BN_INLINE float sum_or_one(float sum) { return sum == 0.0f ? 1.0f : sum; }

/* One query as f32. */
static void load_query(const plan *p, problem at, int64_t row, float *to)
{
    const bn_attend_args *a = p->args;
    const place where = place_of(p, row);
    const int64_t head = at.kv_head * p->group + where.head;
    bn_widen_f32(to, offset(a->q, a->dtype_q, at.batch * a->sq[0] + head * a->sq[1] + where.query * a->sq[2]),
                 a->dtype_q, a->sq[3], a->dim);
}

/* A finished row, with the largest score and the sum its logarithm is made of. */
static void store_row(const plan *p, problem at, int64_t row, const float *from, float largest, float sum)
{
    const bn_attend_args *a = p->args;
    const place where = place_of(p, row);
    const int64_t head = at.kv_head * p->group + where.head;
    const int64_t to = at.batch * a->so[0] + head * a->so[1] + where.query * a->so[2];
    bn_narrow_f32((char *)offset(a->out, a->dtype_out, to), a->dtype_out, a->so[3], from, a->dim_v);
    if (a->lse)
        a->lse[at.batch * a->slse[0] + head * a->slse[1] + where.query * a->slse[2]] =
            largest_or_zero(largest) + bn_logf(sum_or_one(sum));
}

/* What is added to the scores of one row, for n keys from key on. */
static void load_bias(const plan *p, problem at, int64_t row, int64_t key, int64_t n, float *to)
{
    const bn_attend_args *a = p->args;
    const place where = place_of(p, row);
    const int64_t head = at.kv_head * p->group + where.head;
    const char *from = offset(a->mask, a->dtype_mask, at.batch * a->sm[0] + head * a->sm[1] +
                                                          where.query * a->sm[2] + key * a->sm[3]);
    if (a->dtype_mask != BN_BOOL) {
        bn_widen_f32(to, from, a->dtype_mask, a->sm[3], n);
        return;
    }
    const uint8_t *keep = (const uint8_t *)from;
    for (int64_t i = 0; i < n; i++) to[i] = keep[i * a->sm[3]] ? 0.0f : MINUS_INFINITY;
}

/* ------------------------------------------------------------------ wide */

/* The state of one panel of rows between blocks of keys, rows along the lanes. */
typedef struct {
    float *query;  /* [dim][PANEL] */
    float *result; /* [dim_v][PANEL] */
    float *bias;   /* [KEYS][PANEL], what the mask adds */
    float largest[PANEL], sum[PANEL];
    int32_t last_key[PANEL]; /* by causality */
    int32_t first_last_key, last_last_key;
    int64_t row0;
    int rows, vecs;
} panel;

typedef struct {
    float *scores;              /* [KEYS][PANEL] */
    float *keys, *values;       /* copies of a block, where K or V cannot be read in place */
    float *turned;              /* [dim][KEYS] */
    float *rows;                /* [LANES or PANEL][max(dim, dim_v, KEYS)], on the way in or out */
    panel panels[PANELS_MAX];
} wide_scratch;

static void start_panel(const plan *p, problem at, panel *x, int64_t row0, int64_t rows, float *staged)
{
    const bn_attend_args *a = p->args;
    x->row0 = row0;
    x->rows = (int)rows;
    x->vecs = (int)bn_ceil_div(rows, LANES);
    x->first_last_key = INT32_MAX, x->last_last_key = -1;
    for (int l = 0; l < PANEL; l++) {
        x->largest[l] = MINUS_INFINITY;
        x->sum[l] = 0;
        const int64_t row = row0 + bn_min(l, rows - 1);
        const int32_t last = (int32_t)(a->causal ? bn_min(place_of(p, row).query, a->len_k - 1)
                                                 : a->len_k - 1);
        x->last_key[l] = last;
        x->first_last_key = last < x->first_last_key ? last : x->first_last_key;
        x->last_last_key = last > x->last_last_key ? last : x->last_last_key;
    }
    if (a->len_k <= 0) __builtin_memset(x->result, 0, (size_t)(a->dim_v * PANEL) * sizeof(float));
    for (int64_t l = 0; l < rows; l++) load_query(p, at, row0 + l, staged + l * a->dim);
    for (int64_t l = 0; l < rows; l += LANES)
        bn_pack_transposed_f32(staged + l * a->dim, a->dim, rows - l, a->dim, PANEL, x->query + l);
}

/* bias[key][lane] from the mask. */
static void load_bias_panel(const plan *p, problem at, const panel *x, int64_t key, int64_t n,
                            float *staged)
{
    for (int64_t l = 0; l < x->rows; l += LANES) {
        const int64_t lanes = bn_min(LANES, x->rows - l);
        for (int64_t i = 0; i < lanes; i++)
            load_bias(p, at, x->row0 + l + i, key, n, staged + i * KEYS);
        bn_pack_transposed_f32(staged, KEYS, lanes, n, PANEL, x->bias + l);
    }
}

/* Scores of n keys from key on become masked, if there is anything to mask; the scale is applied then,
 * else later. Returns the scale that is still to be applied. */
static float mask_scores(const plan *p, const panel *x, int64_t key, int64_t n, float *restrict scores)
{
    const float scale = p->args->scale;
    const int cut = key + n - 1 > x->first_last_key;
    if (!x->bias && !cut) return scale;
    for (int64_t j = 0; j < n; j++) {
        float *restrict row = scores + j * PANEL;
        const float *restrict bias = x->bias ? x->bias + j * PANEL : 0;
        const int32_t at = (int32_t)(key + j);
        if (x->bias)
            for (int l = 0; l < PANEL; l++) row[l] = row[l] * scale + bias[l];
        else
            for (int l = 0; l < PANEL; l++) row[l] *= scale;
        if (cut)
            for (int l = 0; l < PANEL; l++) row[l] = at <= x->last_key[l] ? row[l] : MINUS_INFINITY;
    }
    return 1.0f;
}

/* Scores become weights relative to the largest score so far; what came before is scaled down to
 * match. */
static void weigh_scores(const plan *p, panel *x, int64_t n, float *restrict scores, const float scale,
                         int first)
{
    float base[PANEL], fade[PANEL], sum[PANEL];
    for (int l = 0; l < PANEL; l++) base[l] = x->largest[l];
    for (int64_t j = 0; j < n; j++)
        for (int l = 0; l < PANEL; l++) {
            /* Kept as it is rounded here: half a unit of a large score, from another rounding, is any factor. */
            const float score = scores[j * PANEL + l] *= scale;
            base[l] = score > base[l] ? score : base[l];
        }
    for (int l = 0; l < PANEL; l++) {
        const float before = x->largest[l];
        x->largest[l] = base[l];
        base[l] = largest_or_zero(base[l]);
        fade[l] = bn_expf(before - base[l]);
        sum[l] = first ? 0.0f : x->sum[l] * fade[l];
    }
    for (int64_t j = 0; j < n; j++) {
        float *restrict row = scores + j * PANEL;
        for (int l = 0; l < PANEL; l++) {
            const float weight = bn_exp_nonpositive(row[l] - base[l]);
            row[l] = weight;
            sum[l] += weight;
        }
    }
    for (int l = 0; l < PANEL; l++) x->sum[l] = sum[l];
    if (first) return;
    for (int64_t d = 0; d < p->args->dim_v; d++)
        for (int l = 0; l < PANEL; l++) x->result[d * PANEL + l] *= fade[l];
}

/* One block of keys against one panel of rows. */
static void attend_block(const plan *p, problem at, panel *x, const bn_operand *k, const bn_operand *v,
                         int64_t key, int64_t n, wide_scratch *w)
{
    const bn_attend_args *a = p->args;
    bn_fetch none = {0};
    const int64_t needed = bn_min(n, x->last_last_key + 1 - key);
    if (needed <= 0) return;
    for (int64_t j = 0; j < needed; j += BN_TILE_ROWS)
        bn_tile_f32((int)bn_min(BN_TILE_ROWS, needed - j), k->k != 1, (const float *)bn_at(k, j, 0),
                    k->k != 1 ? k->k : k->row, x->query, a->dim, x->vecs, w->scores + j * PANEL, PANEL,
                    1, &none);
    if (x->bias) load_bias_panel(p, at, x, key, needed, w->rows);
    const float scale = mask_scores(p, x, key, needed, w->scores);
    weigh_scores(p, x, needed, w->scores, scale, key == 0);
    for (int64_t d = 0; d < a->dim_v; d += BN_TILE_ROWS)
        bn_tile_f32((int)bn_min(BN_TILE_ROWS, a->dim_v - d), 1, (const float *)bn_at(v, 0, d), v->row,
                    w->scores, needed, x->vecs, x->result + d * PANEL, PANEL, key == 0, &none);
}

static void finish_panel(const plan *p, problem at, panel *x, float *staged)
{
    const int64_t dim = p->args->dim_v, ld = bn_round_up(dim, LANES);
    float inverse[PANEL];
    for (int l = 0; l < PANEL; l++) inverse[l] = 1.0f / sum_or_one(x->sum[l]);
    for (int64_t d = 0; d < dim; d++)
        for (int l = 0; l < PANEL; l++) x->result[d * PANEL + l] *= inverse[l];
    for (int64_t l = 0; l < x->rows; l += LANES)
        for (int64_t d = 0; d < dim; d += LANES)
            bn_pack_transposed_f32(x->result + d * PANEL + l, PANEL, dim - d, LANES, ld,
                                   staged + l * ld + d);
    for (int l = 0; l < x->rows; l++)
        store_row(p, at, x->row0 + l, staged + l * ld, x->largest[l], x->sum[l]);
}

/* A block of n keys from key on, as f32 and compact: rows that lie apart, say with other heads
 * between them, would keep evicting each other from the first-level cache. */
static bn_operand block_of(const bn_operand *x, int64_t key, int64_t n, int64_t dim, float *copy)
{
    bn_operand y = *x;
    y.base = bn_at(x, key, 0);
    if (x->dtype == BN_F32 && x->k == 1 && x->row == dim) return y;
    for (int64_t j = 0; j < n; j++) bn_widen_f32(copy + j * dim, bn_at(x, key + j, 0), x->dtype, x->k, dim);
    return (bn_operand){(const char *)copy, dim, 1, BN_F32, sizeof(float)};
}

/* Keys are broadcast along their own dimension. Where the tile wants to read them by column instead,
 * they are turned first. */
static bn_operand keys_for_tile(bn_operand k, int64_t n, int64_t dim, float *turned)
{
#ifdef BN_MULTIPLY_BY_LANE
    for (int64_t j = 0; j < n; j += LANES)
        bn_pack_transposed_f32(bn_at(&k, j, 0), k.row, n - j, dim, KEYS, turned + j);
    return (bn_operand){(const char *)turned, 1, KEYS, BN_F32, sizeof(float)};
#else
    (void)n, (void)dim, (void)turned;
    return k;
#endif
}

static void attend_wide(const plan *p, int64_t task, wide_scratch *w)
{
    const bn_attend_args *a = p->args;
    const int64_t index = task / p->chunks, row0 = task % p->chunks * p->chunk;
    const problem at = {index / a->heads_kv, index % a->heads_kv};
    const bn_operand k = tensor_of(a->k, a->dtype_k, a->sk, at), v = tensor_of(a->v, a->dtype_v, a->sv, at);
    const int64_t rows = bn_min(p->chunk, p->rows - row0), panels = bn_ceil_div(rows, PANEL);
    int64_t keys = 0;
    for (int64_t i = 0; i < panels; i++) {
        start_panel(p, at, &w->panels[i], row0 + i * PANEL, bn_min(PANEL, rows - i * PANEL), w->rows);
        keys = bn_max(keys, w->panels[i].last_last_key + 1);
    }
    for (int64_t key = 0; key < keys; key += KEYS) {
        const int64_t n = bn_min(KEYS, keys - key);
        const bn_operand kb = keys_for_tile(block_of(&k, key, n, a->dim, w->keys), n, a->dim, w->turned);
        const bn_operand vb = block_of(&v, key, n, a->dim_v, w->values);
        for (int64_t i = 0; i < panels; i++) attend_block(p, at, &w->panels[i], &kb, &vb, key, n, w);
    }
    for (int64_t i = 0; i < panels; i++) finish_panel(p, at, &w->panels[i], w->rows);
}

/* Lays a wide task's scratch out in memory; returns its size in floats. */
static int64_t divide_wide(const plan *p, float *memory, wide_scratch *w)
{
    const bn_attend_args *a = p->args;
    const int64_t longest = bn_max(bn_max(a->dim, bn_round_up(a->dim_v, LANES)), KEYS);
    int64_t at = 0;
#define TAKE(pointer, count)                                                                       \
    do {                                                                                           \
        if (memory) (pointer) = memory + at;                                                       \
        at += bn_round_up(count, 16);                                                              \
    } while (0)
    TAKE(w->scores, KEYS * PANEL);
    TAKE(w->keys, KEYS * a->dim);
    TAKE(w->values, KEYS * a->dim_v);
    TAKE(w->turned, KEYS * a->dim);
    TAKE(w->rows, PANEL * longest);
    for (int i = 0; i < PANELS_MAX && i * PANEL < p->chunk; i++) {
        TAKE(w->panels[i].query, a->dim * PANEL);
        TAKE(w->panels[i].result, bn_round_up(a->dim_v, LANES) * PANEL);
        if (a->mask) TAKE(w->panels[i].bias, KEYS * PANEL);
        else w->panels[i].bias = 0;
    }
#undef TAKE
    return at;
}

/* ------------------------------------------------------------------ thin */

/* A span's result for each row: its largest score, the sum of its weights, and the weighted values. */
BN_INLINE float *partial_of(const plan *p, int64_t task, int64_t row)
{
    return p->partial + (task * p->rows + row) * (p->args->dim_v + 2);
}

BN_INLINE float largest_in(const float *x, int64_t n)
{
    float lane[LANES];
    int64_t i = 0;
    for (int l = 0; l < LANES; l++) lane[l] = MINUS_INFINITY;
    for (; i + LANES <= n; i += LANES)
        for (int l = 0; l < LANES; l++) lane[l] = x[i + l] > lane[l] ? x[i + l] : lane[l];
    float largest = MINUS_INFINITY;
    for (int l = 0; l < LANES; l++) largest = lane[l] > largest ? lane[l] : largest;
    for (; i < n; i++) largest = x[i] > largest ? x[i] : largest;
    return largest;
}

BN_INLINE float sum_of(const float *x, int64_t n)
{
    float lane[LANES] = {0}, sum = 0;
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES)
        for (int l = 0; l < LANES; l++) lane[l] += x[i + l];
    for (int l = 0; l < LANES; l++) sum += lane[l];
    for (; i < n; i++) sum += x[i];
    return sum;
}

/* One row's scores of a span become weights. */
static void weigh_row(const plan *p, problem at, int64_t row, int64_t key, int64_t n,
                      float *restrict scores, float *restrict bias, float *partial)
{
    const bn_attend_args *a = p->args;
    if (a->mask) {
        load_bias(p, at, row, key, n, bias);
        for (int64_t i = 0; i < n; i++) scores[i] = scores[i] * a->scale + bias[i];
    } else {
        for (int64_t i = 0; i < n; i++) scores[i] *= a->scale;
    }
    if (a->causal)
        for (int64_t i = bn_max(0, place_of(p, row).query + 1 - key); i < n; i++) scores[i] = MINUS_INFINITY;
    partial[0] = largest_in(scores, n);
    const float base = largest_or_zero(partial[0]);
    for (int64_t i = 0; i < n; i++) scores[i] = bn_exp_nonpositive(scores[i] - base);
    partial[1] = sum_of(scores, n);
}

static void attend_thin(const plan *p, int64_t task, float *memory)
{
    const bn_attend_args *a = p->args;
    const int64_t index = task / p->chunks, key = task % p->chunks * p->chunk;
    const int64_t n = bn_min(p->chunk, a->len_k - key);
    const problem at = {index / a->heads_kv, index % a->heads_kv};
    const bn_operand k = tensor_of(a->k, a->dtype_k, a->sk, at);
    /* V with its axes exchanged: its rows are the values' dimension, the sum runs over keys. */
    bn_operand v = tensor_of(a->v, a->dtype_v, a->sv, at);
    v.base = bn_at(&v, key, 0);
    v.row = a->sv[3], v.k = a->sv[2];
    float *queries = memory, *scores = queries + p->rows * a->dim;
    float *bias = scores + p->rows * p->chunk, *result = bias + p->chunk;
    for (int64_t r = 0; r < p->rows; r++) load_query(p, at, r, queries + r * a->dim);
    bn_stream_f32(&k, key, key + n, a->dim, queries, a->dim, p->rows, scores, p->chunk);
    for (int64_t r = 0; r < p->rows; r++)
        weigh_row(p, at, r, key, n, scores + r * p->chunk, bias, partial_of(p, task, r));
    bn_stream_f32(&v, 0, a->dim_v, n, scores, p->chunk, p->rows, result, a->dim_v);
    for (int64_t r = 0; r < p->rows; r++)
        __builtin_memcpy(partial_of(p, task, r) + 2, result + r * a->dim_v, (size_t)a->dim_v * sizeof(float));
}

/* All spans of one problem. The first span's memory receives the sum. */
static void merge_spans(const plan *p, int64_t index)
{
    const bn_attend_args *a = p->args;
    const problem at = {index / a->heads_kv, index % a->heads_kv};
    for (int64_t r = 0; r < p->rows; r++) {
        float *total = partial_of(p, index * p->chunks, r), largest = MINUS_INFINITY, sum = 0;
        for (int64_t c = 0; c < p->chunks; c++)
            largest = bn_fmax(largest, partial_of(p, index * p->chunks + c, r)[0]);
        const float base = largest_or_zero(largest);
        for (int64_t c = 0; c < p->chunks; c++) {
            const float *part = partial_of(p, index * p->chunks + c, r);
            const float fade = bn_expf(largest_or_zero(part[0]) - base);
            sum += part[1] * fade;
            for (int64_t d = 0; d < a->dim_v; d++)
                total[2 + d] = (c ? total[2 + d] : 0.0f) + part[2 + d] * fade;
        }
        const float inverse = 1.0f / sum_or_one(sum);
        for (int64_t d = 0; d < a->dim_v; d++) total[2 + d] *= inverse;
        store_row(p, at, r, total + 2, largest, sum);
    }
}

BN_INLINE int64_t thin_floats(const plan *p)
{
    const bn_attend_args *a = p->args;
    return p->rows * (a->dim + p->chunk + a->dim_v) + p->chunk;
}

/* ------------------------------------------------------------------ all tasks, by all threads */

static void work_wide(void *shared, int me, int threads)
{
    const plan *p = shared;
    wide_scratch wide = {0};
    float *memory = bn_scratch_take((size_t)divide_wide(p, 0, &wide) * sizeof(float));
    divide_wide(p, memory, &wide);
    int64_t task;
    while ((task = bn_draw(p->shares, p->tasks, me, threads)) >= 0) attend_wide(p, task, &wide);
    bn_scratch_give(memory);
}

static void work_thin(void *shared, int me, int threads)
{
    const plan *p = shared;
    float *memory = bn_scratch_take((size_t)thin_floats(p) * sizeof(float));
    int64_t task;
    while ((task = bn_draw(p->shares, p->tasks, me, threads)) >= 0) attend_thin(p, task, memory);
    bn_scratch_give(memory);
}

static void work_together(plan *p, bn_work work, int threads)
{
    const size_t shares = (size_t)threads * sizeof(bn_share);
    p->tasks = p->args->batch * p->args->heads_kv * p->chunks;
    p->shares = bn_scratch_take(shares);
    __builtin_memset(p->shares, 0, shares);
    bn_run(work, p, threads);
    bn_scratch_give(p->shares);
}

static void attend_all_thin(plan *p, int threads)
{
    const bn_attend_args *a = p->args;
    const int64_t problems = a->batch * a->heads_kv;
    const int64_t wanted = threads == 1 ? 1 : bn_ceil_div(2 * threads, problems);
    const int64_t span = bn_max(SHORTEST_SPAN, bn_ceil_div(a->len_k, wanted));
    p->chunk = bn_min(bn_min(span, THIN_SPAN), a->len_k);
    p->chunks = bn_ceil_div(a->len_k, p->chunk);
    const int64_t floats = problems * p->chunks * p->rows * (a->dim_v + 2);
    p->partial = bn_scratch_take((size_t)floats * sizeof(float));
    work_together(p, work_thin, threads);
    for (int64_t i = 0; i < problems; i++) merge_spans(p, i);
    bn_scratch_give(p->partial);
}

static void attend_all_wide(plan *p, int threads)
{
    const bn_attend_args *a = p->args;
    const int64_t panels = bn_ceil_div(p->rows, PANEL);
    const int64_t wanted = threads == 1 ? 1 : bn_ceil_div(4 * threads, a->batch * a->heads_kv);
    p->chunk = bn_max(1, bn_min(PANELS_MAX, panels / wanted)) * PANEL;
    p->chunks = bn_ceil_div(p->rows, p->chunk);
    work_together(p, work_wide, threads);
}

void bn_attend(const bn_attend_args *args)
{
    plan p = {.args = args};
    if (args->batch <= 0 || args->heads_q <= 0 || args->len_q <= 0 || args->dim_v <= 0) return;
    p.group = args->heads_q / args->heads_kv;
    p.rows = p.group * args->len_q;
    const double size = (double)args->batch * (double)args->heads_q * (double)args->len_q *
                        (double)args->len_k * (double)(args->dim + args->dim_v);
    const int threads = size < SERIAL_WORK ? 1 : bn_threads();
    const problem first = {0, 0};
    const bn_operand k = tensor_of(args->k, args->dtype_k, args->sk, first);
    const bn_operand v = tensor_of(args->v, args->dtype_v, args->sv, first);
    if (p.rows <= THIN_ROWS && args->len_k > 0 && args->dim > 0 && bn_can_stream(&k) && bn_can_stream(&v))
        attend_all_thin(&p, threads);
    else
        attend_all_wide(&p, threads);
}
