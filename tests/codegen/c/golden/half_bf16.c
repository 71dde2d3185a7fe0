static BN_NOINLINE void half_bf16(const uint16_t *restrict p0, const uint16_t *restrict p1, uint16_t *restrict p2, float *restrict p3)
{
#pragma omp simd
    for (int64_t x0 = 0; x0 < 70; x0++) {
        float v0 = bn_bf16_to_f32(p0[x0]);
        float v1 = bn_bf16_to_f32(p1[x0]);
        float v2 = (v0 * v1);
        float v3 = (v2 + v0);
        p2[x0] = bn_f32_to_bf16(v3);
        float v5 = bn_bf16_to_f32(bn_f32_to_bf16((float)v2));
        float v6 = (v5 - v2);
        p3[x0] = v6;
    }
}
