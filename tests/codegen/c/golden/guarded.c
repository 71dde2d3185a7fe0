static BN_NOINLINE void guarded(const float *restrict p0, float *restrict p1)
{
    int64_t v1 = INT64_C(0);
    int64_t v3 = INT64_C(10);
#pragma omp simd
    for (int64_t x0 = 0; x0 < 14; x0++) {
        int64_t v0 = (int64_t)(x0 + (-2));
        int32_t v2 = (v0 >= v1);
        int32_t v4 = (v0 < v3);
        int32_t v5 = (v2 & v4);
        float v6 = (v5 ? p0[(x0 + (-2))] : (-BN_INF));
        p1[x0] = v6;
    }
}
