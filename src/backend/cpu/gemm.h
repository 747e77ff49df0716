/* gemm.h - the parts of the matrix product: what a kind of product is, and the loops that drive any
 * kind.
 *
 * A kind says how a strip of A (up to mr rows) and of B (nr columns) is stored in packed memory and
 * multiplies two such panels into a tile of f32 sums.  The driver (gemm.c) knows nothing but the
 * sizes.  Panels go all along k;
 * `unit` is the size of 32 values of k and `head` that of the header before each run, so that the
 * address of any run can be computed. */
#ifndef FV_GEMM_H
#define FV_GEMM_H

#include "simd.h"

#define GEMM_UNIT 32
#define GEMM_GROUP 8         /* panels of B, or strips of A, packed at a time */
#define GEMM_WALK 4          /* the most panels of B that one tile reads side by side */
#define GEMM_EDGE 1024       /* floats in the largest tile of any kind */
#define GEMM_SMALL (1 << 18) /* multiply-adds below which one thread is faster than two */

/* A matrix to be packed: element (i,k) of a panel's strip is at p[i*ld + k] if along_k, else at
 * p[k*ld + i].
 * Packed memory, for mr rows of A and nr columns of B, of the f32 kind:
 *
 *    strip of A   [k = 0: mr values][k = 1: mr values] ... one run ... | next run
 *    panel of B   [k = 0: nr values][k = 1: nr values] ... one run ... | next run
 *
 * Both are read strictly forward by the tile, whatever the order of A and B in memory was: that
 * is why transposition is only a flag (along_k) of packing.  The scheme is that of GotoBLAS and
 * BLIS (Goto and van de Geijn, 2008), with one difference: panels of B go all along k, so that a
 * weight can be packed once, in the same layout for every number of rows. */
typedef struct gemm_src {
    const void *p;
    fv_dtype dtype;
    int64_t ld;
    bool along_k;
    int n; /* rows of A, or columns of B, that there are; the rest of the panel is padding */
} gemm_src;

/* The second factor as it came: element (k,j) is at p[j*ld + k] if tb, else at p[k*ld + j]. */
typedef struct gemm_b {
    const void *p;
    fv_dtype dtype;
    int64_t ld;
    bool tb;
    int64_t n, k;
} gemm_b;

/* One tile: c (rows, panels*nr) = alpha * (a b) + (add ? c : 0) over a run of kc values of k. */
typedef struct gemm_tile {
    const void *a, *b;
    int64_t a_stride;  /* bytes between rows of a where a is not packed; 0: it is */
    size_t b_next;     /* bytes from one panel of b to the next */
    const char *ahead; /* address to prefetch: `ahead_step` bytes for every 4 values of k */
    int64_t ahead_step;
    const char *also; /* a second one, to L2, which a kind may leave alone */
    int64_t also_step;
    /* the rows of C that the epilogue will write, for prefetching; or NULL */
    const char *out;
    int64_t out_stride, out_bytes;
    float *c;
    /* floats from one row to the next, and from the columns of one panel to those of the next */
    int64_t ldc, c_next;
    int64_t kc;
    int rows, panels;
    float alpha;
    bool add;
} gemm_tile;

/* A kind is one dtype of panels at one instruction level; to add one, write these three
 * functions. `run` fixes the rounding: the sum of a run stays in registers, and runs are added
 * to C in order. */
typedef struct gemm_kind {
    int mr, nr;
    int panels; /* of B, side by side, that a tile of mr rows takes; 0: one */
    int run;    /* values of k added up in registers: FV_GEMM_KC where the order is documented */
    bool continues; /* a run goes on from the sums of the run before, and is not added behind */
    bool in_place;  /* tiles can read rows of A that are not packed, k a multiple of GEMM_UNIT */
    size_t a_unit, b_unit; /* bytes that GEMM_UNIT values of k take in a panel */
    /* bytes before each run; a kind with heads multiplies packed weights only */
    size_t a_head, b_head;
    void (*pack_a)(void *out, const gemm_src *a, int64_t kc);
    void (*pack_b)(void *out, const gemm_src *b, int64_t kc);
    void (*tile)(const gemm_tile *t);
    /* before a thread's first tile and after its last, unless all tiles have at most plain_rows
     * rows; NULL: nothing is to be done */
    int plain_rows;
    void (*enter)(void);
    void (*leave)(void);
} gemm_kind;

static inline size_t gemm_units(int64_t k) { return (size_t)((k + GEMM_UNIT - 1) / GEMM_UNIT); }
static inline size_t gemm_runs(const gemm_kind *kind, int64_t k)
{
    return (size_t)((k + kind->run - 1) / kind->run);
}

/* Bytes of the first k values of a strip of A, and of a panel of B. */
static inline size_t gemm_a_bytes(const gemm_kind *kind, int64_t k)
{
    return gemm_units(k) * kind->a_unit + gemm_runs(kind, k) * kind->a_head;
}
static inline size_t gemm_b_bytes(const gemm_kind *kind, int64_t k)
{
    return gemm_units(k) * kind->b_unit + gemm_runs(kind, k) * kind->b_head;
}

/* Panels of B that a tile of `rows` rows processes side by side to hide latency: 1, 2 or 4.
 * rows * panels accumulators are about the same number for every tile, the most the registers
 * hold. */
static inline int gemm_walk(const gemm_kind *kind, int64_t rows)
{
    int sums = kind->panels ? kind->mr * kind->panels : kind->mr;
    return rows * 4 <= sums ? 4 : rows * 2 <= sums ? 2 : 1;
}

/* VW values from element i of f32, bf16 or f16 memory. */
ALWAYS_INLINE vf v_load_as(const void *p, int64_t i, fv_dtype t)
{
    if (t == FV_BF16) return v_load_bf16((const uint16_t *)p + i);
    if (t == FV_F16) return v_load_f16((const uint16_t *)p + i);
    return v_load((const float *)p + i);
}
ALWAYS_INLINE void v_store_as(void *p, int64_t i, fv_dtype t, vf a)
{
    if (t == FV_BF16)
        v_store_bf16((uint16_t *)p + i, a);
    else if (t == FV_F16)
        v_store_f16((uint16_t *)p + i, a);
    else
        v_store((float *)p + i, a);
}
/* The first n < VW of them; the others read as 0 and are not written. */
ALWAYS_INLINE vf v_load_as_n(const void *p, int64_t i, int64_t n, fv_dtype t)
{
    uint16_t h[VW] = {0};
    if (t == FV_F32) return v_load_n((const float *)p + i, n, 0.0f);
    for (int j = 0; j < n && j < VW; j++) h[j] = ((const uint16_t *)p)[i + j];
    return t == FV_BF16 ? v_load_bf16(h) : v_load_f16(h);
}
ALWAYS_INLINE void v_store_as_n(void *p, int64_t i, int64_t n, fv_dtype t, vf a)
{
    uint16_t h[VW] = {0};
    if (t == FV_F32) {
        v_store_n((float *)p + i, a, n);
        return;
    }
    if (t == FV_BF16)
        v_store_bf16(h, a);
    else
        v_store_f16(h, a);
    for (int j = 0; j < n && j < VW; j++) ((uint16_t *)p)[i + j] = h[j];
}

/* The kind for B held as `bt` in panels: f32, or bf16 and f16 widened on the way. */
const gemm_kind *NAME(gemm_f32)(fv_dtype bt);

/* The kind for products of bf16, or NULL where there are no instructions for it. */
const gemm_kind *NAME(gemm_bf16)(void);
/* The same with longer runs, which change no bit where alpha is 1; NULL: none. */
const gemm_kind *NAME(gemm_bf16_long)(void);

/* The kind for B held as FV_Q8, FV_Q4 or FV_I8. */
const gemm_kind *NAME(gemm_int8)(fv_dtype bt);

/* The whole product, where rows are few and B is packed; false if it is not such a one.  And the
 * fused_linear kernel of a decode step. */
bool NAME(gemm_few)(fv_stream *s, const fv_gemm *g, fv_dtype table, const gemm_kind *kind);
void NAME(gemm_few_rows)(fv_kernels *k);

/* The same where B is bf16 that is not packed, and all the rest is f32. */
bool NAME(gemm_stored)(fv_stream *s, const fv_gemm *g, fv_dtype table, const gemm_kind *kind);

/* The same where all is f32. */
bool NAME(gemm_direct)(fv_stream *s, const fv_gemm *g, fv_dtype table);

/* And where rows are some hundreds, the weight (N,K). */
bool NAME(gemm_swapped)(fv_stream *s, const fv_gemm *g, fv_dtype table);

/* One run of k of panels j0..j1 of B, `next` bytes apart. */
void NAME(gemm_pack_run)(const gemm_kind *kind, char *out, size_t next, const gemm_b *b, int64_t j0,
                         int64_t j1, int64_t k, int64_t kc);

/* All panels of B, all along k, one after another: pieces from..to of this many. */
int64_t NAME(gemm_pack_pieces)(const gemm_kind *kind, const gemm_b *b);
void NAME(gemm_pack_panels)(const gemm_kind *kind, char *out, const gemm_b *b, int64_t from,
                            int64_t to);

/* The kind for weights packed as dt, or NULL; and the kernels that pack them. */
const gemm_kind *NAME(gemm_packed)(fv_dtype dt);
void NAME(gemm_panels)(fv_kernels *k);

/* A strip of floats of any dtype as f32 panel of `width` per k; round: to bf16 first. */
void NAME(gemm_pack)(float *out, int width, const gemm_src *s, int64_t kc, bool round);

/* The last step for a block of C: c = act(sum + bias); pointers are at the block's first
 * element. */
typedef struct gemm_end {
    float *sum; /* may be c itself */
    int64_t ld_sum, ldc, rows, cols;
    void *c, *pre;    /* pre or NULL */
    const void *bias; /* or NULL */
    fv_dtype table, ct;
    fv_act act;
} gemm_end;
/* Not in the tile: there it would multiply the number of kernels by that of activations and
 * dtypes. */
void NAME(gemm_finish)(const gemm_end *e);
void NAME(gemm_start)(const gemm_end *e); /* sum = c */

#endif
