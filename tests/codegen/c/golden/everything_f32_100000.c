static BN_NOINLINE void everything_f32_100000(const float *restrict p0, float *restrict p1)
{
    double d1 = 0;
    for (int64_t block = 0; block < 100000; block += 1024) {
        int64_t stop = bn_min_i64(block + 1024, 100000);
        float b1 = 0;
#pragma omp simd reduction(+:b1)
        for (int64_t x0 = block; x0 < stop; x0++) {
            float v0 = p0[x0];
            b1 = (b1 + v0);
        }
        d1 += b1;
    }
    float v1 = d1;
    p1[0] = v1;
}
