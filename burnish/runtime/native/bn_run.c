/* The one place where threads begin. */
#include "bn_simd.h"

void bn_run(bn_work work, void *plan, int threads)
{
#ifdef _OPENMP
    if (threads > 1) {
#pragma omp parallel
        work(plan, omp_get_thread_num(), omp_get_num_threads());
        return;
    }
#endif
    (void)threads;
    work(plan, 0, 1);
}
