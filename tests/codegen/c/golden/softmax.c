static BN_NOINLINE void softmax(const float *restrict p0, float *restrict p1)
{
    for (int64_t x0 = 0; x0 < 12; x0++) {
        float t3[50] BN_ALIGN;
        float v1 = (-BN_INF);
#pragma omp simd reduction(bn_max_f32:v1)
        for (int64_t x1 = 0; x1 < 50; x1++) {
            float v0 = p0[(50*x0 + x1)];
            v1 = ((v0 > v1 || v0 != v0) ? v0 : v1);
        }
        float v4 = 0;
#pragma omp simd reduction(+:v4)
        for (int64_t x1 = 0; x1 < 50; x1++) {
            float v0 = p0[(50*x0 + x1)];
            float v2 = (v0 - v1);
            float v3 = bn_expf(v2);
            t3[x1] = v3;
            v4 = (v4 + v3);
        }
#pragma omp simd
        for (int64_t x1 = 0; x1 < 50; x1++) {
            float v5 = (t3[x1] / v4);
            p1[(50*x0 + x1)] = v5;
        }
    }
}
