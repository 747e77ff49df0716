/* gemm_few.c - a few rows against a packed weight, as in decoding: a matter of reading the weight.
 *
 * Memory is read fastest in a few streams that never end (69 GB/s on two cores of Neoverse V1, where panels side by side of
 * 7 KB each give 39).  So each thread's panels are cut into as many parts as a tile is wide, and each tile takes one panel of
 * every part: each part is read from its beginning to its end.  Sums go straight to where they belong, and bias and
 * activation follow at the end, over all of a thread's columns at once.
 *
 * Threads do not wait for each other: rows are so few that each packs them for itself, while the first lines of its panels
 * are on their way.  With one barrier a product this costs 2 us less, and a token has fifty products. */
#include <omp.h>

#include "gemm.h"

#define FIRST 512 /* bytes of each stream that are asked for before anything else */

typedef struct few {
    const fv_gemm *g;
    const gemm_kind *kind;
    fv_dtype table;
    float alpha;
    int wide;             /* panels side by side */
    size_t panel_bytes;   /* of B */
    size_t a_bytes, each; /* of one thread's scratch: packed rows, and all of it */
} few;

/* A thread's panels j0..j1, and where its sums are: in C, or in scratch where C is not f32. */
typedef struct mine {
    const char *a;
    int64_t j0, j1;
    float *sum;
    int64_t ld;
} mine;

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

static void pack_rows(const few *f, char *to)
{
    const fv_gemm *g = f->g;
    int64_t size = (int64_t)fv_dtype_size(f->table);
    for (int64_t k = 0; k < g->k; k += f->kind->run) {
        gemm_src src = {(const char *)g->a + (g->ta ? k * g->lda : k) * size, f->table, g->lda, !g->ta, (int)g->m};
        f->kind->pack_a(to + gemm_a_bytes(f->kind, k), &src, least(f->kind->run, g->k - k));
    }
}

/* The sums of `panels` panels from j on, `apart` panels from one to the next; they are so far apart in c, too. */
static void multiply(const few *f, const mine *m, int64_t j, int panels, int64_t apart, float *c, int64_t ldc)
{
    const fv_gemm *g = f->g;
    const gemm_kind *kind = f->kind;
    for (int64_t k = 0; k < g->k || !k; k += kind->run) {
        gemm_tile tile = {.a = m->a + gemm_a_bytes(kind, k),
                          .b = (const char *)g->b + (size_t)j * f->panel_bytes + gemm_b_bytes(kind, k),
                          .b_next = (size_t)apart * f->panel_bytes,
                          .c = c,
                          .c_next = apart * kind->nr,
                          .ldc = ldc,
                          .kc = least(kind->run, g->k - k),
                          .rows = (int)g->m,
                          .panels = panels,
                          .alpha = f->alpha,
                          .add = k > 0};
        tile.ahead = tile.b;
        kind->tile(&tile);
    }
}

/* The last panel of all may stick out of C. */
static void last_panel(const few *f, const mine *m, int64_t j, float *c)
{
    float buf[GEMM_EDGE];
    int nr = f->kind->nr;
    multiply(f, m, j, 1, 1, buf, nr);
    for (int64_t i = 0; i < f->g->m; i++) memcpy(c + i * m->ld, buf + i * nr, (size_t)(f->g->n - j * nr) * sizeof *c);
}

static void finish(const few *f, const mine *m)
{
    const fv_gemm *g = f->g;
    int64_t j = m->j0 * f->kind->nr, size = (int64_t)fv_dtype_size(f->table);
    if (g->ct == FV_F32 && !g->bias && !g->act && !g->pre) return;
    NAME(gemm_finish)
    (&(gemm_end){.sum = m->sum,
                 .ld_sum = m->ld,
                 .ldc = g->ldc,
                 .rows = g->m,
                 .cols = least(m->j1 * f->kind->nr, g->n) - j,
                 .c = (char *)g->c + j * (int64_t)fv_dtype_size(g->ct),
                 .pre = g->pre ? (char *)g->pre + j * size : NULL,
                 .bias = g->bias ? (const char *)g->bias + j * size : NULL,
                 .table = f->table,
                 .ct = g->ct,
                 .act = g->act});
}

static void columns(const few *f, int64_t j0, int64_t j1, char *scratch)
{
    const fv_gemm *g = f->g;
    int nr = f->kind->nr;
    mine m = {.a = scratch, .j0 = j0, .j1 = j1, .sum = (float *)(scratch + f->a_bytes), .ld = (j1 - j0) * nr};
    if (g->ct == FV_F32) {
        m.sum = (float *)g->c + j0 * nr;
        m.ld = g->ldc;
    }
    int64_t part = (least(j1, g->n / nr) - j0) / f->wide, j = j0;
    for (int q = 0; q < f->wide; q++)
        for (size_t i = 0; i < FIRST; i += 64)
            __builtin_prefetch((const char *)g->b + (size_t)(j0 + q * part) * f->panel_bytes + i);
    pack_rows(f, scratch);
    for (; j < j0 + part; j++) multiply(f, &m, j, f->wide, part, m.sum + (j - j0) * nr, m.ld);
    for (j = j0 + f->wide * part; j < j1; j++) {
        float *c = m.sum + (j - j0) * nr;
        if ((j + 1) * nr <= g->n)
            multiply(f, &m, j, 1, 1, c, m.ld);
        else
            last_panel(f, &m, j, c);
    }
    finish(f, &m);
}

bool NAME(gemm_few)(fv_stream *s, const fv_gemm *g, fv_dtype table, const gemm_kind *kind)
{
    if (!g->packed || g->batch != 1 || g->add || 2 * g->m > kind->mr) return false;
    few f = {.g = g, .kind = kind, .table = table, .alpha = g->alpha == 0 ? 1 : g->alpha, .wide = gemm_walk(kind->mr, (int)g->m)};
    int64_t panels = (g->n + kind->nr - 1) / kind->nr;
    double work = (double)(g->m + 8) * (double)g->n * (double)g->k;
    int threads = work < GEMM_SMALL ? 1 : (int)least(s->threads, panels);
    f.panel_bytes = gemm_b_bytes(kind, g->k);
    f.a_bytes = (gemm_a_bytes(kind, g->k) + 63) / 64 * 64;
    f.each = f.a_bytes;
    if (g->ct != FV_F32) f.each += (size_t)(g->m * (panels / threads + 1) * kind->nr) * sizeof(float);
    f.each = (f.each + 63) / 64 * 64;
    char *scratch = fv_stream_work(s, f.each * (size_t)threads);
    if (!scratch) return true;
    if (threads == 1) {
        columns(&f, 0, panels, scratch);
        return true;
    }
#pragma omp parallel num_threads(threads)
    {
        int64_t id = omp_get_thread_num(), size = omp_get_num_threads();
        columns(&f, panels * id / size, panels * (id + 1) / size, scratch + f.each * (size_t)id);
    }
    return true;
}
