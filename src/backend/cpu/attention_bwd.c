/* attention_bwd.c - the gradient of attention: how it is divided among threads.
 *
 * A sweep (attention_bwd_sweep.c) adds one block of keys to the gradients of a range of rows.
 * Every sum is one chain in the order of rows or keys, so the division of work does not change the
 * bits.  A thread takes a KV head; the last ones are taken by blocks of keys, since threads are not
 * equally fast, and the thread of a block follows that of the block before from group of rows to
 * group of rows, because dq is their sum in that order.  With very few heads all threads share the
 * key blocks of a head for dk and dv, and then its rows for dq.  Sums that several heads share (a
 * bias without batch axis) are never split among threads. */
#include "attention_bwd_sweep.h"
#include "parallel.h"

#define SHARED 2 /* heads for each thread that are taken by blocks of keys */

/* ---- division of work among threads ---- */

/* A unit is what must stay on one thread: a key head of a sequence, or all that share an element of
 * the bias. */
typedef struct units {
    int64_t b, g;         /* how many along each axis */
    int64_t per_b, per_g; /* sequences and key heads of one */
} units;

/* dbias with a stride of 0 is one sum over that axis, in its order: one thread must own all of
 * it. */
static units units_of(const backward *w)
{
    const fv_attn_args *a = w->t.a;
    bool all_b = w->dbias && a->bias_s[0] == 0, all_g = w->dbias && a->bias_s[1] == 0;
    return (units){all_b ? 1 : a->B, all_g ? 1 : a->G, all_b ? a->B : 1, all_g ? a->G : 1};
}

/* Key blocks [k0, k1) of all that unit u holds. */
static void unit(const backward *w, units all, int64_t u, int64_t k0, int64_t k1, bool want_q,
                 float *work)
{
    int64_t b0 = u / all.g * all.per_b, g0 = u % all.g * all.per_g;
    for (int64_t b = b0; b < b0 + all.per_b; b++)
        for (int64_t g = g0; g < g0 + all.per_g; g++)
            NAME(attn_sweep_head)(w, b, g, k0, k1, want_q, work);
}

/* ---- gradients of bias and rel ---- */

typedef struct {
    const backward *w;
    int64_t H, T;
    bool store;
} bias_rows_args;

static void bias_rows_part(void *arg, int64_t from, int64_t to, int slot)
{
    const bias_rows_args *l = arg;
    const backward *w = l->w;
    const fv_attn_args *a = w->t.a;
    (void)slot;
    for (int64_t r = from; r < to; r++) {
        int64_t h = r / l->T,
                at = h / l->H * a->bias_s[0] + h % l->H * a->bias_s[1] + r % l->T * a->bias_s[2];
        if (l->store)
            NAME(attn_store)(w->g->dbias, at, w->dbias + at, a->Tk, 1);
        else
            memset(w->dbias + at, 0, (size_t)a->Tk * sizeof *w->dbias);
    }
}

/* Clears, or stores to the sink, every distinct row of the bias gradient. */
static void bias_rows(fv_stream *s, const backward *w, int threads, bool store)
{
    const fv_attn_args *a = w->t.a;
    int64_t B = a->bias_s[0] ? a->B : 1, H = a->bias_s[1] ? a->H : 1, T = a->bias_s[2] ? a->Tq : 1;
    fv__cpu_parallel(s, threads, B * H * T, 0, bias_rows_part, &(bias_rows_args){w, H, T, store});
}

/* Shares of the sequences are added in the order of b, whichever thread made them. */
static void store_drel(const backward *w)
{
    const fv_attn_args *a = w->t.a;
    int64_t n = a->H * a->rel_len;
    for (int64_t b = 1; b < a->B; b++)
        for (int64_t i = 0; i < n; i++) w->drel[i] += w->drel[b * n + i];
    NAME(attn_store)(w->g->drel, 0, w->drel, n, 1);
}

/* ---- the kernel ---- */

typedef struct plan {
    bool want_q, want_k;
    bool
        /* dk and dv by blocks of keys, then dq by rows: 7 products instead of 5, but no thread is
         * idle */
        split;
    units all;
    int64_t n_units, parts; /* parts: jobs of one key head for dq alone */
    int64_t blocks;         /* of keys */
    int64_t shared;         /* the last so many units are taken by blocks */
    int64_t each;           /* floats of work for a thread */
    int threads;
} plan;

/* split pays where its 7 products on all threads take less time than 5 on as many as there are
 * jobs. */
static plan plan_of(const backward *w, const fv_stream *s)
{
    const fv_attn_args *a = w->t.a;
    const fv_attn_grads *g = w->g;
    plan p = {.want_q = g->dq.data,
              .want_k = g->dk.data || g->dv.data || g->dbias.data || g->drel.data,
              .all = units_of(w)};
    p.n_units = p.all.b * p.all.g;
    p.parts = (w->t.rows + ATTN_DQ_ROWS - 1) / ATTN_DQ_ROWS;
    p.threads = NAME(attn_threads)(s, a->B * a->H * a->Tq * a->Tk * (a->Wk + a->Wv));
    p.blocks = (a->Tk + ATTN_BLOCK - 1) / ATTN_BLOCK;
    bool share = p.want_q && p.want_k && p.threads > 1 && p.blocks > 1 && !w->dbias &&
                 !g->drel.data;
    int64_t takes = share ? p.n_units * p.blocks : p.n_units,
            rounds = (takes + p.threads - 1) / p.threads;
    p.split = p.want_k && (p.want_q ? 7 : 5) * takes < 5 * p.threads * rounds;
    if (g->drel.data) p.split = false; /* its sums run along diagonals, across all key blocks */
    if (share && !p.split) p.shared = attn_min(p.n_units, SHARED * p.threads);

    int64_t rows = w->t.rows, jobs = p.split || !p.want_k ? a->B * a->G * p.parts : 1;
    if (p.want_k)
        jobs = attn_max(jobs,
                        p.split ? p.n_units * p.blocks : p.n_units + p.shared * (p.blocks - 1));
    p.threads = (int)attn_max(1, attn_min(p.threads, jobs));
    p.each = NAME(attn_sweep_floats)(&w->t, rows, p.want_q && !p.split);
    p.each = attn_round_up(
        attn_max(p.each, NAME(attn_sweep_floats)(&w->t, attn_min(rows, ATTN_DQ_ROWS), true)), 16);
    return p;
}

typedef struct {
    const backward *w;
    const plan *p;
    float *work;
    int64_t span, cut;   /* keys of a job of dk and dv, and jobs of a unit */
    float *rows;         /* of shared units, rows_each apart */
    atomic_llong *ready; /* theirs: [unit][block] */
    int64_t rows_each;
    atomic_llong next; /* job */
} run_args;

static void units_part(void *arg, int64_t from, int64_t to, int slot)
{
    const run_args *l = arg;
    const plan *p = l->p;
    for (int64_t i = from; i < to; i++) {
        int64_t k = i % l->cut;
        unit(l->w, p->all, i / l->cut, k * l->span, attn_min(l->w->t.a->Tk, (k + 1) * l->span),
             p->want_q && !p->split, l->work + p->each * slot);
    }
}

/* Whole units first; then those that are shared, the first block of each before the second of any.
 * Jobs are taken in this order, whichever iteration of the loop takes one: a block whose
 * predecessor nobody has taken would wait for it. */
static void shared_part(void *arg, int64_t from, int64_t to, int slot)
{
    run_args *l = arg;
    const plan *p = l->p;
    float *work = l->work + p->each * slot;
    for (int64_t i = from; i < to; i++) {
        int64_t whole = p->n_units - p->shared, job = atomic_fetch_add(&l->next, 1);
        if (job < whole) {
            unit(l->w, p->all, job, 0, l->w->t.a->Tk, true, work);
            continue;
        }
        int64_t u = (job - whole) % p->shared, number = (job - whole) / p->shared;
        NAME(attn_sweep_block)
        (l->w, (whole + u) / p->all.g, (whole + u) % p->all.g, number, l->rows + u * l->rows_each,
         l->ready + u * p->blocks, work);
    }
}

static void run_shared(fv_stream *s, run_args *l)
{
    const plan *p = l->p;
    l->ready = (atomic_llong *)(void *)(l->work + p->each * p->threads);
    l->rows = (float *)(void *)(l->ready + attn_round_up(p->shared * p->blocks, 8));
    l->rows_each = NAME(attn_sweep_rows)(&l->w->t, l->w->t.rows, true);
    for (int64_t i = 0; i < p->shared * p->blocks; i++) atomic_init(&l->ready[i], 0);
    fv__cpu_parallel(s, p->threads, p->n_units + p->shared * (p->blocks - 1), 1, shared_part, l);
}

static void rows_part(void *arg, int64_t from, int64_t to, int slot)
{
    const run_args *l = arg;
    int64_t parts = l->p->parts, G = l->w->t.a->G;
    for (int64_t i = from; i < to; i++) NAME(attn_sweep_dq)
    (l->w, i / parts / G, i / parts % G, i % parts * ATTN_DQ_ROWS, l->work + l->p->each * slot);
}

static void run(fv_stream *s, const backward *w, const plan *p, float *work)
{
    const fv_attn_args *a = w->t.a;
    run_args l = {.w = w, .p = p, .work = work, .span = p->split ? ATTN_BLOCK : attn_max(1, a->Tk)};
    l.cut = (attn_max(1, a->Tk) + l.span - 1) / l.span;
    if (p->shared) {
        run_shared(s, &l);
        return;
    }
    if (p->want_k) fv__cpu_parallel(s, p->threads, p->n_units * l.cut, 1, units_part, &l);
    if (p->want_q && (p->split || !p->want_k))
        fv__cpu_parallel(s, p->threads, a->B * a->G * p->parts, 1, rows_part, &l);
}

void NAME(attn_bwd)(fv_stream *s, const fv_attn_args *a, const fv_attn_grads *g, fv_dtype dtype)
{
    backward w = {.g = g, .dbias = g->dbias.data};
    if (!NAME(attn_init)(&w.t, s, a, dtype) || a->B == 0) return;
    plan p = plan_of(&w, s);
    bool wide = g->dbias.data &&
                g->dbias.dtype != FV_F32; /* 16-bit gradients are accumulated in f32 */
    int64_t n_bias = wide ? (a->B - 1) * a->bias_s[0] + (a->H - 1) * a->bias_s[1] +
                                (a->Tq - 1) * a->bias_s[2] + a->Tk
                          : 0;
    int64_t n_rel = g->drel.data ? a->B * a->H * a->rel_len : 0, n = p.each * p.threads;
    if (p.shared)
        n += 2 * attn_round_up(p.shared * p.blocks, 8) +
             p.shared * NAME(attn_sweep_rows)(&w.t, w.t.rows, true);
    float *work = fv_stream_scratch(s, (size_t)(n + n_bias + n_rel) * sizeof *work);
    if (!work) return;
    if (wide) w.dbias = work + n;
    if (n_rel) w.drel = memset(work + n + n_bias, 0, (size_t)n_rel * sizeof *work);
    if (w.dbias && (wide || !g->dbias.add)) bias_rows(s, &w, p.threads, false);
    run(s, &w, &p, work);
    if (wide) bias_rows(s, &w, p.threads, true);
    if (n_rel) store_drel(&w);
}
