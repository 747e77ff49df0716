/* gemm_swapped.c - rows that are packed, against an f32 weight (N,K) that is read where it lies.
 *
 * The tile of gemm_f32.c takes vectors of one factor and broadcasts values of the other.  A
 * broadcast is a load, wherever the value is, so the factor that is broadcast need not be packed.
 * Here that is the weight, and what is computed is C' (n, m): a strip of its rows (ROWS columns of
 * C) stays in L1 while panels of packed A pass by; tiles are transposed when they are stored.
 * With some hundred rows packing the weight is a third of the work of many threads, and the rows,
 * which all of them need, are the smaller factor.
 *
 * Each element is summed as the tiles of gemm_f32.c do it: k in order, runs of FV_GEMM_KC, so the
 * bits are the same.  NEON multiplies by lanes of registers: there a broadcast from memory would
 * cost as much as a multiply-add. */
#include "gemm_transpose.h"
#include "parallel.h"

#if VW == 16

#define ROWS 14       /* of C', a strip; twice as many sums */
#define COLS (2 * VW) /* of C', a panel of packed A */
#define RUN FV_GEMM_KC
#define STEPS 4 /* of k in one turn of the loop */
/* Rows of A: fewer are bound by reading the weight, more make packing it cheap; with several
 * threads, which would wait for each other after packing, and a weight of two runs, twice as
 * many (512x3072x768 is 1.13 times as fast on 2 threads, 1.04 on 6).  With a longer weight that
 * pays on 16 threads (512x768x3072 is 1.10 times as fast), not on 4 (0.87); on 8 machines differ
 * (0.91 to 1.26). */
#define LEAST_ROWS 17
#define MOST_ROWS 256
#define LONG_WEIGHT_FROM 12 /* threads */
#define SIDE 4              /* panels of a job */
#define JOBS 16             /* a thread; where there would be fewer, a job has one panel */
#define AHEAD 64            /* values of k that are prefetched of each row of the weight */
#define NEAR 8              /* of a panel, which is in L2 */

typedef struct swapped {
    const fv_gemm *g;
    float alpha;
    int64_t panels, strips, parts; /* of A, of the weight, jobs of a strip */
    float *a;                      /* packed: [run][panel][k][COLS] */
} swapped;

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

static float *panel_at(const swapped *w, int64_t panel, int64_t k)
{
    return w->a + (k * w->panels + panel * least(RUN, w->g->k - k)) * COLS;
}

/* Pieces of packing: a run of a panel. */
static void pack_some(void *arg, int64_t from, int64_t to, int slot)
{
    const swapped *w = arg;
    const fv_gemm *g = w->g;
    (void)slot;
    for (int64_t u = from; u < to; u++) {
        int64_t k = u / w->panels * RUN, panel = u % w->panels, i = panel * COLS;
        gemm_src src = {(const float *)g->a + i * g->lda + k, FV_F32, g->lda, true,
                        (int)least(COLS, g->m - i)};
        NAME(gemm_pack)(panel_at(w, panel, k), COLS, &src, least(RUN, g->k - k), false);
    }
}

/* Rows of a strip: three of them are reached from one register and the distance of two rows. */
#define BASES ((ROWS + 2) / 3)
typedef struct rows {
    const float *p[BASES];
    int64_t ld;
} rows;

ALWAYS_INLINE void step(vf s[ROWS][2], const rows *b, const float *a, const int64_t k)
{
    vf a0 = v_load(a), a1 = v_load(a + VW);
#pragma GCC unroll 16
    for (int i = 0; i < ROWS; i++) {
        vf x = v_set1(b->p[i / 3][i % 3 * b->ld + k]);
        s[i][0] = v_fma(x, a0, s[i][0]);
        s[i][1] = v_fma(x, a1, s[i][1]);
    }
}

/* c (ROWS, COLS) = alpha * (b a) + (add ? c : 0) over kc values of k; first: the strip comes from
 * memory. */
ALWAYS_INLINE void tile(float *c, rows b, const float *a, int64_t kc, float alpha, bool add,
                        const bool first)
{
    vf s[ROWS][2];
#pragma GCC unroll 16
    for (int i = 0; i < ROWS; i++) s[i][0] = s[i][1] = v_zero();
    int64_t k = 0;
    for (; k + STEPS <= kc; k += STEPS, a += STEPS * COLS) {
        if (first && k % 16 == 0)
            for (int i = 0; i < ROWS; i++)
                __builtin_prefetch(b.p[i / 3] + i % 3 * b.ld + k + AHEAD);
#pragma GCC unroll 4
        for (int q = 0; q < STEPS; q++) {
            __builtin_prefetch(a + (q + NEAR) * COLS);
            __builtin_prefetch(a + (q + NEAR) * COLS + VW);
            step(s, &b, a + q * COLS, k + q);
        }
    }
    for (; k < kc; k++, a += COLS) step(s, &b, a, k);
    vf by = v_set1(alpha);
#pragma GCC unroll 16
    for (int i = 0; i < ROWS; i++)
#pragma GCC unroll 2
        for (int j = 0; j < 2; j++) {
            float *to = c + i * COLS + j * VW;
            v_store(to, v_fma(by, s[i][j], add ? v_load(to) : v_zero()));
        }
}

static void first_tile(float *c, rows b, const float *a, int64_t kc, float alpha, bool add)
{
    tile(c, b, a, kc, alpha, add, true);
}
static void next_tile(float *c, rows b, const float *a, int64_t kc, float alpha, bool add)
{
    tile(c, b, a, kc, alpha, add, false);
}

/* n rows of c (n, COLS) to columns j.. of C, rows i..: transposed. */
static void store_transposed(const swapped *w, const float *c, int64_t i, int64_t j, int64_t n)
{
    const fv_gemm *g = w->g;
    for (int64_t v = 0; v < COLS; v += VW) {
        vf x[VW];
#pragma GCC unroll 16
        for (int r = 0; r < VW; r++) x[r] = r < n ? v_load(c + r * COLS + v) : v_zero();
        transpose(x);
        for (int r = 0; r < VW && i + v + r < g->m; r++)
            v_store_n((float *)g->c + (i + v + r) * g->ldc + j, x[r], n);
    }
}

/* One strip against panels p0..p1.  A last one that is not whole begins `again` rows earlier, whose
 * sums are not stored. */
static void strip(const swapped *w, int64_t number, int64_t p0, int64_t p1)
{
    const fv_gemm *g = w->g;
    _Alignas(64) float sum[SIDE][ROWS * COLS];
    int64_t j = number * ROWS, n = least(ROWS, g->n - j), again = ROWS - n;
    rows b = {.ld = g->ldb};
    for (int64_t k = 0; k < g->k; k += RUN) {
        for (int i = 0; i < BASES; i++)
            b.p[i] = (const float *)g->b + (j - again + 3 * i) * g->ldb + k;
        for (int64_t p = p0; p < p1; p++)
            (p == p0 ? first_tile : next_tile)(sum[p - p0], b, panel_at(w, p, k),
                                               least(RUN, g->k - k), w->alpha, k > 0);
    }
    for (int64_t p = p0; p < p1; p++)
        store_transposed(w, sum[p - p0] + again * COLS, p * COLS, j, n);
    int64_t i0 = p0 * COLS, at = i0 * g->ldc + j;
    gemm_end e = {.sum = (float *)g->c + at,
                  .ld_sum = g->ldc,
                  .ldc = g->ldc,
                  .rows = least(p1 * COLS, g->m) - i0,
                  .cols = n,
                  .c = (float *)g->c + at,
                  .bias = g->bias ? (const float *)g->bias + j : NULL,
                  .table = FV_F32,
                  .ct = FV_F32,
                  .act = g->act};
    if (g->bias || g->act) NAME(gemm_finish)(&e);
}

/* Jobs of the same panels follow one another: a thread keeps those in L2 while strips pass by
 * (512x3072x768 on 12 threads: 1.07 times as fast as the other order). */
static void some_strips(void *arg, int64_t from, int64_t to, int slot)
{
    const swapped *w = arg;
    (void)slot;
    for (int64_t u = from; u < to; u++) {
        int64_t part = u / w->strips;
        strip(w, u % w->strips, w->panels * part / w->parts, w->panels * (part + 1) / w->parts);
    }
}

static int64_t most_rows(const fv_stream *s, const fv_gemm *g)
{
    bool more = s->threads >= LONG_WEIGHT_FROM || (s->threads > 1 && g->k <= 2 * RUN);
    return more ? 2 * MOST_ROWS : MOST_ROWS;
}

bool NAME(gemm_swapped)(fv_stream *s, const fv_gemm *g, fv_dtype table)
{
    bool plain = !g->packed && !g->ta && !g->add && !g->pre && !g->plus && g->batch == 1 && g->tb;
    if (!plain || table != FV_F32 || g->bt != FV_F32 || g->ct != FV_F32) return false;
    if (g->m < LEAST_ROWS || g->m > most_rows(s, g) || g->n < ROWS || g->k < 1) return false;
    swapped w = {.g = g, .alpha = g->alpha == 0 ? 1 : g->alpha};
    w.panels = (g->m + COLS - 1) / COLS;
    w.strips = (g->n + ROWS - 1) / ROWS;
    w.parts = (w.panels + SIDE - 1) / SIDE;
    if (s->threads > 1 && w.strips * w.parts < JOBS * s->threads) w.parts = w.panels;
    int64_t runs = (g->k + RUN - 1) / RUN;
    w.a = fv_stream_scratch(s, (size_t)(w.panels * COLS * g->k) * sizeof *w.a + 64);
    if (!w.a) return true;
    w.a = (float *)(((uintptr_t)w.a + 63) / 64 * 64);
    fv__cpu_parallel(s, s->threads, w.panels * runs, 1, pack_some, &w);
    fv__cpu_parallel(s, s->threads, w.strips * w.parts, 1, some_strips, &w);
    return true;
}

#else
bool NAME(gemm_swapped)(fv_stream *s, const fv_gemm *g, fv_dtype table)
{
    (void)s, (void)g, (void)table;
    return false;
}
#endif
