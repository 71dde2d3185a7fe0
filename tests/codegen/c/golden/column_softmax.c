static BN_NOINLINE void column_softmax(const float *restrict p0, const float *restrict p1, float *restrict p2, float *restrict p3)
{
#pragma omp parallel for schedule(static)
    for (int64_t strip = 0; strip < 100; strip += 64) {
        int64_t width = bn_min_i64(64, 100 - strip);
        float w1[64] BN_ALIGN;
        float w4[64] BN_ALIGN;
        float w7[64] BN_ALIGN;
#pragma omp simd
        for (int64_t l = 0; l < width; l++) {
            float v7 = p0[(strip + l)];
            w7[l] = v7;
        }
        for (int64_t l = 0; l < width; l++) w1[l] = (-BN_INF);
        for (int64_t x0 = 0; x0 < 9; x0++) {
#pragma omp simd
            for (int64_t l = 0; l < width; l++) {
                float v0 = p1[(100*x0 + (strip + l))];
                w1[l] = ((v0 > w1[l] || v0 != v0) ? v0 : w1[l]);
            }
        }
        for (int64_t l = 0; l < width; l++) w4[l] = 0;
        for (int64_t x0 = 0; x0 < 9; x0++) {
#pragma omp simd
            for (int64_t l = 0; l < width; l++) {
                float v0 = p1[(100*x0 + (strip + l))];
                float v2 = (v0 - w1[l]);
                float v3 = bn_expf(v2);
                w4[l] = (w4[l] + v3);
            }
        }
#pragma omp simd
        for (int64_t l = 0; l < width; l++) {
            float v8 = (w4[l] * w7[l]);
            float v9 = bn_logf(v8);
            p2[(strip + l)] = v9;
        }
        for (int64_t x0 = 0; x0 < 9; x0++) {
#pragma omp simd
            for (int64_t l = 0; l < width; l++) {
                float v0 = p1[(100*x0 + (strip + l))];
                float v2 = (v0 - w1[l]);
                float v3 = bn_expf(v2);
                float v5 = (v3 / w4[l]);
                p3[(100*x0 + (strip + l))] = v5;
            }
        }
    }
}
