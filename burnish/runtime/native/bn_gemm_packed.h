/* Products of two large matrices, for one element type: included by bn_gemm.c once for f32 and once
 * for f64. */

#define PANEL (LANES * BN_TILE_VECS)
#define TILE_ROWS BN_TILE_ROWS

/* How many steps of k one slab has. */
enum { TYPE(slab) = BN_SLAB_BYTES / sizeof(REAL) };

/* What every thread of one multiplication needs to know. "s" is the side of the broadcast operand,
 * "v" that of the vector operand; swapped says that s is n and v is m, so that finished tiles must
 * be transposed on their way out. */
typedef struct {
    bn_operand s, v;
    int64_t s_batch[2], v_batch[2]; /* in elements */
    int64_t s_len, v_len, k;
    int64_t nb0, nb1;
    int swapped;
    int read_s;               /* BN_BY_ROW ... BN_PACK */
    int share_v;              /* BN_BY_ALL ... BN_BY_TASK */
    int64_t s_chunk, v_chunk; /* what one task multiplies */
    int64_t round_v;          /* how much of v is packed at once: a multiple of v_chunk or all */
    int64_t round_batches;    /* batches packed at once; more than one only if round_v is all */
    TYPE(bn_epilogue) epilogue;
    void *ctx;
    REAL *packed;             /* v, where all threads share it */
    bn_share *shares;         /* for each round and thread: of the packing, then of the tasks */
    bn_progress packed_units, finished_tasks;
} TYPE(plan);

BN_INLINE int64_t TYPE(panels)(int64_t v) { return bn_ceil_div(v, PANEL); }

/* ------------------------------------------------------------------ one task: a tile of C */

/* Rows [s0, s1) of s against rows [v0, v1) of v, which are packed, in batch (b0, b1). */
typedef struct {
    int64_t b0, b1, s0, s1, v0, v1;
    const REAL *packed;
} TYPE(task);

/* A block of up to TILE_ROWS rows of s, one slab of k deep, as the tile functions read it: element
 * (i, k) at from[i*stride + k], or at from[k*stride + i] where by_column. */
typedef struct {
    const REAL *from;
    int64_t stride;
    int by_column;
} TYPE(block);

/* In the tensor itself where the tile can read it there, else from a copy made here, which is then
 * in the first-level cache. A copied row is no multiple of a page long, lest rows evict each other. */
enum { TYPE(copy_stride) = TYPE(slab) + 64 / sizeof(REAL) };

static TYPE(block) TYPE(block_of)(const bn_operand *s, int64_t row, int64_t rows, int64_t k0,
                                  int64_t depth, int way, REAL *copy)
{
    if (way == BN_BY_ROW) return (TYPE(block)){bn_at(s, row, k0), s->row, 0};
    if (way == BN_BY_COLUMN) return (TYPE(block)){bn_at(s, row, k0), s->k, 1};
    if (way == BN_COPY_ROWS) {
        for (int64_t i = 0; i < rows; i++)
            TYPE(bn_widen)(copy + i * TYPE(copy_stride), bn_at(s, row + i, k0), s->dtype, s->k,
                           depth);
        return (TYPE(block)){copy, TYPE(copy_stride), 0};
    }
    if (s->row == 1)
        TYPE(bn_pack_columns)(s, row, rows, k0, depth, TILE_ROWS, copy, 0);
    else
        TYPE(bn_pack_rows)(s, row, rows, k0, depth, TILE_ROWS, copy);
    return (TYPE(block)){copy, TILE_ROWS, 1};
}

/* tile[m][n] from sums[n][m]. */
static void TYPE(transpose_tile)(const REAL *sums, int64_t ld_sums, int64_t n, int64_t m, REAL *tile,
                                 int64_t ld)
{
    for (int64_t i = 0; i < m; i += LANES)
        for (int64_t j = 0; j < n; j += LANES)
            TYPE(bn_pack_transposed)(sums + j * ld_sums + i, ld_sums, n - j, bn_min(LANES, m - i), ld,
                                     tile + i * ld + j);
}

/* Finished rows [i0, i1) of a task go to the epilogue as soon as a few are there: its stores then
 * drain while the next tiles are being multiplied. Where s is n they are transposed first, a few
 * rows of m at a time so that the epilogue finds them in the first-level cache. */
static void TYPE(deliver)(const TYPE(plan) * plan, const TYPE(task) * task, int64_t i0, int64_t i1,
                          const REAL *sums, REAL *tile)
{
    const int64_t s0 = task->s0 + i0, s1 = task->s0 + i1, width = task->v1 - task->v0;
    sums += i0 * plan->v_chunk;
    if (!plan->swapped) {
        plan->epilogue(plan->ctx, task->b0, task->b1, s0, s1, task->v0, task->v1, sums, plan->v_chunk);
        return;
    }
    for (int64_t v = 0; v < width; v += BN_DELIVER_ROWS) {
        const int64_t rows = bn_min(BN_DELIVER_ROWS, width - v), v0 = task->v0 + v;
        TYPE(transpose_tile)(sums + v, plan->v_chunk, i1 - i0, rows, tile, BN_DELIVER_COLUMNS);
        plan->epilogue(plan->ctx, task->b0, task->b1, v0, v0 + rows, s0, s1, tile, BN_DELIVER_COLUMNS);
    }
}

/* All panels of a task, one slab deep, packed by the task itself. */
static void TYPE(pack_slab)(const TYPE(plan) * plan, const TYPE(task) * task, int64_t k0,
                            int64_t depth, REAL *panels)
{
    const bn_operand v = bn_batch_of(&plan->v, plan->v_batch, task->b0, task->b1);
    TYPE(bn_pack_columns)(&v, task->v0, task->v1 - task->v0, k0, depth, PANEL, panels, PANEL * depth);
}

/* What is read from memory next: the next slab of k, or the first one of the next task. It is spread
 * evenly over the tiles of this slab. */
static bn_fetch TYPE(fetch_for)(const TYPE(plan) * plan, const TYPE(task) * now,
                                const TYPE(task) * next, int64_t next_k, int64_t depth)
{
    const bn_operand s = bn_batch_of(&plan->s, plan->s_batch, next->b0, next->b1);
    const bn_operand v = bn_batch_of(&plan->v, plan->v_batch, next->b0, next->b1);
    const bn_operand *x = plan->share_v == BN_BY_TASK ? &v : &s;
    const int64_t row0 = x == &v ? next->v0 : next->s0;
    const int64_t rows = x == &v ? next->v1 - next->v0 : next->s1 - next->s0;
    const int64_t next_depth = bn_min(TYPE(slab), plan->k - next_k);
    if (x->k != 1 && x->row != 1) return (bn_fetch){0};
    bn_fetch fetch = {
        .row = bn_at(x, row0, next_k),
        .stride = (x->k == 1 ? x->row : x->k) * x->bytes,
        .rows = (int32_t)(x->k == 1 ? rows : next_depth),
        .lines = (int32_t)bn_ceil_div((x->k == 1 ? next_depth : rows) * x->bytes, 64),
    };
    const int64_t tiles = TYPE(panels)(now->v1 - now->v0) * bn_ceil_div(now->s1 - now->s0, TILE_ROWS);
    const int64_t turns = bn_max(1, tiles * (depth * (int64_t)sizeof(REAL) / 64));
    fetch.at_once = (int32_t)bn_ceil_div((int64_t)fetch.rows * fetch.lines, turns);
    return fetch;
}

/* Where the parts of a thread's scratch lie. */
typedef struct {
    REAL *block, *tile, *sums, *panels;
} TYPE(scratch);

/* sums[s][v] (+)= one slab of k; panel number j is at panels + j*panel_stride. In the last slab rows
 * are delivered as they are finished. */
static void TYPE(multiply_slab)(const TYPE(plan) * plan, const TYPE(task) * task, int64_t k0,
                                int64_t depth, const REAL *panels, int64_t panel_stride,
                                bn_fetch *fetch, const TYPE(scratch) * scratch)
{
    const bn_operand s = bn_batch_of(&plan->s, plan->s_batch, task->b0, task->b1);
    const int64_t rows = task->s1 - task->s0, width = task->v1 - task->v0, ld = plan->v_chunk;
    const int64_t batch = plan->swapped ? BN_DELIVER_COLUMNS : TILE_ROWS;
    const int first = k0 == 0, last = k0 + depth == plan->k;
    int64_t delivered = 0;
    for (int64_t i = 0; i < rows; i += TILE_ROWS) {
        const int64_t end = bn_min(rows, i + TILE_ROWS);
        const TYPE(block) block =
            TYPE(block_of)(&s, task->s0 + i, end - i, k0, depth, plan->read_s, scratch->block);
        const REAL *panel = panels;
        for (int64_t v = 0; v < width; v += PANEL, panel += panel_stride) {
            const int vecs = (int)bn_min(BN_TILE_VECS, bn_ceil_div(width - v, LANES));
            REAL *c = scratch->sums + i * ld + v;
            TYPE(bn_tile)((int)(end - i), block.by_column, block.from, block.stride, panel, depth, vecs,
                          c, ld, first, fetch);
        }
        if (last && (end == rows || end - delivered >= batch)) {
            TYPE(deliver)(plan, task, delivered, end, scratch->sums, scratch->tile);
            delivered = end;
        }
    }
}

static void TYPE(multiply_task)(const TYPE(plan) * plan, const TYPE(task) * task,
                                const TYPE(task) * after, const TYPE(scratch) * scratch)
{
    for (int64_t k0 = 0; k0 < plan->k; k0 += TYPE(slab)) {
        const int64_t depth = bn_min(TYPE(slab), plan->k - k0);
        const int last = k0 + depth == plan->k;
        bn_fetch fetch =
            TYPE(fetch_for)(plan, task, last ? after : task, last ? 0 : k0 + depth, depth);
        if (plan->share_v == BN_BY_TASK) {
            TYPE(pack_slab)(plan, task, k0, depth, scratch->panels);
            TYPE(multiply_slab)(plan, task, k0, depth, scratch->panels, PANEL * depth, &fetch, scratch);
        } else {
            TYPE(multiply_slab)(plan, task, k0, depth, task->packed + k0 * PANEL, PANEL * plan->k,
                                &fetch, scratch);
        }
    }
}

/* How much of v is packed at once, in elements. */
BN_INLINE int64_t TYPE(packed_size)(const TYPE(plan) * plan)
{
    if (plan->share_v == BN_BY_TASK) return plan->v_chunk * TYPE(slab);
    return plan->round_batches * TYPE(panels)(plan->round_v) * PANEL * plan->k;
}

/* The size of a thread's scratch; its parts too where memory is given. */
static size_t TYPE(divide_scratch)(const TYPE(plan) * plan, REAL *memory, TYPE(scratch) * parts)
{
    const int64_t block = TILE_ROWS * TYPE(copy_stride), tile = BN_DELIVER_ROWS * BN_DELIVER_COLUMNS;
    const int64_t sums = plan->s_chunk * plan->v_chunk;
    if (memory) {
        parts->block = memory;
        parts->tile = parts->block + block;
        parts->sums = parts->tile + tile;
        parts->panels = parts->sums + sums;
    }
    const int64_t panels = plan->share_v == BN_BY_ALL ? 0 : TYPE(packed_size)(plan);
    return (size_t)(block + tile + sums + panels) * sizeof(REAL);
}

/* ------------------------------------------------------------------ all tasks, by all threads */

/* A round packs some of v, all of it where that is small enough, then multiplies with it. */
typedef struct {
    int64_t batch0, batch1, v0, v1;
    int64_t units, tasks;               /* of this round */
    int64_t units_before, tasks_before; /* of all rounds before */
    bn_share *unit_shares, *task_shares;
} TYPE(round);

/* One task of packing covers one slab of k and up to BN_PACK_PANELS panels. */
BN_INLINE int64_t TYPE(pack_groups)(const TYPE(round) * round)
{
    return bn_ceil_div(TYPE(panels)(round->v1 - round->v0), BN_PACK_PANELS);
}

static void TYPE(pack_unit)(const TYPE(plan) * plan, const TYPE(round) * round, int64_t unit,
                            REAL *packed)
{
    const int64_t panels = TYPE(panels)(round->v1 - round->v0), groups = TYPE(pack_groups)(round);
    const int64_t slabs = bn_ceil_div(plan->k, TYPE(slab));
    const int64_t batch = unit / (groups * slabs), panel = unit / slabs % groups * BN_PACK_PANELS;
    const int64_t k0 = unit % slabs * TYPE(slab), depth = bn_min(TYPE(slab), plan->k - k0);
    const int64_t v0 = round->v0 + panel * PANEL;
    const int64_t v1 = bn_min(round->v1, v0 + BN_PACK_PANELS * PANEL);
    const bn_operand x = bn_batch_of(&plan->v, plan->v_batch, (round->batch0 + batch) / plan->nb1,
                                     (round->batch0 + batch) % plan->nb1);
    REAL *to = packed + ((batch * panels + panel) * plan->k + k0) * PANEL;
    if (x.row == 1 && x.k != 1) {
        TYPE(bn_pack_columns)(&x, v0, v1 - v0, k0, depth, PANEL, to, PANEL * plan->k);
        return;
    }
    for (int64_t v = v0; v < v1; v += PANEL, to += PANEL * plan->k)
        TYPE(bn_pack_rows)(&x, v, v1 - v, k0, depth, PANEL, to);
}

/* Neighbouring tasks share rows of s: those belong to the larger operand. */
BN_INLINE TYPE(task) TYPE(task_at)(const TYPE(plan) * plan, const TYPE(round) * round, int64_t t,
                                   const REAL *packed)
{
    const int64_t s_tasks = bn_ceil_div(plan->s_len, plan->s_chunk);
    const int64_t v_tasks = bn_ceil_div(round->v1 - round->v0, plan->v_chunk);
    const int64_t batch = t / (v_tasks * s_tasks);
    const int64_t s = t / v_tasks % s_tasks * plan->s_chunk, v = t % v_tasks * plan->v_chunk;
    return (TYPE(task)){
        .b0 = (round->batch0 + batch) / plan->nb1, .b1 = (round->batch0 + batch) % plan->nb1,
        .s0 = s, .s1 = bn_min(plan->s_len, s + plan->s_chunk),
        .v0 = round->v0 + v, .v1 = bn_min(round->v1, round->v0 + v + plan->v_chunk),
        .packed = packed + (batch * TYPE(panels)(round->v1 - round->v0) * PANEL + v) * plan->k,
    };
}

static TYPE(round) TYPE(round_at)(const TYPE(plan) * plan, int64_t number, const TYPE(round) * before,
                                  int64_t batch0, int64_t v0, int threads)
{
    TYPE(round) round = {
        .batch0 = batch0, .batch1 = bn_min(plan->nb0 * plan->nb1, batch0 + plan->round_batches),
        .v0 = v0, .v1 = bn_min(plan->v_len, v0 + plan->round_v),
        .units_before = before->units_before + before->units,
        .tasks_before = before->tasks_before + before->tasks,
        .unit_shares = plan->shares + 2 * number * threads,
        .task_shares = plan->shares + (2 * number + 1) * threads,
    };
    const int64_t batches = round.batch1 - round.batch0;
    round.tasks = batches * bn_ceil_div(round.v1 - round.v0, plan->v_chunk) *
                  bn_ceil_div(plan->s_len, plan->s_chunk);
    if (plan->share_v != BN_BY_TASK)
        round.units = batches * TYPE(pack_groups)(&round) * bn_ceil_div(plan->k, TYPE(slab));
    return round;
}

/* Packs a round's part of v: alone, or together with the other threads. */
static void TYPE(pack_round)(TYPE(plan) * plan, const TYPE(round) * round, REAL *packed, int me,
                             int threads)
{
    if (plan->share_v == BN_BY_THREAD) {
        for (int64_t unit = 0; unit < round->units; unit++)
            TYPE(pack_unit)(plan, round, unit, packed);
        return;
    }
    bn_progress_wait(&plan->finished_tasks, round->tasks_before); /* nobody reads the last panels */
    int64_t unit;
    while ((unit = bn_draw(round->unit_shares, round->units, me, threads)) >= 0) {
        TYPE(pack_unit)(plan, round, unit, packed);
        bn_progress_add(&plan->packed_units);
    }
    bn_progress_wait(&plan->packed_units, round->units_before + round->units);
}

static void TYPE(multiply_round)(TYPE(plan) * plan, const TYPE(round) * round, const REAL *packed,
                                 const TYPE(scratch) * scratch, int me, int threads)
{
    int64_t mine = bn_draw(round->task_shares, round->tasks, me, threads);
    while (mine >= 0) {
        /* The next task is drawn early, so that its operand can be fetched ahead. */
        const int64_t next = bn_draw(round->task_shares, round->tasks, me, threads);
        const TYPE(task) task = TYPE(task_at)(plan, round, mine, packed);
        const TYPE(task) after = TYPE(task_at)(plan, round, next < 0 ? mine : next, packed);
        TYPE(multiply_task)(plan, &task, &after, scratch);
        bn_progress_add(&plan->finished_tasks);
        mine = next;
    }
}

/* Every thread runs this. There is no barrier: a thread waits only for work that others have begun,
 * never for a thread that has not been given a core yet. */
static void TYPE(work)(void *shared, int me, int threads)
{
    TYPE(plan) *plan = shared;
    REAL *memory = bn_scratch_take(TYPE(divide_scratch)(plan, 0, 0));
    TYPE(scratch) scratch;
    TYPE(divide_scratch)(plan, memory, &scratch);
    REAL *packed = plan->share_v == BN_BY_ALL ? plan->packed : scratch.panels;
    TYPE(round) round = {0};
    int64_t number = 0;
    for (int64_t batch0 = 0; batch0 < plan->nb0 * plan->nb1; batch0 += plan->round_batches)
        for (int64_t v0 = 0; v0 < plan->v_len; v0 += plan->round_v) {
            round = TYPE(round_at)(plan, number++, &round, batch0, v0, threads);
            TYPE(pack_round)(plan, &round, packed, me, threads);
            TYPE(multiply_round)(plan, &round, packed, &scratch, me, threads);
        }
    bn_scratch_give(memory);
}

/* ------------------------------------------------------------------ choosing the roles */

BN_INLINE int TYPE(way_to_read)(const bn_operand *s)
{
#ifdef BN_MULTIPLY_BY_LANE
    (void)s;
    return BN_PACK;
#else
    if (s->dtype == DTYPE && s->k == 1) return BN_BY_ROW;
    if (s->dtype == DTYPE && s->row == 1) return BN_BY_COLUMN;
    return s->row == 1 && s->k != 1 ? BN_PACK : BN_COPY_ROWS;
#endif
}

/* Rough cost per step of k, in multiply-adds, of one assignment of roles: lanes multiplied in vain
 * count, and so does packing, about as much as that many multiply-adds take. */
BN_INLINE double TYPE(role_cost)(const bn_operand *s, int64_t s_len, const bn_operand *v,
                                 int64_t v_len)
{
    const double copying = 12, transposing = 24;
    const int way = TYPE(way_to_read)(s);
    const double pack_v = (double)v_len * (v->row == 1 ? copying : transposing);
    /* Read by column, s comes slowly too: every step of k lies in another page. */
    const double copy_s =
        way == BN_BY_ROW ? 0 : (double)s_len * copying * (double)bn_ceil_div(v_len, BN_V_CHUNK);
    return (double)s_len * (double)bn_round_up(v_len, LANES) + pack_v + copy_s;
}

/* Who packs v. Where s is one chunk, no two tasks share any of v: packed by its task, it never leaves
 * the cache. That is for contiguous rows, which are copied at the speed of reading them. With few
 * threads, packing all of v once each takes less time than fetching what the other threads packed
 * from their caches: that takes about as long as multiplying 200 rows. */
BN_INLINE int TYPE(way_to_share)(const TYPE(plan) * plan, int threads)
{
    const int64_t bytes = TYPE(panels)(plan->v_len) * PANEL * plan->k * (int64_t)sizeof(REAL);
    if (plan->v.row == 1 && plan->v.k != 1 && plan->s_len <= BN_ONE_CHUNK) return BN_BY_TASK;
    if (threads > 1 && plan->nb0 * plan->nb1 == 1 && bytes <= BN_OWN_BYTES && plan->s_len >= 200 * threads)
        return BN_BY_THREAD;
    return BN_BY_ALL;
}

static void TYPE(choose_chunks)(TYPE(plan) * plan, int threads)
{
    const int64_t batches = plan->nb0 * plan->nb1, panels = TYPE(panels)(plan->v_len);
    /* Enough tasks that an uneven last one costs little, but no thinner than a register tile. Fewer
     * where v is so large that it comes from memory again for each task. */
    const int64_t v_bytes = plan->v_len * plan->k * (int64_t)sizeof(REAL);
    const int64_t for_each = v_bytes <= BN_OWN_BYTES ? 8 : 2;
    const int64_t wanted = threads == 1 ? 1 : bn_ceil_div(for_each * threads, batches);
    plan->share_v = TYPE(way_to_share)(plan, threads);
    if (plan->share_v == BN_BY_TASK) {
        plan->s_chunk = bn_round_up(plan->s_len, TILE_ROWS);
        plan->v_chunk = bn_min(BN_V_CHUNK / PANEL, bn_ceil_div(panels, wanted)) * PANEL;
        plan->round_v = plan->v_len, plan->round_batches = batches;
        return;
    }
    const int64_t panel_bytes = plan->k * PANEL * (int64_t)sizeof(REAL);
    const int64_t affordable = bn_max(1, BN_PACKED_BYTES / panel_bytes);
    const int64_t chunk_panels = bn_min(bn_min(BN_V_CHUNK / PANEL, panels), affordable);
    plan->v_chunk = chunk_panels * PANEL;
    const int64_t s_wanted = bn_ceil_div(wanted, bn_ceil_div(panels, chunk_panels));
    plan->s_chunk =
        bn_min(BN_S_CHUNK, bn_round_up(bn_ceil_div(plan->s_len, s_wanted), TILE_ROWS));
    const int all = panels <= affordable;
    plan->round_v = all ? plan->v_len : affordable / chunk_panels * plan->v_chunk;
    plan->round_batches = all ? bn_min(batches, affordable / panels) : 1;
}

static void TYPE(run_plan)(TYPE(plan) * plan, int threads)
{
    TYPE(choose_chunks)(plan, threads);
    const int64_t rounds = bn_ceil_div(plan->nb0 * plan->nb1, plan->round_batches) *
                           bn_ceil_div(plan->v_len, plan->round_v);
    const size_t shares = (size_t)(2 * rounds * threads) * sizeof(bn_share);
    plan->shares = bn_scratch_take(shares);
    __builtin_memset(plan->shares, 0, shares);
    if (plan->share_v == BN_BY_ALL)
        plan->packed = bn_scratch_take((size_t)TYPE(packed_size)(plan) * sizeof(REAL));
    bn_run(TYPE(work), plan, threads);
    if (plan->share_v == BN_BY_ALL) bn_scratch_give(plan->packed);
    bn_scratch_give(plan->shares);
}
