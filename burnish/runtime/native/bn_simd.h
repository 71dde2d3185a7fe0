/* Vector width, shuffles and dtype widening shared by the runtime's C files.
 *
 * Everything is written with the compiler's vector extensions, so one source serves AVX-512, AVX2
 * and NEON; only the width and the shape of the GEMM tile differ between them.
 */
#ifndef BN_SIMD_H
#define BN_SIMD_H

#include "bn_math.h"
#include "bn_runtime.h"

/* Shared by the runtime's own files but not exported: calls need no indirection. */
#define BN_HIDDEN __attribute__((visibility("hidden")))
#define BN_INLINE static inline __attribute__((always_inline))

/* BN_LANES must be plain numbers: they are pasted into macro names below.
 * BN_TILE_ROWS x BN_TILE_VECS accumulators, the vectors they multiply and one broadcast value must
 * fit the register file: 24+2+1 of 32, 12+2+1 of 16, 24+3+2 of 32. */
#if defined(__AVX512F__)
#define BN_VECTOR_BYTES 64
#define BN_LANES_F32 16
#define BN_LANES_F64 8
#define BN_TILE_ROWS 12
#define BN_TILE_VECS 2
#elif defined(__AVX2__)
#define BN_VECTOR_BYTES 32
#define BN_LANES_F32 8
#define BN_LANES_F64 4
#define BN_TILE_ROWS 6
#define BN_TILE_VECS 2
#else
#define BN_VECTOR_BYTES 16
#define BN_LANES_F32 4
#define BN_LANES_F64 2
#if defined(__ARM_NEON)
#define BN_TILE_ROWS 8
#define BN_TILE_VECS 3
/* NEON multiplies by one lane of a register for free but has no broadcast-from-memory multiply,
 * so there the broadcast operand pays for being packed. */
#define BN_MULTIPLY_BY_LANE 1
#else
#define BN_TILE_ROWS 4
#define BN_TILE_VECS 2
#endif
#endif

/* Loads and stores go through types that promise neither alignment nor a unique type. */
typedef float bn_vector_f32 __attribute__((vector_size(BN_VECTOR_BYTES)));
typedef float bn_unaligned_f32 __attribute__((vector_size(BN_VECTOR_BYTES), aligned(4), may_alias));
typedef double bn_vector_f64 __attribute__((vector_size(BN_VECTOR_BYTES)));
typedef double bn_unaligned_f64 __attribute__((vector_size(BN_VECTOR_BYTES), aligned(8), may_alias));
typedef uint32_t bn_vector_u32 __attribute__((vector_size(BN_VECTOR_BYTES)));
typedef uint16_t bn_unaligned_u16
    __attribute__((vector_size(BN_VECTOR_BYTES / 2), aligned(2), may_alias));

/* clang never had __builtin_shuffle; gcc has __builtin_shufflevector since 12. */
#if defined(__clang__) || __GNUC__ >= 12
#define BN_SHUFFLE(lane, x, y, ...) __builtin_shufflevector(x, y, __VA_ARGS__)
#else
typedef int32_t bn_mask32 __attribute__((vector_size(BN_VECTOR_BYTES)));
typedef int64_t bn_mask64 __attribute__((vector_size(BN_VECTOR_BYTES)));
#define BN_SHUFFLE(lane, x, y, ...) __builtin_shuffle(x, y, (bn_mask##lane){__VA_ARGS__})
#endif

/* Lane lists: BN_LIST_16(f, s) is f(0,s,16), f(1,s,16), ... f(15,s,16). */
#define BN_LIST_2(f, s) f(0, s, 2), f(1, s, 2)
#define BN_LIST_4(f, s) f(0, s, 4), f(1, s, 4), f(2, s, 4), f(3, s, 4)
#define BN_LIST_8(f, s)                                                                            \
    f(0, s, 8), f(1, s, 8), f(2, s, 8), f(3, s, 8), f(4, s, 8), f(5, s, 8), f(6, s, 8), f(7, s, 8)
#define BN_LIST_16(f, s)                                                                           \
    f(0, s, 16), f(1, s, 16), f(2, s, 16), f(3, s, 16), f(4, s, 16), f(5, s, 16), f(6, s, 16),     \
        f(7, s, 16), f(8, s, 16), f(9, s, 16), f(10, s, 16), f(11, s, 16), f(12, s, 16),           \
        f(13, s, 16), f(14, s, 16), f(15, s, 16)

#define BN_PASTE_LIST(lanes, f, s) BN_PASTE_LIST_(lanes, f, s)
#define BN_PASTE_LIST_(lanes, f, s) BN_LIST_##lanes(f, s)

/* One step of a transpose exchanges, between rows i and i+s, the lanes that differ in bit s. */
#define BN_LANE_LOW(j, s, lanes) (((j) & (s)) ? (lanes) + (j) - (s) : (j))
#define BN_LANE_HIGH(j, s, lanes) (((j) & (s)) ? (lanes) + (j) : (j) + (s))
/* One step of a horizontal sum adds the lane that differs in bit s. */
#define BN_LANE_FLIP(j, s, lanes) ((j) ^ (s))

/* ------------------------------------------------------------------ widening to f32 */

/* One vector of f32 from memory of the given dtype, which is a constant at every call. */
BN_INLINE bn_vector_f32 bn_load_as_f32(const void *p, const int32_t dtype)
{
    if (dtype == BN_F32) return *(const bn_unaligned_f32 *)p;
    const bn_vector_u32 u = __builtin_convertvector(*(const bn_unaligned_u16 *)p, bn_vector_u32);
    if (dtype == BN_BF16) return (bn_vector_f32)(u << 16);
    /* f16: bn_f16_to_f32 of bn_math.h, with masks for its conditions */
    const bn_vector_u32 magnitude = u & 0x7fffu, normal = (magnitude << 13) + (112u << 23);
    const bn_vector_f32 tiny = (bn_vector_f32)(magnitude + 0x3f000000u) - 0.5f;
    const bn_vector_u32 is_tiny = (bn_vector_u32)(magnitude < 0x400u);
    const bn_vector_u32 is_special = (bn_vector_u32)(magnitude >= 0x7c00u);
    const bn_vector_u32 bits = normal + (is_special & (112u << 23));
    const bn_vector_u32 sign = (u & 0x8000u) << 16;
    return (bn_vector_f32)((((bn_vector_u32)tiny & is_tiny) | (bits & ~is_tiny)) | sign);
}

BN_INLINE bn_vector_f64 bn_load_as_f64(const void *p, const int32_t dtype)
{
    (void)dtype;
    return *(const bn_unaligned_f64 *)p;
}

/* n elements of the given dtype and stride into contiguous f32, and back. In bn_convert.c: one copy
 * of these loops for the whole library. */
BN_HIDDEN void bn_widen_f32(float *dst, const void *src, int32_t dtype, int64_t stride, int64_t n);
BN_HIDDEN void bn_narrow_f32(void *dst, int32_t dtype, int64_t stride, const float *src, int64_t n);
/* The same for f64, which is never converted, only gathered or scattered. */
BN_HIDDEN void bn_widen_f64(double *dst, const void *src, int32_t dtype, int64_t stride, int64_t n);
BN_HIDDEN void bn_narrow_f64(void *dst, int32_t dtype, int64_t stride, const double *src, int64_t n);

BN_INLINE int64_t bn_element_bytes(int32_t dtype)
{
    return dtype == BN_F64 ? 8 : dtype == BN_F32 ? 4 : dtype == BN_BOOL ? 1 : 2;
}

/* ------------------------------------------------------------------ operands */

/* One matrix of a contraction: element (i, j) at base + (i*row + j*k) elements of the given dtype. */
typedef struct {
    const char *base;
    int64_t row, k;
    int32_t dtype, bytes;
} bn_operand;

BN_INLINE const void *bn_at(const bn_operand *x, int64_t row, int64_t k)
{
    return x->base + (row * x->row + k * x->k) * x->bytes;
}

BN_INLINE bn_operand bn_batch_of(const bn_operand *x, const int64_t stride[2], int64_t b0, int64_t b1)
{
    bn_operand y = *x;
    y.base += (b0 * stride[0] + b1 * stride[1]) * x->bytes;
    return y;
}

/* ------------------------------------------------------------------ threads and scratch */

#ifdef _OPENMP
/* omp.h costs more to parse than the files that would include it. */
extern int omp_get_max_threads(void);
extern int omp_get_num_threads(void);
extern int omp_get_thread_num(void);
extern int omp_in_parallel(void);
/* Only one level of threads: inside another parallel region everything runs serially. */
BN_INLINE int bn_threads(void) { return omp_in_parallel() ? 1 : omp_get_max_threads(); }
#else
BN_INLINE int bn_threads(void) { return 1; }
#endif

/* Numbered tasks. Each thread has a share of them, always the same one for the same number of
 * tasks, so that what it wrote in one call is still in its cache in the next; a thread that has
 * finished its own share helps with the others'. */
typedef struct {
    int64_t taken __attribute__((aligned(64)));
} bn_share;

/* The next task for thread `me`, or -1 when all are taken. */
BN_INLINE int64_t bn_draw(bn_share *shares, int64_t tasks, int me, int threads)
{
    for (int i = 0; i < threads; i++) {
        const int owner = (me + i) % threads;
        const int64_t first = tasks * owner / threads, count = tasks * (owner + 1) / threads - first;
        if (__atomic_load_n(&shares[owner].taken, __ATOMIC_RELAXED) >= count) continue;
        const int64_t task = __atomic_fetch_add(&shares[owner].taken, 1, __ATOMIC_RELAXED);
        if (task < count) return first + task;
    }
    return -1;
}

/* How many tasks are done, and waiting until `count` are. Waiting usually takes microseconds, so it
 * spins at first; a thread that lost its core in the middle of a task may take much longer. */
typedef struct {
    int64_t done __attribute__((aligned(64)));
} bn_progress;

extern int sched_yield(void);

BN_INLINE void bn_progress_add(bn_progress *progress)
{
    __atomic_fetch_add(&progress->done, 1, __ATOMIC_RELEASE);
}

BN_INLINE void bn_progress_wait(bn_progress *progress, int64_t count)
{
    for (int spins = 0; __atomic_load_n(&progress->done, __ATOMIC_ACQUIRE) < count; spins++)
        if (spins > 2000) sched_yield();
}

/* Runs work(plan, thread, threads) on that many threads at most, this one among them. */
typedef void (*bn_work)(void *plan, int thread, int threads);
void bn_run(bn_work work, void *plan, int threads);

/* A rectangle of memory to be brought into the cache while something else is being computed: the
 * hardware prefetcher does not follow that many short rows. Each call of bn_fetch_some asks for the
 * next few lines. */
typedef struct {
    const char *row;
    int64_t stride; /* bytes */
    int32_t rows, lines, line, at_once;
} bn_fetch;

BN_INLINE void bn_fetch_some(bn_fetch *fetch)
{
    for (int32_t i = 0; i < fetch->at_once && fetch->rows > 0; i++) {
        __builtin_prefetch(fetch->row + 64 * (int64_t)fetch->line);
        if (++fetch->line < fetch->lines) continue;
        fetch->line = 0;
        fetch->row += fetch->stride;
        fetch->rows--;
    }
}

/* A scratch buffer of at least `bytes`, aligned to 64, from a bounded process-wide pool. */
void *bn_scratch_take(size_t bytes);
void bn_scratch_give(void *buffer);

BN_INLINE int64_t bn_min(int64_t x, int64_t y) { return x < y ? x : y; }
BN_INLINE int64_t bn_max(int64_t x, int64_t y) { return x > y ? x : y; }
BN_INLINE int64_t bn_ceil_div(int64_t x, int64_t y) { return (x + y - 1) / y; }
BN_INLINE int64_t bn_round_up(int64_t x, int64_t to) { return bn_ceil_div(x, to) * to; }

#endif
