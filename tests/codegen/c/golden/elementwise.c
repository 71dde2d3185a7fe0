static BN_NOINLINE void elementwise(const float *restrict p0, const float *restrict p1, float *restrict p2)
{
    float v3 = 0x1.0000000000000p-1f;
#pragma omp simd
    for (int64_t x0 = 0; x0 < 1000; x0++) {
        float v0 = p0[x0];
        float v1 = p1[x0];
        float v2 = (v0 + v1);
        float v4 = (v2 * v3);
        p2[x0] = v4;
    }
}
