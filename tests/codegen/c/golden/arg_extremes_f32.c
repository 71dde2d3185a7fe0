static BN_NOINLINE void arg_extremes_f32(const float *restrict p0, int64_t *restrict p1, int64_t *restrict p2)
{
    for (int64_t x0 = 0; x0 < 70; x0++) {
        float m1 = (-BN_INF);
        int64_t v1 = 0;
        float m3 = BN_INF;
        int64_t v3 = 0;
        for (int64_t x1 = 0; x1 < 17; x1++) {
            float v0 = p0[(17*x0 + x1)];
            if ((m1 == m1) && (v0 > m1 || v0 != v0)) { m1 = v0; v1 = x1; }
            if ((m3 == m3) && (v0 < m3 || v0 != v0)) { m3 = v0; v3 = x1; }
        }
        p1[x0] = v1;
        p2[x0] = v3;
    }
}
