static BN_NOINLINE void any_size(const float *restrict p0, float *restrict p1, int64_t s0, int64_t s1)
{
#pragma omp parallel for schedule(static) if(s0*s1 > 7500)
    for (int64_t x0 = 0; x0 < s1; x0++) {
#pragma omp simd
        for (int64_t x1 = 0; x1 < s0; x1++) {
            float v0 = p0[(x1*s1 + x0)];
            int64_t v1 = (int64_t)(10*x1 + x0 + s0);
            float v2 = (float)v1;
            float v3 = (v0 + v2);
            p1[(x1 + x0*s0)] = v3;
        }
    }
}
