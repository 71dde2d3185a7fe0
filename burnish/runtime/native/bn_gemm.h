/* What products of both precisions have in common. */
#ifndef BN_GEMM_H
#define BN_GEMM_H

#include "bn_stream.h"
#include "bn_tile.h"

/* Depth of a slab of k: a block of the broadcast operand this deep stays in the first-level cache, a
 * task's panels in the second-level cache. Machines with AVX-512 have larger ones of both. */
#if defined(__AVX512F__)
#define BN_SLAB_BYTES 3072
#else
#define BN_SLAB_BYTES 1536
#endif
/* What one task multiplies: rows of the broadcast operand and of the packed one. */
#define BN_S_CHUNK 192
#define BN_V_CHUNK 192
/* A transposed tile on its way to the epilogue: its columns are a multiple of every TILE_ROWS, and
 * in all it is a small part of a first-level cache. */
#define BN_DELIVER_ROWS 64
#define BN_DELIVER_COLUMNS 48
/* Up to this many rows of the broadcast operand may be one chunk. */
#define BN_ONE_CHUNK 192
/* The most a thread packs for itself alone: it must stay in the second-level cache. */
#define BN_OWN_BYTES (1 << 20)
/* Panels packed in one go: long runs of memory, but small enough tasks to share among threads. */
#define BN_PACK_PANELS 4
/* The shared packed operand: what is larger is packed in rounds. */
#define BN_PACKED_BYTES ((int64_t)16 << 20)
/* Multiplications below this many flops are over before other threads would have woken. */
#define BN_SERIAL_WORK 1e6
/* "Few" rows, and how much of the long side one task covers: a page, for the sake of operands that
 * are read across their rows. */
#define BN_FEW_MAX 8
#define BN_THIN_CHUNK_BYTES 4096
/* Long operands below this many elements are read before other threads would have woken. */
#define BN_SERIAL_ELEMENTS 48e3

/* What of a product a BLAS is asked for at once: it packs its operands anew each time, and the sums should still be in a
 * cache when the epilogue reads them, so many rows of them at a time. */
#define BN_BLAS_BYTES ((int64_t)8 << 20)
#define BN_BLAS_ROWS 192
#define BN_BLAS_CHUNK 8

/* As Fortran calls it. Libraries count in 32 bits or in 64: a number in 64 bits is read rightly by both where the low
 * half comes first. */
typedef void (*bn_blas)(const char *, const char *, const int64_t *, const int64_t *, const int64_t *, const void *,
                        const void *, const int64_t *, const void *, const int64_t *, const void *, void *,
                        const int64_t *);
extern bn_blas bn_blas_f32, bn_blas_f64; /* both are in the library of single precision */

/* How the broadcast operand is read. */
enum { BN_BY_ROW, BN_BY_COLUMN, BN_COPY_ROWS, BN_PACK };
/* Who packs the vector operand: all threads together, each thread for itself, or each task its part. */
enum { BN_BY_ALL, BN_BY_THREAD, BN_BY_TASK };

#endif
