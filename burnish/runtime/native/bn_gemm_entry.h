/* The entry points for one element type: included by bn_gemm.c after the two ways to multiply. */

static void TYPE(deliver_zeros)(const bn_gemm_args *args, TYPE(bn_epilogue) epilogue, void *ctx)
{
    enum { ROWS = 8, COLUMNS = 128 };
    const REAL zeros[ROWS * COLUMNS] __attribute__((aligned(64))) = {0};
    for (int64_t b0 = 0; b0 < args->nb0; b0++)
        for (int64_t b1 = 0; b1 < args->nb1; b1++)
            for (int64_t m = 0; m < args->m; m += ROWS)
                for (int64_t n = 0; n < args->n; n += COLUMNS)
                    epilogue(ctx, b0, b1, m, bn_min(args->m, m + ROWS), n,
                             bn_min(args->n, n + COLUMNS), zeros, COLUMNS);
}

static void TYPE(multiply_thin)(const bn_gemm_args *args, const bn_operand *few,
                                const bn_operand *many, int many_is_n, TYPE(bn_epilogue) epilogue,
                                void *ctx)
{
    TYPE(thin) thin = {
        .few = *few, .many = *many, .k = args->k, .nb0 = args->nb0, .nb1 = args->nb1,
        .many_is_n = many_is_n, .epilogue = epilogue, .ctx = ctx,
        .few_len = many_is_n ? args->m : args->n, .many_len = many_is_n ? args->n : args->m,
    };
    thin.few_batch[0] = many_is_n ? args->sa0 : args->sb0;
    thin.few_batch[1] = many_is_n ? args->sa1 : args->sb1;
    thin.many_batch[0] = many_is_n ? args->sb0 : args->sa0;
    thin.many_batch[1] = many_is_n ? args->sb1 : args->sa1;
    TYPE(run_thin)(&thin);
}

static void TYPE(multiply_packed)(const bn_gemm_args *args, const bn_operand *a,
                                  const bn_operand *b, TYPE(bn_epilogue) epilogue, void *ctx)
{
    const double straight = TYPE(role_cost)(a, args->m, b, args->n);
    const double swapped = TYPE(role_cost)(b, args->n, a, args->m);
    TYPE(plan) plan = {
        .nb0 = args->nb0, .nb1 = args->nb1, .k = args->k, .epilogue = epilogue, .ctx = ctx,
        .swapped = swapped < straight,
    };
    plan.s = plan.swapped ? *b : *a, plan.s_len = plan.swapped ? args->n : args->m;
    plan.v = plan.swapped ? *a : *b, plan.v_len = plan.swapped ? args->m : args->n;
    plan.s_batch[0] = plan.swapped ? args->sb0 : args->sa0;
    plan.s_batch[1] = plan.swapped ? args->sb1 : args->sa1;
    plan.v_batch[0] = plan.swapped ? args->sa0 : args->sb0;
    plan.v_batch[1] = plan.swapped ? args->sa1 : args->sb1;
    plan.read_s = TYPE(way_to_read)(&plan.s);
    const double work = 2.0 * (double)(args->nb0 * args->nb1) * (double)args->m * (double)args->n *
                        (double)args->k;
    TYPE(run_plan)(&plan, work < BN_SERIAL_WORK ? 1 : bn_threads());
}

void TYPE(bn_gemm)(const bn_gemm_args *args, TYPE(bn_epilogue) epilogue, void *ctx)
{
    if (args->m <= 0 || args->n <= 0 || args->nb0 <= 0 || args->nb1 <= 0) return;
    if (args->k <= 0) {
        TYPE(deliver_zeros)(args, epilogue, ctx);
        return;
    }
    const int32_t bytes_a = (int32_t)bn_element_bytes(args->dtype_a);
    const int32_t bytes_b = (int32_t)bn_element_bytes(args->dtype_b);
    const bn_operand a = {args->a, args->sam, args->sak, args->dtype_a, bytes_a};
    const bn_operand b = {args->b, args->sbn, args->sbk, args->dtype_b, bytes_b};
    if (TYPE(is_thin)(&b, args->m, args->n))
        TYPE(multiply_thin)(args, &a, &b, 1, epilogue, ctx);
    else if (TYPE(is_thin)(&a, args->n, args->m))
        TYPE(multiply_thin)(args, &b, &a, 0, epilogue, ctx);
    else if (TYPE(blas_multiplies)(args, &a, &b))
        TYPE(multiply_by_blas)(args, &a, &b, epilogue, ctx);
    else
        TYPE(multiply_packed)(args, &a, &b, epilogue, ctx);
}

void TYPE(bn_store)(void *ctx, int64_t b0, int64_t b1, int64_t m0, int64_t m1, int64_t n0, int64_t n1,
                    const REAL *tile, int64_t ld)
{
    const bn_store *to = ctx;
    const int64_t bytes = bn_element_bytes(to->dtype);
    char *c = (char *)to->c + (b0 * to->sc0 + b1 * to->sc1 + n0 * to->scn) * bytes;
    const int64_t ahead = bytes * (n1 - n0 > BN_DELIVER_COLUMNS ? (m1 - m0) * to->scm : n1 - n0);
    for (int64_t m = m0; m < m1; m++, tile += ld) {
        char *row = c + m * to->scm * bytes;
        int64_t n = 0;
        /* Rows are short: copied here rather than by a call for each. What the next tile will be
         * stored to is brought into the cache by then. */
        if (to->dtype == DTYPE && to->scn == 1)
            for (; n + LANES <= n1 - n0; n += LANES) {
                __builtin_prefetch(row + n * bytes + ahead, 1);
                *(TYPE(bn_unaligned) *)(row + n * bytes) = *(const TYPE(bn_unaligned) *)(tile + n);
            }
        if (n < n1 - n0)
            TYPE(bn_narrow)(row + n * to->scn * bytes, to->dtype, to->scn, tile + n, n1 - n0 - n);
    }
}
