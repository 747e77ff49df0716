/* attention_bwd_sweep.c - the gradient of attention, tile by tile; weights are recomputed from lse.
 *
 * Forward is p = 2^(s - m) / l with the row's maximum m and sum l, which it kept as lse; y = (keep
 * p) v.  With D_i = dy_i . y_i, for rows i and keys j:
 *     dp = keep (dy v'),  ds = p (dp - D),  dq = scale ds k,  dk = scale ds' q,  dv = (keep p)' dy
 * Scores and dp are made as (key, row), which is what dq wants; dk and dv want (row, key), so p and
 * ds are transposed: 2 % of the work, where computing them twice would add 40 %.
 *
 * A sweep processes one block of keys against a range of rows: dk and dv of the block stay in
 * cache, dq is accumulated for all rows of the range.  Every sum is one chain in the order of rows
 * or keys. */
#include "attention_bwd_sweep.h"

#include "attention_bwd.h"
#include "base/thread_pool.h"

#define BLOCK ATTN_BLOCK
/* Keys of a tile, which is computed against one group of rows at a time: scores and dp of a panel
 * stay in L1. */
#define TILE (VW == 4 ? 192 : 96)

/* The working set of one thread. */
typedef struct bwd_block {
    const backward *w;
    int64_t b, g, r0, r1; /* rows of key head g in sequence b */
    bool want_q, want_k;
    /* Where threads share a head: rows whose dq has the block before, and has this one; else
     * NULL. */
    atomic_llong *before, *ready;
    float *rows; /* the four that follow, of the head; NULL: of this thread */
    float *dq;   /* panels (wk, LANES) of all rows */
    float *top, *inv,
        *dyy; /* of each row: its maximum m and 1/l, +inf and 0 for one without keys; dy . y */
    float *k_t, *v_t,
        *k; /* the block: strips of keys (Wk, STEP), (Wv, STEP), strips of columns (BLOCK, STEP) */
    float *dk, *dv;      /* panels of keys (wk, LANES), (wv, LANES) */
    attn_row row[GROUP]; /* the current group of rows */
    int n;
    float *q_t, *dy_t; /* panels of rows (Wk, LANES), (Wv, LANES) */
    float *q, *dy;     /* strips of columns (GROUP, STEP) */
    float *s, *ds;     /* a panel of rows: (key, row) */
    float *p_t, *ds_t; /* panels of keys (GROUP, LANES): (row, key) */
    float *scratch;
} bwd_block;

int64_t NAME(attn_sweep_rows)(const attn *t, int64_t rows, bool want_q)
{
    return attn_round_up(rows, GROUP) * (want_q ? t->wk + 3 : 3);
}

int64_t NAME(attn_sweep_floats)(const attn *t, int64_t rows, bool want_q)
{
    int64_t w = t->wk + t->wv;
    return NAME(attn_sweep_rows)(t, rows, want_q) + BLOCK * (2 * w + t->wk) + 2 * GROUP * w +
           2 * TILE * (LANES + GROUP) + attn_max(2 * KEYS * LANES, BLOCK * attn_max(t->wk, t->wv));
}

static void bwd_block_layout(bwd_block *x, const backward *w, float *work)
{
    const attn *t = &w->t;
    int64_t rows = attn_round_up(x->r1 - x->r0, GROUP);
    x->w = w;
    x->top = x->rows ? x->rows : work;
    x->inv = x->top + rows;
    x->dyy = x->inv + rows;
    x->dq = x->dyy + rows;
    x->k_t = x->rows ? work : work + NAME(attn_sweep_rows)(t, rows, x->want_q);
    x->v_t = x->k_t + BLOCK * t->wk;
    x->k = x->v_t + BLOCK * t->wv;
    x->dk = x->k + BLOCK * t->wk;
    x->dv = x->dk + BLOCK * t->wk;
    x->q_t = x->dv + BLOCK * t->wv;
    x->dy_t = x->q_t + GROUP * t->wk;
    x->q = x->dy_t + GROUP * t->wv;
    x->dy = x->q + GROUP * t->wk;
    x->s = x->dy + GROUP * t->wv;
    x->ds = x->s + TILE * LANES;
    x->p_t = x->ds + TILE * LANES;
    x->ds_t = x->p_t + TILE * GROUP;
    x->scratch = x->ds_t + TILE * GROUP;
}

/* ---- loading and storing the rows and keys of a sweep ---- */

static void rows_start(bwd_block *x)
{
    const attn *t = &x->w->t;
    const fv_attn_args *a = t->a;
    int64_t n = x->r1 - x->r0;
    for (int64_t r = 0; r < attn_round_up(n, GROUP); r++) {
        x->top[r] = INFINITY;
        x->inv[r] = x->dyy[r] = 0;
        if (r >= n) continue;
        attn_row row = NAME(attn_row)(t, x->b, x->g, x->r0 + r);
        const float *lse = attn_lse(a, &row);
        if (lse[1] == 0) continue;
        const float *y = NAME(attn_load)(a->y, t->dtype, attn_y_offset(a, &row), a->Wv, x->scratch);
        const float *dy = NAME(attn_load)(x->w->g->dy, t->dtype, attn_y_offset(a, &row), a->Wv,
                                          x->scratch + t->wv);
        vf sum = v_zero();
        for (int64_t c = 0; c < a->Wv; c += VW)
            sum = a->Wv - c < VW
                      ? v_fma(v_load_n(y + c, a->Wv - c, 0), v_load_n(dy + c, a->Wv - c, 0), sum)
                      : v_fma(v_load(y + c), v_load(dy + c), sum);
        x->top[r] = lse[0];
        x->inv[r] = 1 / lse[1];
        x->dyy[r] = v_hsum(sum);
    }
    if (x->want_q) memset(x->dq, 0, (size_t)(attn_round_up(n, GROUP) * t->wk) * sizeof *x->dq);
}

static void rows_finish(bwd_block *x)
{
    const attn *t = &x->w->t;
    for (int64_t r = 0; r < x->r1 - x->r0; r += LANES) {
        NAME(attn_transpose)(x->scratch, t->wk, x->dq + r * t->wk, LANES, t->wk, LANES);
        for (int64_t l = 0; l < LANES && x->r0 + r + l < x->r1; l++) {
            attn_row row = NAME(attn_row)(t, x->b, x->g, x->r0 + r + l);
            NAME(attn_store)
            (x->w->g->dq, attn_q_offset(t->a, &row), x->scratch + l * t->wk, t->a->Wk, t->scale);
        }
    }
}

static void keys_start(bwd_block *x, int64_t k0, int64_t n)
{
    const attn *t = &x->w->t;
    const fv_attn_args *a = t->a;
    const float *rows[BLOCK] = {0};
    for (int64_t j = 0; j < n; j++)
        rows[j] = NAME(attn_load)(a->k, t->dtype, attn_k_offset(a, x->b, x->g, k0 + j), a->Wk,
                                  x->scratch + j * t->wk);
    NAME(attn_pack_strips)(x->k_t, rows, n, a->Wk);
    if (x->want_q) NAME(attn_pack_steps)(x->k, BLOCK * STEP, rows, (int)n, a->Wk);
    for (int64_t j = 0; j < n; j++)
        rows[j] = NAME(attn_load)(a->v, t->dtype, attn_v_offset(a, x->b, x->g, k0 + j), a->Wv,
                                  x->scratch + j * t->wv);
    NAME(attn_pack_strips)(x->v_t, rows, n, a->Wv);
    if (!x->want_k) return;
    memset(x->dk, 0, (size_t)(attn_round_up(n, LANES) * t->wk) * sizeof *x->dk);
    memset(x->dv, 0, (size_t)(attn_round_up(n, LANES) * t->wv) * sizeof *x->dv);
}

static void keys_finish(bwd_block *x, int64_t k0, int64_t n)
{
    const attn *t = &x->w->t;
    const fv_attn_args *a = t->a;
    const fv_attn_grads *g = x->w->g;
    for (int64_t j = 0; j < n; j += LANES) {
        NAME(attn_transpose)(x->scratch, t->wk, x->dk + j * t->wk, LANES, t->wk, LANES);
        for (int64_t l = 0; g->dk.data && l < LANES && j + l < n; l++) NAME(attn_store)
        (g->dk, attn_k_offset(a, x->b, x->g, k0 + j + l), x->scratch + l * t->wk, a->Wk, t->scale);
        NAME(attn_transpose)(x->scratch, t->wv, x->dv + j * t->wv, LANES, t->wv, LANES);
        for (int64_t l = 0; g->dv.data && l < LANES && j + l < n; l++) NAME(attn_store)
        (g->dv, attn_v_offset(a, x->b, x->g, k0 + j + l), x->scratch + l * t->wv, a->Wv, 1);
    }
}

/* ---- a group of rows and a tile of keys ---- */

static void group_start(bwd_block *x, int64_t r)
{
    const attn *t = &x->w->t;
    const fv_attn_args *a = t->a;
    const float *rows[GROUP];
    x->n = (int)attn_min(GROUP, x->r1 - x->r0 - r);
    for (int l = 0; l < x->n; l++) x->row[l] = NAME(attn_row)(t, x->b, x->g, x->r0 + r + l);

    for (int l = 0; l < x->n; l++)
        rows[l] = NAME(attn_load)(a->q, t->dtype, attn_q_offset(a, &x->row[l]), a->Wk,
                                  x->scratch + l * t->wk);
    for (int p = 0; p < x->n; p += LANES) NAME(attn_pack_lanes)
    (x->q_t + p * a->Wk, LANES, rows + p, (int)attn_min(x->n - p, LANES), a->Wk, t->scale2);
    if (x->want_k) NAME(attn_pack_steps)(x->q, GROUP * STEP, rows, x->n, a->Wk);

    for (int l = 0; l < x->n; l++)
        rows[l] = NAME(attn_load)(x->w->g->dy, t->dtype, attn_y_offset(a, &x->row[l]), a->Wv,
                                  x->scratch + l * t->wv);
    for (int p = 0; p < x->n; p += LANES) NAME(attn_pack_lanes)
    (x->dy_t + p * a->Wv, LANES, rows + p, (int)attn_min(x->n - p, LANES), a->Wv, 1);
    if (x->want_k) NAME(attn_pack_steps)(x->dy, GROUP * STEP, rows, x->n, a->Wv);
}

/* Weights (with dropout) and ds of panel p for n keys, j0 being the first, at `at` in the block.
 * The dropout mask is generated again from its counters (Philox), not stored: it multiplies dp
 * before ds is formed, and p after it, since dv sees p with dropout but ds needs p without. */
static void dscore_tile(bwd_block *x, int64_t r, int p, int64_t j0, int64_t at, int64_t n)
{
    const attn *t = &x->w->t;
    const fv_attn_args *a = t->a;
    int n_rows = (int)attn_min(x->n - p, LANES);
    float *s = x->s, *ds = x->ds;
    for (int64_t j = 0; j < n; j += STEP)
        NAME(attn_set)(s + j * LANES, x->k_t + (at + j) * a->Wk, x->q_t + p * a->Wk, a->Wk);
    for (int64_t j = 0; j < n; j += STEP)
        NAME(attn_set)(ds + j * LANES, x->v_t + (at + j) * a->Wv, x->dy_t + p * a->Wv, a->Wv);
    NAME(attn_mask_and_bias)(s, t, x->row + p, n_rows, j0, n, x->scratch);
    if (a->dropout > 0) {
        NAME(attn_dropout)(x->scratch, t, x->row + p, n_rows, j0, n);
        multiply(ds, x->scratch, n * LANES);
    }
    for (int v = 0; v < LANES; v += VW)
        dscore_vector(s + v, ds + v, attn_round_up(n, 4), v_load(x->top + r + p + v),
                      v_load(x->inv + r + p + v), v_load(x->dyy + r + p + v));
    if (a->dropout > 0) multiply(s, x->scratch, n * LANES);
}

/* Panel p of the group against n keys of the block from `at` on; transposed results are zero-filled
 * up to
 * `wide` keys. */
static void panel(bwd_block *x, int64_t r, int p, int64_t j0, int64_t at, int64_t n, int64_t wide)
{
    const attn *t = &x->w->t;
    const fv_attn_args *a = t->a;
    if (n > 0) dscore_tile(x, r, p, j0, at, n);
    memset(x->s + n * LANES, 0, (size_t)((wide - n) * LANES) * sizeof *x->s);
    memset(x->ds + n * LANES, 0, (size_t)((wide - n) * LANES) * sizeof *x->ds);
    if (x->want_q)
        for (int64_t c = 0; n > 0 && c < a->Wk; c += STEP) NAME(attn_add)
    (x->dq + (r + p) * t->wk + c * LANES, x->k + c * BLOCK + at * STEP, x->ds, n);
    for (int64_t j = 0; x->want_k && j < wide; j += LANES) {
        NAME(attn_transpose)
        (x->p_t + j * GROUP + p * LANES, LANES, x->s + j * LANES, LANES, LANES, LANES);
        NAME(attn_transpose)
        (x->ds_t + j * GROUP + p * LANES, LANES, x->ds + j * LANES, LANES, LANES, LANES);
    }
}

/* Adds ds of the tile to the gradients of bias and rel. */
static void accumulate_dbias(bwd_block *x, int64_t j0, int64_t n)
{
    const backward *w = x->w;
    const fv_attn_args *a = w->t.a;
    for (int l = 0; l < x->n; l++) {
        const attn_row *r = &x->row[l];
        for (int64_t j = 0; w->dbias && j < n; j++)
            w->dbias[r->b * a->bias_s[0] + r->h * a->bias_s[1] + r->i * a->bias_s[2] + j0 + j] +=
                x->ds_t[j / LANES * LANES * GROUP + l * LANES + j % LANES];
        for (int64_t j = 0; w->drel && j < n; j++) {
            int64_t d = attn_max(0, attn_min(a->rel_len - 1, a->rel_zero + j0 + j - r->pos));
            w->drel[(r->b * a->H + r->h) * a->rel_len + d] +=
                x->ds_t[j / LANES * LANES * GROUP + l * LANES + j % LANES];
        }
    }
}

static void tile(bwd_block *x, int64_t r, int64_t j0, int64_t at, int64_t n)
{
    const attn *t = &x->w->t;
    int64_t wide = attn_round_up(n, LANES);
    for (int p = 0; p < x->n; p += LANES) {
        int64_t lo = INT64_MAX, hi = 0;
        for (int l = p; l < x->n && l < p + LANES; l++) {
            if (x->row[l].hi > 0) lo = attn_min(lo, x->row[l].lo);
            hi = attn_max(hi, x->row[l].hi);
        }
        panel(x, r, p, j0, at, lo < j0 + n ? attn_max(0, attn_min(n, hi - j0)) : 0, wide);
    }
    if (!x->want_k) return;
    for (int64_t j = 0; j < wide; j += LANES) {
        for (int64_t c = 0; c < t->a->Wk; c += STEP) NAME(attn_add)
        (x->dk + (at + j) * t->wk + c * LANES, x->q + c * GROUP, x->ds_t + j * GROUP, x->n);
        for (int64_t c = 0; c < t->a->Wv; c += STEP) NAME(attn_add)
        (x->dv + (at + j) * t->wv + c * LANES, x->dy + c * GROUP, x->p_t + j * GROUP, x->n);
    }
    if (x->w->dbias || x->w->drel) accumulate_dbias(x, j0, n);
}

/* Until the dq of rows [0, r1) has the block before.  Its thread took that block before this one
 * took its own, so nobody waits in a circle. */
static void wait_for_rows(const bwd_block *x, int64_t r1)
{
    for (int i = 0; x->before && atomic_load_explicit(x->before, memory_order_acquire) < r1; i++)
        fv__thread_pause(i);
}

static void rows_ready(const bwd_block *x, int64_t r1)
{
    if (x->ready) atomic_store_explicit(x->ready, r1, memory_order_release);
}

/* Keys [k0, k0+n) against all rows of x.
 *    for each GROUP of rows that sees any of these keys:  pack q, dy
 *        for each TILE of keys:  s, dp -> p, ds;  dq += ds k;  dk += ds' q;  dv += p' dy */
static void pass(bwd_block *x, int64_t k0, int64_t n)
{
    keys_start(x, k0, n);
    for (int64_t r = 0; r < x->r1 - x->r0; r += GROUP) {
        int64_t lo = INT64_MAX, hi = 0;
        wait_for_rows(x, r + 1);
        for (int64_t l = r; l < r + GROUP && x->r0 + l < x->r1; l++) {
            attn_row row = NAME(attn_row)(&x->w->t, x->b, x->g, x->r0 + l);
            if (row.hi > 0) lo = attn_min(lo, row.lo);
            hi = attn_max(hi, row.hi);
        }
        bool sees = lo < k0 + n && hi > k0;
        if (sees) group_start(x, r);
        for (int64_t at = 0; sees && at < n && k0 + at < hi; at += TILE)
            if (lo < k0 + at + TILE)
                tile(x, r, k0 + at, at, attn_min(attn_min(TILE, n - at), hi - k0 - at));
        rows_ready(x, r + GROUP);
    }
    if (x->want_k) keys_finish(x, k0, n);
}

static void zero_rows(fv_sink x, int64_t at, int64_t stride, int64_t n, int64_t width,
                      float *scratch)
{
    if (!x.data || x.add) return;
    memset(scratch, 0, (size_t)width * sizeof *scratch);
    for (int64_t j = 0; j < n; j++) NAME(attn_store)(x, at + j * stride, scratch, width, 1);
}

/* The block at k0, and zero gradients for keys beyond the length of the sequence. */
static void block(bwd_block *x, int64_t k0)
{
    const fv_attn_args *a = x->w->t.a;
    const fv_attn_grads *g = x->w->g;
    int64_t end = attn_min(k0 + BLOCK, a->Tk),
            len = attn_max(k0, attn_min(end, a->lens ? a->lens[x->b] : a->Tk));
    if (len > k0) pass(x, k0, len - k0);
    if (!x->want_k) return;
    zero_rows(g->dk, attn_k_offset(a, x->b, x->g, len), a->k_row, end - len, a->Wk, x->scratch);
    zero_rows(g->dv, attn_v_offset(a, x->b, x->g, len), a->v_row, end - len, a->Wv, x->scratch);
}

/* ---- sweeps ---- */

void NAME(attn_sweep_head)(const backward *w, int64_t b, int64_t g, int64_t k0, int64_t k1,
                           bool want_q, float *work)
{
    bwd_block x = {.b = b, .g = g, .r1 = w->t.rows, .want_q = want_q, .want_k = true};
    bwd_block_layout(&x, w, work);
    rows_start(&x);
    for (int64_t k = k0; k < k1; k += BLOCK) block(&x, k);
    if (want_q) rows_finish(&x);
}

void NAME(attn_sweep_block)(const backward *w, int64_t b, int64_t g, int64_t number, float *rows,
                            atomic_llong *ready, float *work)
{
    bwd_block x = {.b = b,
                   .g = g,
                   .r1 = w->t.rows,
                   .want_q = true,
                   .want_k = true,
                   .before = number ? ready + number - 1 : NULL,
                   .ready = ready + number,
                   .rows = rows};
    bwd_block_layout(&x, w, work);
    if (!number) rows_start(&x);
    block(&x, number * BLOCK);
    wait_for_rows(&x, x.r1); /* a block beyond the sequence has no rows */
    rows_ready(&x, INT64_MAX);
    if ((number + 1) * BLOCK >= w->t.a->Tk) rows_finish(&x);
}

void NAME(attn_sweep_dq)(const backward *w, int64_t b, int64_t g, int64_t r0, float *work)
{
    bwd_block x = {
        .b = b, .g = g, .r0 = r0, .r1 = attn_min(r0 + ATTN_DQ_ROWS, w->t.rows), .want_q = true};
    bwd_block_layout(&x, w, work);
    rows_start(&x);
    for (int64_t k = 0; k < w->t.a->Tk; k += BLOCK) block(&x, k);
    rows_finish(&x);
}
