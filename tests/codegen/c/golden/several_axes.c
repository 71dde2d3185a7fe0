static BN_NOINLINE void several_axes(const float *restrict p0, float *restrict p1, float *restrict p2)
{
    for (int64_t x0 = 0; x0 < 5; x0++) {
        for (int64_t strip = 0; strip < 7; strip += 64) {
            int64_t width = bn_min_i64(64, 7 - strip);
            float w1[64] BN_ALIGN;
            float w3[64] BN_ALIGN;
            for (int64_t l = 0; l < width; l++) w1[l] = 0;
            for (int64_t l = 0; l < width; l++) w3[l] = (-BN_INF);
            for (int64_t x1 = 0; x1 < 3; x1++) {
                for (int64_t x2 = 0; x2 < 4; x2++) {
#pragma omp simd
                    for (int64_t l = 0; l < width; l++) {
                        float v0 = p0[(140*x1 + 28*x0 + 7*x2 + (strip + l))];
                        w1[l] = (w1[l] + v0);
                        w3[l] = ((v0 > w3[l] || v0 != v0) ? v0 : w3[l]);
                    }
                }
            }
#pragma omp simd
            for (int64_t l = 0; l < width; l++) {
                p1[(7*x0 + (strip + l))] = w1[l];
                p2[(7*x0 + (strip + l))] = w3[l];
            }
        }
    }
}
