static BN_NOINLINE void scatter_add_f32_rows(const int64_t *restrict p0, const float *restrict p1, float *restrict p2, int64_t *error)
{
    for (int64_t x0 = 0; x0 < 30; x0++) {
        int64_t v0 = p0[x0];
        int64_t v1 = bn_checked(v0, 5, BN_INDEX_OUT_OF_RANGE, error);
#pragma omp simd
        for (int64_t x1 = 0; x1 < 8; x1++) {
            float v2 = p1[(8*x0 + x1)];
            if ((uint64_t)v0 < (uint64_t)5) p2[(8*v1 + x1)] = (p2[(8*v1 + x1)] + v2);
        }
    }
}
