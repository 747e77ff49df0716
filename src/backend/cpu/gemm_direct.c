/* gemm_direct.c - one to four rows against an f32 weight that is not packed: bound by reading it.
 *
 * Packing a panel writes what was read and reads it again, for the sake of rows that are not there.
 * Here values go from memory to registers and are used up.
 *
 *    (N,K)   VW columns of C are VW rows of the weight: VW x VW values are transposed in registers,
 *            so that lanes are columns, and multiplied.  SIDE such blocks side by side hide the
 *            latency of their sums.  More of them are more streams than the hardware follows (16
 *            on Neoverse V1: 25 GB/s instead of 28; on AVX-512, where a block has 16, two of them
 *            are 5 to 12 % slower than one).  Short rows end before it follows them; but a
 *            block of them is contiguous and small, so on vectors of four lanes the next block is
 *            prefetched in the order of memory (34 to 36 GB/s).  In the order of use, or with
 *            longer rows, prefetching costs more than it brings.
 *    (K,N)   rows of the weight are read in long pieces, DEEP values of k at a time; sums of ACROSS
 *            columns stay in L1.
 *
 * Each element is summed as the tiles of gemm_f32.c do it: k in order, runs of FV_GEMM_KC, so the
 * bits are those of a packed weight. */
#include "gemm_transpose.h"
#include "parallel.h"

#define MOST_ROWS 4
#define SIDE (VW == 16 ? 1 : 2)
#define COLUMNS (SIDE * VW) /* of C at a time, (N,K) */
#define DEEP 8              /* values of k at a time, (K,N) */
#define ACROSS 512          /* columns of C at a time, (K,N) */
#define PAIR (2 * FV_GEMM_KC)
#define SHORT_ROW PAIR /* values of a row: prefetched up to here, (N,K) */

typedef struct direct {
    const fv_gemm *g;
    float alpha;
} direct;

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

/* c = alpha * sum + c, or without c; n of VW columns. */
ALWAYS_INLINE void store_sum(const direct *d, int64_t i, int64_t j, int64_t n, vf sum, bool add)
{
    float *c = (float *)d->g->c + i * d->g->ldc + j;
    if (n >= VW)
        v_store(c, v_fma(v_set1(d->alpha), sum, add ? v_load(c) : v_zero()));
    else
        v_store_n(c, v_fma(v_set1(d->alpha), sum, add ? v_load_n(c, n, 0) : v_zero()), n);
}

/* ---- (N,K) ---- */

/* VW values of k of VW columns, transposed; a column beyond n repeats the last. */
ALWAYS_INLINE void load_block(vf x[VW], const float *const *row, int64_t k, int64_t n)
{
#pragma GCC unroll 16
    for (int j = 0; j < VW; j++) x[j] = n >= VW ? v_load(row[j] + k) : v_load_n(row[j] + k, n, 0);
    transpose(x);
}

/* The values of A that a block is multiplied by.  NEON multiplies by a lane of a register;
 * elsewhere a broadcast is a load and costs nothing. */
#if defined(CPU_NEON) || defined(CPU_NEON_BF16)
typedef vf some_a;
ALWAYS_INLINE some_a load_a(const float *a, int64_t n)
{
    return n >= VW ? v_load(a) : v_load_n(a, n, 0);
}
ALWAYS_INLINE vf fma_a(vf x, some_a a, const int i, vf sum)
{
    switch (i) { /* a lane that the compiler knows */
    case 0: return vfmaq_laneq_f32(sum, x, a, 0);
    case 1: return vfmaq_laneq_f32(sum, x, a, 1);
    case 2: return vfmaq_laneq_f32(sum, x, a, 2);
    default: return vfmaq_laneq_f32(sum, x, a, 3);
    }
}
#else
typedef const float *some_a;
ALWAYS_INLINE some_a load_a(const float *a, int64_t n) { return (void)n, a; }
ALWAYS_INLINE vf fma_a(vf x, some_a a, const int i, vf sum) { return v_fma(x, v_set1(a[i]), sum); }
#endif

/* k .. k + n of block u of columns, n <= VW. */
ALWAYS_INLINE void multiply_block(vf sum[MOST_ROWS][SIDE], const int u, const some_a *a,
                                  const float *const *row, int64_t k, int64_t n, const int rows)
{
    vf x[VW];
    load_block(x, row, k, n);
#pragma GCC unroll 16
    for (int i = 0; i < VW; i++) {
        if (i >= n) break;
#pragma GCC unroll 4
        for (int r = 0; r < rows; r++) sum[r][u] = fma_a(x[i], a[r], i, sum[r][u]);
    }
}

ALWAYS_INLINE void multiply(vf sum[MOST_ROWS][SIDE], const direct *d, const float *const *row,
                            int64_t k, int64_t n, const int rows)
{
    some_a a[MOST_ROWS];
#pragma GCC unroll 4
    for (int r = 0; r < rows; r++) a[r] = load_a((const float *)d->g->a + r * d->g->lda + k, n);
#pragma GCC unroll 4
    for (int u = 0; u < SIDE; u++) multiply_block(sum, u, a, row + u * VW, k, n, rows);
}

/* Whether blocks of rows are prefetched.  What lies beyond the last block is not there, but
 * prefetching it does no harm. */
ALWAYS_INLINE bool prefetches(const fv_gemm *g, const int rows)
{
    return VW == 4 && rows == 1 && g->k <= SHORT_ROW && g->ldb == g->k;
}

/* As many values from `ahead` on as a step of COLUMNS x VW values reads. */
ALWAYS_INLINE void prefetch_step(const float *ahead)
{
    for (int i = 0; i < COLUMNS * VW; i += 64 / (int)sizeof *ahead) __builtin_prefetch(ahead + i);
}

#if VW == 4
/* Rows of two runs: VW columns of both side by side instead of COLUMNS of one.  The block is half
 * as large, and what comes next is prefetched in time. */
ALWAYS_INLINE void pair_of_runs(const direct *d, int64_t j, const float *const *row)
{
    vf sum[MOST_ROWS][SIDE] = {{v_zero(), v_zero()}}; /* SIDE is 2 */
    const float *ahead = row[0] + VW * PAIR, *a = d->g->a;
    for (int64_t k = 0; k < FV_GEMM_KC; k += VW, ahead += COLUMNS * VW) {
        prefetch_step(ahead);
        for (int u = 0; u < 2; u++) {
            int64_t at = k + u * FV_GEMM_KC;
            some_a some = load_a(a + at, VW);
            multiply_block(sum, u, &some, row, at, VW, 1);
        }
    }
    for (int u = 0; u < 2; u++) store_sum(d, 0, j, VW, sum[0][u], u > 0);
}
#endif

ALWAYS_INLINE void some_columns(const direct *d, int64_t j0, const int rows)
{
    const fv_gemm *g = d->g;
    const float *row[COLUMNS], *b = g->b;
    for (int i = 0; i < COLUMNS; i++) row[i] = b + least(j0 + i, g->n - 1) * g->ldb;
    bool prefetch = prefetches(g, rows);
#if VW == 4
    if (prefetch && g->k == PAIR && j0 + COLUMNS <= g->n) {
        for (int u = 0; u < SIDE; u++) pair_of_runs(d, j0 + u * VW, row + u * VW);
        return;
    }
#endif
    const float *ahead = row[0] + COLUMNS * g->k;
    for (int64_t k0 = 0; k0 < g->k; k0 += FV_GEMM_KC) {
        vf sum[MOST_ROWS][SIDE];
        int64_t k = k0, end = least(k0 + FV_GEMM_KC, g->k);
        for (int r = 0; r < rows; r++)
            for (int u = 0; u < SIDE; u++) sum[r][u] = v_zero();
        for (; k + VW <= end; k += VW) {
            if (prefetch) prefetch_step(ahead + k * COLUMNS);
            multiply(sum, d, row, k, VW, rows);
        }
        if (k < end) multiply(sum, d, row, k, end - k, rows);
        for (int r = 0; r < rows; r++)
            for (int u = 0; u < SIDE; u++)
                if (j0 + u * VW < g->n)
                    store_sum(d, r, j0 + u * VW, g->n - j0 - u * VW, sum[r][u], k0 > 0);
    }
}

/* ---- (K,N) ---- */

/* DEEP or fewer values of k of all columns, added to the sums in L1. */
ALWAYS_INLINE void add_deep(float *sum, const direct *d, int64_t j0, int64_t cols, int64_t k,
                            int64_t n, const int rows)
{
    const fv_gemm *g = d->g;
    const float *a = (const float *)g->a + k, *b = (const float *)g->b + k * g->ldb + j0;
    for (int64_t j = 0; j < cols; j += VW) {
        vf s[MOST_ROWS];
#pragma GCC unroll 4
        for (int r = 0; r < rows; r++) s[r] = v_load(sum + r * ACROSS + j);
#pragma GCC unroll 8
        for (int i = 0; i < DEEP; i++) {
            if (i >= n) break;
            const float *at = b + i * g->ldb + j;
            vf w = j + VW <= cols ? v_load(at) : v_load_n(at, cols - j, 0);
#pragma GCC unroll 4
            for (int r = 0; r < rows; r++) s[r] = v_fma(w, v_set1(a[r * g->lda + i]), s[r]);
        }
#pragma GCC unroll 4
        for (int r = 0; r < rows; r++) v_store(sum + r * ACROSS + j, s[r]);
    }
}

ALWAYS_INLINE void across_columns(const direct *d, int64_t j0, const int rows)
{
    const fv_gemm *g = d->g;
    float sum[MOST_ROWS * ACROSS];
    int64_t cols = least(ACROSS, g->n - j0);
    for (int64_t k0 = 0; k0 < g->k; k0 += FV_GEMM_KC) {
        int64_t k = k0, end = least(k0 + FV_GEMM_KC, g->k);
        memset(sum, 0, sizeof sum);
        for (; k + DEEP <= end; k += DEEP) add_deep(sum, d, j0, cols, k, DEEP, rows);
        if (k < end) add_deep(sum, d, j0, cols, k, end - k, rows);
        for (int r = 0; r < rows; r++)
            for (int64_t j = 0; j < cols; j += VW)
                store_sum(d, r, j0 + j, cols - j, v_load(sum + r * ACROSS + j), k0 > 0);
    }
}

/* ---- the call ---- */

ALWAYS_INLINE void blocks(const direct *d, int64_t lo, int64_t hi, const int rows)
{
    for (int64_t i = lo; i < hi; i++)
        if (d->g->tb)
            some_columns(d, i * COLUMNS, rows);
        else
            across_columns(d, i * ACROSS, rows);
}

/* Bias and activation of the columns a thread has just computed. */
static void finish_columns(const direct *d, int64_t j0, int64_t j1)
{
    const fv_gemm *g = d->g;
    gemm_end e = {.sum = (float *)g->c + j0,
                  .ld_sum = g->ldc,
                  .ldc = g->ldc,
                  .rows = g->m,
                  .cols = j1 - j0,
                  .c = (float *)g->c + j0,
                  .bias = g->bias ? (const float *)g->bias + j0 : NULL,
                  .table = FV_F32,
                  .ct = FV_F32,
                  .act = g->act};
    if (g->bias || g->act) NAME(gemm_finish)(&e);
}

static void some_blocks(void *arg, int64_t lo, int64_t hi, int slot)
{
    const direct *d = arg;
    int64_t each = d->g->tb ? COLUMNS : ACROSS;
    (void)slot;
    switch (d->g->m) {
    case 1: blocks(d, lo, hi, 1); break;
    case 2: blocks(d, lo, hi, 2); break;
    case 3: blocks(d, lo, hi, 3); break;
    default: blocks(d, lo, hi, 4); break;
    }
    finish_columns(d, lo * each, least(hi * each, d->g->n));
}

bool NAME(gemm_direct)(fv_stream *s, const fv_gemm *g, fv_dtype table)
{
    bool plain = !g->packed && !g->ta && !g->add && !g->pre && !g->plus && g->batch == 1;
    if (!plain || table != FV_F32 || g->bt != FV_F32 || g->ct != FV_F32) return false;
    if (g->m > MOST_ROWS || g->k < 1) return false;
    direct d = {.g = g, .alpha = g->alpha == 0 ? 1 : g->alpha};
    double products = (double)(g->m + 8) * (double)g->n * (double)g->k;
    int64_t each = g->tb ? COLUMNS : ACROSS;
    fv__cpu_parallel(s, products < GEMM_SMALL ? 1 : s->threads, (g->n + each - 1) / each, 0,
                     some_blocks, &d);
    return true;
}
