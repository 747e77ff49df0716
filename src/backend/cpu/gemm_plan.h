/* gemm_plan.h - how one matrix product is divided: blocks of rows, slices of B, and who
 * computes what.
 *
 * gemm.c makes the plan; gemm_product.c follows it. */
#ifndef FV_CPU_GEMM_PLAN_H
#define FV_CPU_GEMM_PLAN_H

#include "gemm.h"
#include "parallel.h"

/* Floats between rows of sums, so that those of a tile do not fall into few sets of L1.
 * Elsewhere a tile is no higher than L1 has ways. */
#if defined(CPU_AMX)
#define GEMM_PAD 16
#else
#define GEMM_PAD 0
#endif

/* So many threads divide a product with a packed weight both ways, strips and panels, and all rows
 * are one block: at the end of each of its loops all wait for the slowest thread (in blocks of
 * 1 MiB of A, BERT-base with int8 weights on 16 threads was 1.5 times slower). */
#define MANY_THREADS 8

/* The most strips of a chunk where threads divide both ways: it bounds the sums of a thread. */
#define CHUNK_STRIPS 32

/* Scratch of a call, all of it from fv_stream_scratch (one allocation that grows and stays):
 *
 *    [ packed A ][ slices of packed B ][ slot 0: group of B, sums ][ slot 1: .. ]
 *
 * A and the slices are there once where threads share them, else once a slot.  There is no
 * packed A where tiles read A in place. */
typedef struct gemm_plan {
    const fv_gemm *g;
    const gemm_kind *kind;
    fv_dtype table;
    float alpha;
    int64_t panels;                     /* of B */
    int64_t block;                      /* rows of A packed at a time */
    int64_t strips;                     /* in the largest block */
    int group;                          /* panels at a time */
    size_t a_bytes, b_bytes, sum_bytes; /* of scratch: one team's, one thread's, one thread's */
    int64_t slice;      /* panels of B that are packed before anything else; 0: none are */
    size_t slice_bytes; /* of scratch for them */
    bool in_place;      /* tiles read A itself: it is not packed */
    bool by_rows;       /* a thread packs a block of rows for itself, then multiplies it */
    bool both_ways;     /* threads divide strips and panels (cut_for_many) */
    bool shared; /* all threads pack the slice of B, and A if it is packed, then divide both */
} gemm_plan;

/* The threads that compute a product together, and their memory; by_rows: A of slot i is a_bytes *
 * i further on.  One thread computes a whole product of a batch: then this is a slot's own. */
typedef struct gemm_team {
    fv_stream *s;
    int threads;
    char *a, *slice, *own;
    size_t own_bytes; /* from one slot's group of B and sums to the next one's */
} gemm_team;

static inline int64_t gemm_min(int64_t a, int64_t b) { return a < b ? a : b; }
static inline int64_t gemm_ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

/* Start of part i when `all` is divided into n equal parts. */
static inline int64_t gemm_part(int64_t all, int64_t i, int64_t n) { return all * i / n; }

static inline const void *gemm_at(const void *p, int64_t i, fv_dtype t)
{
    return (const char *)p + i * (int64_t)fv_dtype_size(t);
}

/* Product e of the batch. */
void NAME(gemm_product)(const gemm_plan *p, const gemm_team *t, int64_t e);

#endif
