static BN_NOINLINE void broadcast(const float *restrict p0, const float *restrict p1, float *restrict p2)
{
    for (int64_t x0 = 0; x0 < 30; x0++) {
        float v0 = p0[x0];
        float v1 = bn_expf(v0);
#pragma omp simd
        for (int64_t x1 = 0; x1 < 50; x1++) {
            float v2 = p1[(50*x0 + x1)];
            float v3 = (v2 * v1);
            p2[(50*x0 + x1)] = v3;
        }
    }
}
