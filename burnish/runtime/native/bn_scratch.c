/* Scratch memory for packed panels and tiles.
 *
 * malloc alone would hand large blocks back to the kernel and pay for their page faults again on
 * every call; thread-local buffers would outlive their threads. So freed buffers wait in a fixed
 * number of slots that any thread may take from: what is kept is bounded by the slots, and no lock
 * is ever held. Two sizes are kept apart, lest every thread's small scratch grow to the largest
 * panel buffer it once met. */
#include "bn_simd.h"

extern void *malloc(size_t);
extern void free(void *);
extern void abort(void);

#define SMALL_SLOTS 128
#define LARGE_SLOTS 16
#define SMALL_BYTES ((size_t)1024 << 10)
#define LARGEST_KEPT ((size_t)32 << 20)

typedef struct {
    void *allocation;
    size_t bytes;
} header; /* lives in the 64 bytes in front of the buffer */

static void *small_slots[SMALL_SLOTS];
static void *large_slots[LARGE_SLOTS];

BN_INLINE header *header_of(void *buffer) { return (header *)((char *)buffer - 64); }

/* Threads start their search at different slots, so that they rarely meet. */
BN_INLINE int first_slot(int slots)
{
#ifdef _OPENMP
    return omp_get_thread_num() % slots;
#else
    (void)slots;
    return 0;
#endif
}

static void *allocate(size_t bytes)
{
    char *allocation = malloc(bytes + 128);
    if (!allocation) abort(); /* nobody above could do better: there is no place for the result */
    char *buffer = (char *)(((uintptr_t)allocation + 127) & ~(uintptr_t)63);
    header_of(buffer)->allocation = allocation;
    header_of(buffer)->bytes = bytes;
    return buffer;
}

void *bn_scratch_take(size_t bytes)
{
    int is_small = bytes <= SMALL_BYTES;
    void **slots = is_small ? small_slots : large_slots;
    int count = is_small ? SMALL_SLOTS : LARGE_SLOTS, start = first_slot(count);
    for (int i = 0; i < count; i++) {
        void **slot = &slots[(start + i) % count];
        if (!__atomic_load_n(slot, __ATOMIC_RELAXED)) continue;
        void *buffer = __atomic_exchange_n(slot, (void *)0, __ATOMIC_ACQUIRE);
        if (!buffer) continue;
        if (header_of(buffer)->bytes >= bytes) return buffer;
        free(header_of(buffer)->allocation); /* replaced by a larger one, not kept beside it */
        break;
    }
    return allocate(is_small ? SMALL_BYTES : bytes);
}

void bn_scratch_give(void *buffer)
{
    size_t bytes = header_of(buffer)->bytes;
    void **slots = bytes == SMALL_BYTES ? small_slots : large_slots;
    int count = bytes == SMALL_BYTES ? SMALL_SLOTS : LARGE_SLOTS, start = first_slot(count);
    for (int i = 0; i < count && bytes <= LARGEST_KEPT; i++) {
        void *empty = 0;
        if (__atomic_compare_exchange_n(&slots[(start + i) % count], &empty, buffer, 0,
                                        __ATOMIC_RELEASE, __ATOMIC_RELAXED))
            return;
    }
    free(header_of(buffer)->allocation);
}
