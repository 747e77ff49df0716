/* gemm_stored.c - a few rows against a bf16 weight as a file holds it, where the processor
 * multiplies bf16.
 *
 * The first product with a weight comes before it is packed (core/weight.c), and packing it in
 * pieces, as gemm.c would, takes five times as long as reading it.  Here it is transposed while it
 * is loaded into registers.  (N,K): eight rows of the weight are read side by side, and columns of
 * C stay in registers.  (K,N): eight values of k of all columns a thread has, so that memory is
 * read in long rows, and sums stay in L1.  The same instructions add the same values in the same
 * order as those of gemm_bf16.c, and so give the same bits. */
#include "gemm_transpose.h"
#include "parallel.h"

#if defined(CPU_NEON_BF16)

#define G 4            /* values of k that an instruction takes */
#define SIDE 8         /* columns, and values of k, that are transposed together */
#define MAX_PAIRS 2    /* of rows */
#define ACROSS 1536    /* columns whose sums are kept */
#define A_STEP (8 * G) /* elements of packed rows for G values of k, see gemm_bf16.c */

typedef struct stored {
    const fv_gemm *g;
    const gemm_kind *kind;
    fv_dtype table;
    float alpha;
    size_t a_bytes, each; /* of one slot's scratch: packed rows, and all of it */
    char *scratch;
} stored;

/* Columns [j0, j1) of C are a thread's, and so is the memory. */
typedef struct mine {
    int64_t j0, j1;
    const bfloat16_t *a;
    float32x4_t *sum;
} mine;

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

ALWAYS_INLINE float32x4_t mma(float32x4_t s, bfloat16x8_t a, uint16x8_t b)
{
    return vbfmmlaq_f32(s, a, vreinterpretq_bf16_u16(b));
}

static void pack_rows(const stored *f, char *to)
{
    const fv_gemm *g = f->g;
    int64_t size = (int64_t)fv_dtype_size(f->table);
    for (int64_t k = 0; k < g->k; k += f->kind->run) {
        gemm_src src = {(const char *)g->a + k * size, f->table, g->lda, true, (int)g->m};
        f->kind->pack_a(to + gemm_a_bytes(f->kind, k), &src, least(f->kind->run, g->k - k));
    }
}

/* n columns of C from j on, from their 2 x 2 blocks; s: from one pair of rows to the next
 * `apart`. */
ALWAYS_INLINE void store_tile(const stored *f, const float32x4_t *s, int64_t apart, int64_t j,
                              int64_t n, const int pairs, bool add)
{
    const fv_gemm *g = f->g;
    float out[SIDE];
    for (int i = 0; i < 2 * pairs && i < g->m; i++) {
        float *c = (float *)g->c + i * g->ldc + j;
        for (int h = 0; h < SIDE / 2; h++) {
            float64x2_t x = vreinterpretq_f64_f32(s[i / 2 * apart + h]);
            float32x2_t two = vreinterpret_f32_f64(i % 2 ? vget_high_f64(x) : vget_low_f64(x));
            vst1_f32(out + 2 * h, two);
        }
        for (int h = 0; h < SIDE; h += VW) {
            vf old = !add        ? v_zero()
                     : n == SIDE ? v_load(c + h)
                                 : v_load_n(c + h, n > h ? n - h : 0, 0.0f);
            v_store(out + h, v_fma(v_set1(f->alpha), v_load(out + h), old));
        }
        memcpy(c, out, (size_t)n * sizeof *c);
    }
}

/* ---- (N,K) ---- */

/* Eight rows of the weight are eight streams; a row beyond N repeats the last and is not stored. */
ALWAYS_INLINE void down_rows(const stored *f, const mine *m, const int pairs)
{
    const fv_gemm *g = f->g;
    for (int64_t j = m->j0; j < m->j1; j += SIDE) {
        const uint16_t *row[SIDE];
        for (int i = 0; i < SIDE; i++)
            row[i] = (const uint16_t *)g->b + least(j + i, g->n - 1) * g->ldb;
        const bfloat16_t *a = m->a;
        for (int64_t k0 = 0; k0 < g->k; k0 += f->kind->run) {
            float32x4_t s[MAX_PAIRS * SIDE / 2];
#pragma GCC unroll 8
            for (int i = 0; i < pairs * SIDE / 2; i++) s[i] = v_zero();
            for (int64_t k = k0; k < least(k0 + f->kind->run, g->k); k += 2 * G, a += 2 * A_STEP) {
#pragma GCC unroll 4
                for (int i = 0; i < SIDE; i += 2) {
                    uint64x2_t x = vreinterpretq_u64_u16(vld1q_u16(row[i] + k));
                    uint64x2_t y = vreinterpretq_u64_u16(vld1q_u16(row[i + 1] + k));
                    uint16x8_t first = vreinterpretq_u16_u64(vzip1q_u64(x, y)),
                               then = vreinterpretq_u16_u64(vzip2q_u64(x, y));
#pragma GCC unroll 2
                    for (int p = 0; p < pairs; p++) {
                        float32x4_t *at = s + p * SIDE / 2 + i / 2;
                        *at = mma(mma(*at, vld1q_bf16(a + p * 2 * G), first),
                                  vld1q_bf16(a + A_STEP + p * 2 * G), then);
                    }
                }
                /* prefetch the next rows, a line every four iterations */
                if (k % 32 == 0)
                    for (int i = 0; i < SIDE; i++) __builtin_prefetch(row[i] + SIDE * g->ldb + k);
            }
            store_tile(f, s, SIDE / 2, j, least(SIDE, m->j1 - j), pairs, k0 > 0);
        }
    }
}

/* ---- (K,N) ---- */

/* Four values of k of eight columns, from rows ld apart, side by side for two columns each. */
ALWAYS_INLINE void transpose_eight(uint16x8_t y[4], const uint16_t *from, int64_t ld)
{
    uint16x8_t x[G];
#pragma GCC unroll 4
    for (int j = 0; j < G; j++) x[j] = vld1q_u16(from + j * ld);
    uint32x4_t low = vreinterpretq_u32_u16(vzip1q_u16(x[0], x[1])),
               high = vreinterpretq_u32_u16(vzip1q_u16(x[2], x[3]));
    y[0] = vreinterpretq_u16_u32(vzip1q_u32(low, high));
    y[1] = vreinterpretq_u16_u32(vzip2q_u32(low, high));
    low = vreinterpretq_u32_u16(vzip2q_u16(x[0], x[1]));
    high = vreinterpretq_u32_u16(vzip2q_u16(x[2], x[3]));
    y[2] = vreinterpretq_u16_u32(vzip1q_u32(low, high));
    y[3] = vreinterpretq_u16_u32(vzip2q_u32(low, high));
}

/* Eight values of k of columns [j, j+n).
 *    weight (K,N):  k+0  [ j .. j+7 ]  -> transposed 4 x 8 in registers -> mma with rows of A
 *                   ..                    sums of all `n` columns wait in L1 for the next eight k
 *                   k+7  [ j .. j+7 ] */
ALWAYS_INLINE void across_row(const stored *f, const mine *m, int64_t k, int64_t j, int64_t n,
                              const int pairs)
{
    const fv_gemm *g = f->g;
    const bfloat16_t *a = m->a + k / G * A_STEP;
    bfloat16x8_t x[2 * MAX_PAIRS];
#pragma GCC unroll 4
    for (int p = 0; p < 2 * pairs; p++) x[p] = vld1q_bf16(a + p % 2 * A_STEP + p / 2 * 2 * G);
    for (int64_t c = 0; c < n; c += SIDE) {
        const uint16_t *from = (const uint16_t *)g->b + k * g->ldb + j + c;
        uint16x8_t first[4], then[4];
        transpose_eight(first, from, g->ldb);
        transpose_eight(then, from + G * g->ldb, g->ldb);
        if (c % 32 == 0)
            for (int i = 0; i < SIDE; i++) __builtin_prefetch(from + (SIDE + i) * g->ldb);
#pragma GCC unroll 2
        for (int p = 0; p < pairs; p++)
#pragma GCC unroll 4
            for (int i = 0; i < 4; i++) {
                float32x4_t *s = m->sum + p * ACROSS / 2 + c / 2 + i;
                *s = mma(mma(*s, x[2 * p], first[i]), x[2 * p + 1], then[i]);
            }
    }
}

ALWAYS_INLINE void across_rows(const stored *f, const mine *m, const int pairs)
{
    const fv_gemm *g = f->g;
    for (int64_t j = m->j0; j < m->j1; j += ACROSS) {
        int64_t n = least(ACROSS, m->j1 - j);
        for (int64_t k0 = 0; k0 < g->k; k0 += f->kind->run) {
            memset(m->sum, 0, (size_t)pairs * ACROSS / 2 * sizeof *m->sum);
            for (int64_t k = k0; k < least(k0 + f->kind->run, g->k); k += 2 * G)
                across_row(f, m, k, j, n, pairs);
            for (int64_t c = 0; c < n; c += SIDE)
                store_tile(f, m->sum + c / 2, ACROSS / 2, j + c, SIDE, pairs, k0 > 0);
        }
    }
}

/* ---- the call ---- */

static void columns(const stored *f, int64_t j0, int64_t j1, char *scratch)
{
    const fv_gemm *g = f->g;
    mine m = {j0, j1, (const bfloat16_t *)scratch, (float32x4_t *)(scratch + f->a_bytes)};
    pack_rows(f, scratch);
    if (g->tb && g->m <= 2)
        down_rows(f, &m, 1);
    else if (g->tb)
        down_rows(f, &m, 2);
    else if (g->m <= 2)
        across_rows(f, &m, 1);
    else
        across_rows(f, &m, 2);
    if (!g->bias && !g->act) return;
    gemm_end e = {
        .sum = (float *)g->c + j0, .ld_sum = g->ldc, .ldc = g->ldc, .rows = g->m, .cols = j1 - j0};
    e.c = e.sum;
    e.bias = g->bias ? (const float *)g->bias + j0 : NULL;
    e.act = g->act;
    NAME(gemm_finish)(&e);
}

/* A thread takes its columns in one piece: it packs the rows for each. */
static void groups_part(void *arg, int64_t from, int64_t to, int slot)
{
    const stored *f = arg;
    columns(f, from * SIDE, least(to * SIDE, f->g->n), f->scratch + f->each * (size_t)slot);
}

/* Shapes that do not divide by 8 are left to gemm.c: tails here would cost more code than they
 * save. */
bool NAME(gemm_stored)(fv_stream *s, const fv_gemm *g, fv_dtype table, const gemm_kind *kind)
{
    bool plain = !g->packed && !g->ta && !g->add && !g->pre && !g->plus && g->batch == 1;
    if (!plain || table != FV_F32 || g->bt != FV_BF16 || g->ct != FV_F32 || g->m > 2 * MAX_PAIRS)
        return false;
    if (g->k % SIDE || (!g->tb && g->n % SIDE) || g->k < 1) return false;
    stored f = {.g = g, .kind = kind, .table = table, .alpha = g->alpha == 0 ? 1 : g->alpha};
    f.a_bytes = (gemm_a_bytes(kind, g->k) + 63) / 64 * 64;
    f.each = f.a_bytes + MAX_PAIRS * ACROSS / 2 * sizeof(float32x4_t);
    int64_t groups = (g->n + SIDE - 1) / SIDE;
    int threads = (double)(g->m + 8) * (double)g->n * (double)g->k < GEMM_SMALL
                      ? 1
                      : (int)least(s->threads, groups);
    char *scratch = fv_stream_scratch(s, f.each * (size_t)threads);
    if (!scratch) return true;
    f.scratch = scratch;
    fv__cpu_parallel(s, threads, groups, (groups + threads - 1) / threads, groups_part, &f);
    return true;
}

#else
bool NAME(gemm_stored)(fv_stream *s, const fv_gemm *g, fv_dtype table, const gemm_kind *kind)
{
    (void)s, (void)g, (void)table, (void)kind;
    return false;
}
#endif
