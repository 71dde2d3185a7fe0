static BN_NOINLINE void layer_norm(const float *restrict p0, float *restrict p1, const float *restrict p2, float *restrict p3)
{
    for (int64_t x0 = 0; x0 < 10; x0++) {
        float v1 = 0x1.4000000000000p+5f;
        float v8 = 0x1.4f8b588e368f1p-17f;
        float v2 = 0;
#pragma omp simd reduction(+:v2)
        for (int64_t x1 = 0; x1 < 40; x1++) {
            float v0 = p0[(40*x0 + x1)];
            v2 = (v2 + v0);
        }
        float v3 = (v2 / v1);
        p1[x0] = v3;
        float v6 = 0;
#pragma omp simd reduction(+:v6)
        for (int64_t x1 = 0; x1 < 40; x1++) {
            float v0 = p0[(40*x0 + x1)];
            float v4 = (v0 - v3);
            float v5 = (v4 * v4);
            v6 = (v6 + v5);
        }
        float v7 = (v6 / v1);
        float v9 = (v7 + v8);
        float v10 = (1 / __builtin_sqrtf(v9));
#pragma omp simd
        for (int64_t x1 = 0; x1 < 40; x1++) {
            float v0 = p0[(40*x0 + x1)];
            float v4 = (v0 - v3);
            float v11 = (v4 * v10);
            float v12 = p2[x1];
            float v13 = (v11 * v12);
            p3[(40*x0 + x1)] = v13;
        }
    }
}
