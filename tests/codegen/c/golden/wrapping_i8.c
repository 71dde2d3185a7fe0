static BN_NOINLINE void wrapping_i8(const int8_t *restrict p0, const int8_t *restrict p1, int8_t *restrict p2, uint8_t *restrict p3)
{
#pragma omp simd
    for (int64_t x0 = 0; x0 < 40; x0++) {
        int8_t v0 = p0[x0];
        int8_t v1 = p1[x0];
        int8_t v2 = (int8_t)(v0 + v1);
        int8_t v3 = (int8_t)(-v0);
        int8_t v4 = (int8_t)(v2 * v3);
        p2[x0] = v4;
        int32_t v6 = (v4 < v1);
        p3[x0] = v6;
    }
}
