static BN_NOINLINE void scan_sum_f32(const float *restrict p0, float *restrict p1)
{
    for (int64_t x0 = 0; x0 < 15; x0++) {
        double a1 = 0;
        for (int64_t x1 = 0; x1 < 40; x1++) {
            float v0 = p0[(40*x0 + x1)];
            a1 = (a1 + v0);
            float v1 = a1;
            p1[(40*x0 + x1)] = v1;
        }
    }
}
