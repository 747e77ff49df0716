/* gemm_few.c - a few rows against a packed weight, as in decoding: bound by reading the weight.
 *
 * Memory is read fastest in a few streams that never end (69 GB/s on two cores of Neoverse V1,
 * where panels side by side of 7 KB each give 39).  So each thread's panels are cut into as many
 * parts as a tile is wide, and each tile takes one panel of every part: each part is read from its
 * beginning to its end.
 *
 * Threads do not wait for each other.  Rows are so few that each thread packs them for itself,
 * while the first lines of its panels are being prefetched; and one that comes to the end of its
 * share takes over tiles of another's (thread_pool.c), so that a late start does not matter.  In
 * a decode step the operations around a product (fused_linear: the norm before it, the residual
 * sum after it, the KV cache that part of it is written to) are done by the thread that holds
 * the values: as a kernel of its own each would take as long as starting the threads does, and a
 * token has fifty products. */
#include <stdatomic.h>

#include "gemm.h"
#include "norm.h"
#include "parallel.h"

#define FIRST 512 /* bytes of each stream that are prefetched first */
/* of B for each thread: what one core reads while a loop is handed to one more thread and back */
#define WORTH_A_THREAD ((size_t)32 << 10)
/* Steps a thread, below which runs of k are steps of their own: a thread that has two panels where
 * others have one, or a slower core, keeps all others waiting. */
#define SPLIT_BELOW 2

typedef struct few {
    const gemm_kind *kind;
    int64_t rows, n, k, panels;
    gemm_src a; /* the rows */
    const char *b;
    float alpha;
    gemm_end end;               /* of all columns, but for its sums */
    const fv_fused_linear *row; /* what else is done; NULL: nothing */
    int wide;                   /* panels side by side */
    size_t panel_bytes;         /* of B */
    size_t a_bytes, each;       /* of one slot's scratch: packed rows, and all of it */
    struct share *share;
    int shares;
    char *scratch, *packed; /* of all slots; whether a slot's rows are packed */
    int64_t runs;           /* of k that are steps of their own; 1: none are */
    float *sums;            /* theirs: [step][weight][run][rows][wide panels] */
    atomic_int *left;       /* of each step: runs that are to be computed */
} few;

/* A thread's panels: `wide` parts of `part` panels each from j0 on, then the others up to j1 by
 * twos where a tile is wider than one, so that 16 threads with three panels each read two streams.
 * The panels of one thread, with wide = 4 and part = 3; one tile reads the column of one step:
 *
 *        step            0   1   2
 *        stream 0      [ 0][ 1][ 2]   each stream is contiguous in memory and read to its end:
 *        stream 1      [ 3][ 4][ 5]   four hardware prefetch streams a core
 *        stream 2      [ 6][ 7][ 8]
 *        stream 3      [ 9][10][11]   then panels 12 .. j1, two at a time
 *
 * The steps of all shares, one share after the other, are the iterations of the loop. */
typedef struct share {
    int64_t j0, j1, part;
    int64_t first; /* number of its first step */
} share;

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

/* ---- rows ---- */

/* The packed rows are followed by scratch for one normalised row. */
static void pack_rows(const few *f, char *to)
{
    const fv_fused_linear *r = f->row;
    gemm_src a = f->a;
    if (r && r->norm) {
        float *y = (float *)(to + f->a_bytes);
        for (int64_t i = 0; i < f->rows; i++) BASE_NAME(norm_row)
        (y + i * f->k, (const float *)r->x + i * f->k, r->gain, r->shift, f->k,
         r->norm == FV_NORM_LAYER, r->eps);
        a.p = y;
    }
    int64_t size = (int64_t)fv_dtype_size(a.dtype);
    const char *from = a.p;
    for (int64_t k = 0; k < f->k; k += f->kind->run) {
        a.p = from + (a.along_k ? k : k * a.ld) * size;
        f->kind->pack_a(to + gemm_a_bytes(f->kind, k), &a, least(f->kind->run, f->k - k));
    }
}

/* ---- sums ---- */

/* The panels of one step, and the packed rows; run: the one that is computed, -1 for all of them,
 * and sums: where a step keeps those of its runs. */
typedef struct piece {
    const char *a;
    int64_t j, apart; /* the first panel, and how many from one to the next */
    int panels;
    int64_t run;
    float *sums;
} piece;

/* One run, of panels of b; in c they are c_next apart. */
static void multiply_run(const few *f, const piece *x, const char *b, int64_t k, float alpha,
                         float *c, int64_t c_next, int64_t ldc, bool add)
{
    const gemm_kind *kind = f->kind;
    gemm_tile tile = {.a = x->a + gemm_a_bytes(kind, k),
                      .b = b + (size_t)x->j * f->panel_bytes + gemm_b_bytes(kind, k),
                      .b_next = (size_t)x->apart * f->panel_bytes,
                      .c = c,
                      .c_next = c_next,
                      .ldc = ldc,
                      .kc = least(kind->run, f->k - k),
                      .rows = (int)f->rows,
                      .panels = x->panels,
                      .alpha = alpha,
                      .add = add};
    tile.ahead = tile.also = tile.b;
    kind->tile(&tile);
}

/* Floats that a run's sums take. */
static int64_t run_floats(const few *f) { return f->rows * f->wide * f->kind->nr; }

static float *run_sums(const few *f, const piece *x, int weight, int64_t run)
{
    return x->sums + (weight * f->runs + run) * run_floats(f);
}

/* c = alpha s_0, c = alpha s_r + c: what tiles that add to C do with the sums of their runs. */
static void add_runs(const few *f, const piece *x, int weight, float *c, int64_t c_next,
                     int64_t ldc)
{
    const vf alpha = v_set1(f->alpha);
    int64_t nr = f->kind->nr, wide = x->panels * nr;
    for (int64_t i = 0; i < f->rows; i++)
        for (int64_t v = 0; v < wide; v += VW) {
            vf sum = v_zero();
            for (int64_t r = 0; r < f->runs; r++)
                sum = v_fma(alpha, v_load(run_sums(f, x, weight, r) + i * wide + v), sum);
            v_store(c + i * ldc + v / nr * c_next + v % nr, sum);
        }
}

/* Sums of the panels of weight 0 or 1; where runs were computed by themselves, from theirs. */
static void multiply(const few *f, const piece *x, int weight, float *c, int64_t c_next,
                     int64_t ldc)
{
    const char *b = weight ? f->row->up : f->b;
    if (f->runs > 1) {
        add_runs(f, x, weight, c, c_next, ldc);
        return;
    }
    for (int64_t k = 0; k < f->k || !k; k += f->kind->run)
        multiply_run(f, x, b, k, f->alpha, c, c_next, ldc, k > 0);
}

/* Bias, activation and rounding for a panel, whose sums are ld apart from row to row. */
static void finish(const few *f, float *sum, int64_t ld, int64_t j)
{
    gemm_end e = f->end;
    int64_t size = (int64_t)fv_dtype_size(e.table);
    e.sum = sum;
    e.ld_sum = ld;
    e.rows = f->rows;
    e.cols = least(f->kind->nr, f->n - j);
    e.c = (char *)e.c + j * (int64_t)fv_dtype_size(e.ct);
    if (e.pre) e.pre = (char *)e.pre + j * size;
    if (e.bias) e.bias = (const char *)e.bias + j * size;
    NAME(gemm_finish)(&e);
}

/* Destination of column j of row i; columns [*first, *end) have the same one.
 * Columns of a fused q, k, v product: [ y_n columns to y | half to the K cache | half to the V
 * cache ], row i of the cache being position pos[i] of sequence i. */
static float *target(const few *f, int64_t i, int64_t j, int64_t *first, int64_t *end)
{
    const fv_fused_linear *r = f->row;
    int64_t half = (f->n - r->y_n) / 2,
            in_cache = r->k_cache ? i * r->cache_batch + r->pos[i] * r->cache_row : 0;
    *first = j < r->y_n ? 0 : j < r->y_n + half ? r->y_n : r->y_n + half;
    *end = j < r->y_n ? r->y_n : *first + half;
    return j < r->y_n ? (float *)r->y + i * r->y_n
                      : (float *)(j < r->y_n + half ? r->k_cache : r->v_cache) + in_cache;
}

/* The same for sums that are added to a residual or stored to KV caches.  A residual with a norm is
 * in y already. */
static void finish_row(const few *f, const float *sum, int64_t ld, int64_t j)
{
    const fv_fused_linear *r = f->row;
    const float *bias = r->bias, *residual = r->residual_norm ? r->y : r->residual;
    int64_t j1 = least(j + f->kind->nr, f->n), first, end;
    for (int64_t i = 0; i < f->rows; i++)
        for (int64_t at = j; at < j1; at = end) {
            float *to = target(f, i, at, &first, &end);
            const float *from = sum + i * ld - j, *onto = residual ? residual + i * f->n : NULL;
            int64_t c = at;
            if (end > j1) end = j1;
            for (; c + VW <= end; c += VW) {
                vf x = bias ? v_add(v_load(from + c), v_load(bias + c)) : v_load(from + c);
                v_store(to + c - first, onto ? v_add(v_load(onto + c), x) : x);
            }
            for (; c < end; c++) {
                float x = bias ? from[c] + bias[c] : from[c];
                to[c - first] = onto ? onto[c] + x : x;
            }
        }
}

/* y = act(gate + bias) * (up + up_bias) for the panel at column j: the same steps in the same order
 * as two products and one of their results. */
static void finish_gate(const few *f, float *gate, float *up, int64_t ld, int64_t j)
{
    const fv_fused_linear *r = f->row;
    int64_t cols = least(f->kind->nr, f->n - j);
    gemm_end e = {.sum = gate,
                  .ld_sum = ld,
                  .ldc = ld,
                  .rows = f->rows,
                  .cols = cols,
                  .c = gate,
                  .bias = r->bias ? (const float *)r->bias + j : NULL,
                  .table = FV_F32,
                  .ct = FV_F32,
                  .act = r->act};
    NAME(gemm_finish)(&e);
    e.sum = e.c = up;
    e.bias = r->up_bias ? (const float *)r->up_bias + j : NULL;
    e.act = FV_ACT_NONE;
    if (e.bias) NAME(gemm_finish)(&e);
    for (int64_t i = 0; i < f->rows; i++)
        for (int64_t c = 0; c < cols; c += VW) {
            const float *x = gate + i * ld + c, *y = up + i * ld + c;
            float *to = (float *)r->y + i * r->y_n + j + c;
            int64_t n = cols - c;
            if (n >= VW)
                v_store(to, v_mul(v_load(x), v_load(y)));
            else
                v_store_n(to, v_mul(v_load_n(x, n, 0), v_load_n(y, n, 0)), n);
        }
}

/* Panels of both weights, and what becomes of them. */
static void gate_step(const few *f, const piece *x)
{
    float gate[GEMM_EDGE], up[GEMM_EDGE];
    int nr = f->kind->nr, wide = x->panels * nr;
    multiply(f, x, 0, gate, nr, wide);
    multiply(f, x, 1, up, nr, wide);
    for (int q = 0; q < x->panels; q++)
        finish_gate(f, gate + q * nr, up + q * nr, wide, (x->j + q * x->apart) * nr);
}

/* Panels of a step that are left over. */
static int64_t leftover(const few *f) { return f->wide > 1 ? 2 : 1; }

/* Where step i of a share is: i < part: a column of the picture above, `wide` panels; beyond: those
 * that are left over. */
static piece piece_of(const few *f, const share *s, int64_t i, const char *a)
{
    bool regular = i < s->part;
    piece x = {.a = a, .j = s->j0 + i, .apart = s->part, .panels = f->wide};
    if (!regular) {
        x.j = s->j0 + f->wide * s->part + (i - s->part) * leftover(f);
        x.apart = 1;
        x.panels = (int)least(leftover(f), s->j1 - x.j);
    }
    return x;
}

/* Sums are stored directly to C if it is f32, nothing is added and the panels are complete. */
static void step(const few *f, const piece *x)
{
    float buf[GEMM_EDGE];
    int nr = f->kind->nr;
    if (f->row && f->row->up) {
        gate_step(f, x);
        return;
    }
    bool aside = f->row && (f->row->residual || f->row->k_cache),
         direct = !aside && f->end.ct == FV_F32 &&
                  (x->j + (x->panels - 1) * x->apart + 1) * nr <= f->n;
    float *sum = direct ? (float *)f->end.c + x->j * nr : buf;
    int64_t next = direct ? x->apart * nr : nr, ld = direct ? f->end.ldc : x->panels * nr;
    multiply(f, x, 0, sum, next, ld);
    if (direct && !f->end.bias && !f->end.act && !f->end.pre) return;
    for (int q = 0; q < x->panels; q++)
        if (aside)
            finish_row(f, sum + q * next, ld, (x->j + q * x->apart) * nr);
        else
            finish(f, sum + q * next, ld, (x->j + q * x->apart) * nr);
}

/* One run of a step.  Whoever computes the last of a step's runs adds them up. */
static void step_run(const few *f, piece *x, int64_t number, int64_t run)
{
    int weights = f->row && f->row->up ? 2 : 1, wide = x->panels * f->kind->nr;
    x->sums = f->sums + number * weights * f->runs * run_floats(f);
    for (int w = 0; w < weights; w++)
        multiply_run(f, x, w ? f->row->up : f->b, run * f->kind->run, 1, run_sums(f, x, w, run),
                     f->kind->nr, wide, false);
    if (atomic_fetch_sub_explicit(&f->left[number], 1, memory_order_acq_rel) == 1) step(f, x);
}

static int64_t steps_of(const few *f, const share *s)
{
    int64_t left = s->j1 - s->j0 - f->wide * s->part;
    return s->part + (left + leftover(f) - 1) / leftover(f);
}

/* Which thread does a step does not matter for its bits. */
static void work(void *arg, int64_t from, int64_t to, int slot)
{
    const few *f = arg;
    char *scratch = f->scratch + f->each * (size_t)slot;
    int t = 0;
    while (t + 1 < f->shares && f->share[t + 1].first <= from / f->runs) t++;
    if (!f->packed[slot]) {
        const share *own = &f->share[t];
        for (int q = 0; q < f->wide; q++)
            for (size_t i = 0; i < FIRST; i += 64)
                __builtin_prefetch(f->b + (size_t)(own->j0 + q * own->part) * f->panel_bytes + i);
        pack_rows(f, scratch);
        f->packed[slot] = 1;
    }
    bool enters = f->kind->enter && f->rows > f->kind->plain_rows;
    if (enters) f->kind->enter();
    for (int64_t i = from; i < to; i++) {
        int64_t number = i / f->runs;
        while (t + 1 < f->shares && f->share[t + 1].first <= number) t++;
        piece x = piece_of(f, &f->share[t], number - f->share[t].first, scratch);
        if (f->runs > 1)
            step_run(f, &x, number, i % f->runs);
        else
            step(f, &x);
    }
    if (enters) f->kind->leave();
}

/* Returns the number of steps. */
static int64_t make_shares(const few *f)
{
    int64_t steps = 0;
    for (int i = 0; i < f->shares; i++) {
        share *x = &f->share[i];
        *x = (share){.j0 = f->panels * i / f->shares,
                     .j1 = f->panels * (i + 1) / f->shares,
                     .first = steps};
        x->part = (least(x->j1, f->n / f->kind->nr) - x->j0) / f->wide;
        if (x->part < 0) x->part = 0;
        steps += steps_of(f, x);
    }
    return steps;
}

/* Runs that are steps of their own. */
static int64_t runs_for(const few *f, int64_t steps)
{
    int64_t runs = (int64_t)gemm_runs(f->kind, f->k);
    bool few_steps = f->shares > 1 && steps < (int64_t)f->shares * SPLIT_BELOW;
    return few_steps && runs > 1 && !f->kind->continues ? runs : 1;
}

static int threads_for(const fv_stream *s, const few *f)
{
    double products = (double)(f->rows + 8) * (double)f->n * (double)f->k;
    int64_t worth = 1 + (int64_t)((size_t)f->panels * f->panel_bytes / WORTH_A_THREAD);
    return products < GEMM_SMALL ? 1 : (int)least(worth, least(s->threads, f->panels));
}

/* Scratch: [ rows of each slot ][ sums of runs ][ shares ][ runs left ][ packed? ] */
static void run(fv_stream *s, few *f)
{
    const gemm_kind *kind = f->kind;
    f->panels = (f->n + kind->nr - 1) / kind->nr;
    f->panel_bytes = gemm_b_bytes(kind, f->k);
    f->a_bytes = (gemm_a_bytes(kind, f->k) + 63) / 64 * 64;
    f->each = f->a_bytes + (f->row && f->row->norm
                                ? ((size_t)(f->rows * f->k) * sizeof(float) + 63) / 64 * 64
                                : 0);
    f->shares = threads_for(s, f);
    f->wide = gemm_walk(kind, f->rows);
    size_t threads = (size_t)f->shares;
    int64_t most = f->panels; /* steps */
    size_t sums = (size_t)(2 * most * (int64_t)gemm_runs(kind, f->k) * run_floats(f)) *
                  sizeof(float);
    if (most >= (int64_t)f->shares * 4 * SPLIT_BELOW * f->wide) sums = 0;
    f->scratch = fv_stream_scratch(s, (f->each + sizeof(share) + 1) * threads + sums +
                                          (size_t)most * sizeof(atomic_int));
    if (!f->scratch) return;
    f->sums = (float *)(void *)(f->scratch + f->each * threads);
    f->share = (share *)(void *)((char *)f->sums + sums);
    f->left = (atomic_int *)(void *)(f->share + threads);
    f->packed = (char *)(f->left + most);
    memset(f->packed, 0, threads);
    int64_t steps = make_shares(f);
    f->runs = sums ? runs_for(f, steps) : 1;
    for (int64_t i = 0; f->runs > 1 && i < steps; i++) atomic_init(&f->left[i], (int)f->runs);
    fv__cpu_parallel(s, (int)threads, steps * f->runs, 1, work, f);
}

/* ---- the two calls ---- */

/* 2 m <= mr: beyond that a tile has no second panel to read beside the first, and gemm.c does as
 * well. */
bool NAME(gemm_few)(fv_stream *s, const fv_gemm *g, fv_dtype table, const gemm_kind *kind)
{
    if (!g->packed || g->batch != 1 || g->add || 2 * g->m > kind->mr) return false;
    few f = {.kind = kind,
             .rows = g->m,
             .n = g->n,
             .k = g->k,
             .a = {g->a, table, g->lda, !g->ta, (int)g->m},
             .b = g->b,
             .alpha = g->alpha == 0 ? 1 : g->alpha,
             .end = {.c = g->c,
                     .ldc = g->ldc,
                     .ct = g->ct,
                     .pre = g->pre,
                     .bias = g->bias,
                     .act = g->act,
                     .table = table}};
    run(s, &f);
    return true;
}

/* q and k of each row, where the product has put them: a pair of columns to be rotated may be in
 * panels of two threads, so this waits for all of them. */
static void rotate(fv_stream *s, const fv_fused_linear *r)
{
    const fv_fused_rope *o = &r->rope;
    int64_t half = (r->n - r->y_n) / 2;
    for (int64_t i = 0; i < r->rows; i++) {
        float *row[] = {(float *)r->y + i * r->y_n,
                        (float *)r->k_cache + i * r->cache_batch + r->pos[i] * r->cache_row};
        const int64_t cols[] = {r->y_n, half};
        for (int j = 0; j < 2; j++)
            s->dev->k[FV_F32]->rope(s, (fv_sink){.data = row[j], .dtype = FV_F32}, row[j],
                                    o->pos + i, o->freq + i * o->freq_row, 1, 1, cols[j] / o->head,
                                    o->head, o->half, o->adjacent, false);
    }
}

/* False is not an error: the op then runs norm, product and the rest as kernels of their own. */
static bool fused_linear(fv_stream *s, const fv_fused_linear *r)
{
    const gemm_kind *kind = NAME(gemm_packed)(r->wt);
    bool aside = r->residual || r->k_cache;
    if (!kind || 2 * r->rows > kind->mr || r->xt != FV_F32 || r->yt != FV_F32 ||
        (aside && (r->act || r->up)))
        return false;
    few f = {.kind = kind,
             .rows = r->rows,
             .n = r->n,
             .k = r->k,
             .a = {r->x, FV_F32, r->k, true, (int)r->rows},
             .b = r->w,
             .alpha = 1,
             .end = {.c = r->y,
                     .ldc = r->y_n,
                     .ct = FV_F32,
                     .bias = r->bias,
                     .act = r->act,
                     .table = FV_F32},
             .row = r};
    for (int64_t i = 0; r->residual_norm && i < r->rows; i++) BASE_NAME(norm_row)
    ((float *)r->y + i * r->n, (const float *)r->residual + i * r->n, r->residual_gain,
     r->residual_shift, r->n, r->residual_norm == FV_NORM_LAYER, r->residual_eps);
    run(s, &f);
    if (r->rope.freq) rotate(s, r);
    return true;
}

void NAME(gemm_few_rows)(fv_kernels *k)
{
    if (k->dtype != FV_F32) return;
    k->fused_linear = fused_linear;
    k->fused_linear_gates = true;
}
