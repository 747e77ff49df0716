/* attention.c - attention forward, many rows at a time, and the table of attention kernels.
 *
 * A job is up to JOB_ROWS rows of one KV head.  It packs their q once; then, for each tile of keys,
 * it packs k and v once and updates its panels of LANES rows (online softmax, correction c):
 *     s = k q';  m' = max(m, s);  p = 2^(s - m');  c = 2^(m - m');  l = c l + sum p;
 *     o = c o + v' p
 * and in the end y = o / l; m and l are kept, as lse.  Tiles that are masked for all
 * rows of a panel are skipped.
 *
 * The algorithm is FlashAttention's (Dao et al., 2022; the online softmax is Milakov and
 * Gimelshein's, 2018) with caches in the role of shared memory: a job's q and o panels stay in
 * L2, the packed tile of keys and one panel of scores in L1.  Memory is O(JOB_ROWS + KEYS) a
 * thread, whatever Tk is.
 *
 *      q: panels of LANES rows     k, v: a tile of KEYS keys, packed once and used by every panel
 *      +-------+-------+----       +------+
 *      | p = 0 | p = 1 |           | tile | -> next tile
 *      +-------+-------+----       +------+
 *
 * Two other orders lost.  Rows outside and keys inside a thread (no job of many panels) packs the
 * keys once per LANES rows instead of once per JOB_ROWS.  Splitting the keys of a row among
 * threads would fill more threads on short batches, but then the order of the sum depends on the
 * thread count. */
#include "attention_job.h"
#include "parallel.h"
#if defined(CPU_NEON) || defined(CPU_NEON_BF16)
#include "attention_neon.h"
#endif

/* ---- f32 ---- */

/* q: panels (Wk, LANES); k: strips of keys (Wk, STEP); v: strips of columns (KEYS, STEP).
 * Floats of scratch, in the order of layout.  `scratch` doubles as the landing area for rows
 * that are converted from 16 bits while packing, hence the last term. */
static int64_t floats(const attn *t)
{
    return JOB_ROWS * (t->a->Wk + t->wv + 2) + KEYS * (t->a->Wk + t->wv) + 3 * KEYS * LANES +
           KEYS * attn_max(t->wk, t->wv);
}

static void layout(job *x, float *work)
{
    const attn *t = x->t;
    float *k = work + JOB_ROWS * (t->a->Wk + t->wv + 2), *v = k + KEYS * t->a->Wk;
    x->wo = t->wv;
    x->q = work;
    x->o = work + JOB_ROWS * t->a->Wk;
    x->m = x->o + JOB_ROWS * t->wv;
    x->l = x->m + JOB_ROWS;
    x->k = k;
    x->v = v;
    x->s = v + KEYS * t->wv;
    x->scratch = x->s + KEYS * LANES;
    x->after = 1;
}

/* Packs q, multiplied by scale * log2 e once here, so that scores come out in base 2. */
static void pack_rows(job *x, int p)
{
    const attn *t = x->t;
    const fv_attn_args *a = t->a;
    const float *rows[LANES];
    int n = (int)attn_min(x->n - p, LANES);
    for (int l = 0; l < n; l++)
        rows[l] = NAME(attn_load)(a->q, t->dtype, attn_q_offset(a, &x->row[p + l]), a->Wk,
                                  x->scratch + l * t->wk);
    NAME(attn_pack_lanes)((float *)x->q + p * a->Wk, LANES, rows, n, a->Wk, t->scale2);
}

/* k in strips of STEP keys as (Wk, STEP), the A of K Q'; v in strips of STEP columns as (KEYS,
 * STEP), the A of V' P'.  Both are read along their strips, one after the other. */
static void pack_keys(job *x, int64_t j0, int64_t n)
{
    const attn *t = x->t;
    const fv_attn_args *a = t->a;
    const float *rows[KEYS] = {0};
    for (int64_t j = 0; j < n; j++)
        rows[j] = NAME(attn_load)(a->k, t->dtype, attn_k_offset(a, x->b, x->g, j0 + j), a->Wk,
                                  x->scratch + j * t->wk);
    NAME(attn_pack_strips)((float *)x->k, rows, n, a->Wk);
    for (int64_t j = 0; j < n; j++)
        rows[j] = NAME(attn_load)(a->v, t->dtype, attn_v_offset(a, x->b, x->g, j0 + j), a->Wv,
                                  x->scratch + j * t->wv);
    NAME(attn_pack_steps)(x->v, KEYS * STEP, rows, (int)n, a->Wv);
}

/* s[j] = 2^(s[j] - top) for one vector of rows, and their sums over keys mod 4, which keep the
 * adder busy; n is a multiple of 4. */
#if defined(CPU_NEON) || defined(CPU_NEON_BF16)
NOINLINE void weigh(float *s, int64_t n, vf top, vf sum[4])
{
    vf l[4] = {sum[0], sum[1], sum[2], sum[3]};
    neon_exp2 now;
    neon_exp2_start(&now, s, top);
    for (int64_t j = 0; j < n; j += 4, s += 4 * LANES) {
        vf e[4];
        neon_exp2_next(e, &now, j + 4 < n ? s + 4 * LANES : s);
#pragma GCC unroll 4
        for (int k = 0; k < 4; k++) {
            l[k] = neon_add(l[k], e[k]);
            v_store(s + k * LANES, e[k]);
        }
    }
#pragma GCC unroll 4
    for (int k = 0; k < 4; k++) sum[k] = l[k];
}
#else
ALWAYS_INLINE void weigh(float *s, int64_t n, vf top, vf sum[4])
{
    for (int64_t j = 0; j < n; j += 4)
#pragma GCC unroll 4
        for (int k = 0; k < 4; k++) {
            float *p = s + (j + k) * LANES;
            vf e = attn_exp2(v_sub(v_load(p), top));
            sum[k] = v_add(sum[k], e);
            v_store(p, e);
        }
}
#endif

/* Scores to weights for one vector of rows; n is a multiple of 4.
 * Two passes over scores in L1: one pass would have to rescale l at every key. */
static void online_softmax(float *s, int64_t n, float *m, float *l, float *keep)
{
    vf top = v_load(m), t1 = top, t2 = top, t3 = top;
    for (int64_t j = 0; j < n; j += 4) {
        const float *p = s + j * LANES;
        top = v_max(top, v_load(p));
        t1 = v_max(t1, v_load(p + LANES));
        t2 = v_max(t2, v_load(p + 2 * LANES));
        t3 = v_max(t3, v_load(p + 3 * LANES));
    }
    top = v_max(v_max(top, t1), v_max(t2, t3));
    vf rescale = attn_exp2(v_sub(v_load(m), top)),
       sum[4] = {v_zero(), v_zero(), v_zero(), v_zero()};
    weigh(s, n, top, sum);
    v_store(m, top);
    v_store(l, v_fma(v_load(l), rescale, v_add(v_add(sum[0], sum[1]), v_add(sum[2], sum[3]))));
    v_store(keep, rescale);
}

/* k and v of one key of the next tile: they are a head's part of long rows, which no hardware
 * prefetcher follows, and packing them would wait for each. */
static void prefetch_key(job *x)
{
    const fv_attn_args *a = x->t->a;
    int64_t size = (int64_t)fv_dtype_size(x->t->dtype), j = x->ahead++;
    const char *k = (const char *)a->k + attn_k_offset(a, x->b, x->g, j) * size,
               *v = (const char *)a->v + attn_v_offset(a, x->b, x->g, j) * size;
    for (int64_t i = 0; i < a->Wk * size; i += 64) __builtin_prefetch(k + i, 0, 2);
    for (int64_t i = 0; i < a->Wv * size; i += 64) __builtin_prefetch(v + i, 0, 2);
}

/* Updates panel p with the keys [j0, j0+n) of the tile.
 * l adds the weights before dropout: dropout acts on the normalised weights, and 1/l is a factor
 * that can wait until `finish`.  The range [n, round_up(n, 4)) is filled with -inf, so its
 * weights are 0. */
static void process_tile(job *x, int p, int64_t j0, int64_t n)
{
    const attn *t = x->t;
    const fv_attn_args *a = t->a;
    const attn_row *row = x->row + p;
    int n_rows = (int)attn_min(x->n - p, LANES);
    const float *q = (const float *)x->q + p * a->Wk, *k = x->k, *v = x->v;
    float keep[LANES];
    for (int64_t j = 0; j < n; j += STEP) {
        if (x->ahead < x->ahead_end) prefetch_key(x);
        NAME(attn_set)(x->s + j * LANES, k + j * a->Wk, q, a->Wk);
    }
    NAME(attn_mask_and_bias)(x->s, t, row, n_rows, j0, n, x->scratch);
    for (int64_t i = n * LANES; i < attn_round_up(n, 4) * LANES; i++) x->s[i] = -INFINITY;
    for (int i = 0; i < LANES; i += VW)
        online_softmax(x->s + i, attn_round_up(n, 4), x->m + p + i, x->l + p + i, keep + i);
    if (a->dropout > 0) {
        NAME(attn_dropout)(x->scratch, t, row, n_rows, j0, n);
        for (int64_t i = 0; i < n * LANES; i += VW)
            v_store(x->s + i, v_mul(v_load(x->s + i), v_load(x->scratch + i)));
    }
    for (int64_t c = 0; c < a->Wv; c += STEP)
        NAME(attn_scale_add)(x->o + p * t->wv + c * LANES, v + c * KEYS, x->s, n, keep);
}

static const attn_arithmetic in_f32 = {.keys = KEYS,
                                       .floats = floats,
                                       .layout = layout,
                                       .pack_rows = pack_rows,
                                       .pack_keys = pack_keys,
                                       .tile = process_tile};

/* ---- jobs ---- */

static void start(job *x, const attn_arithmetic *how)
{
    for (int r = 0; r < x->n; r++) x->row[r] = NAME(attn_row)(x->t, x->b, x->g, x->r0 + r);
    for (int p = 0; p < x->n; p += LANES) how->pack_rows(x, p);
    /* -FLT_MAX and not -inf: as long as a row has seen no key its correction is 2^(m - m), and
     * -inf minus -inf would be NaN. */
    int64_t lanes = attn_round_up(x->n, LANES);
    for (int64_t r = 0; r < lanes; r++) x->m[r] = -FLT_MAX, x->l[r] = 0;
    memset(x->o, 0, (size_t)(lanes * x->wo) * sizeof *x->o);
}

static void finish(job *x)
{
    const attn *t = x->t;
    for (int p = 0; p < x->n; p += LANES) {
        NAME(attn_transpose)(x->scratch, x->wo, x->o + p * x->wo, LANES, x->wo, LANES);
        for (int64_t i = 0; x->after != 1 && i < x->wo * LANES; i++) x->scratch[i] *= x->after;
        for (int l = 0; l < LANES && p + l < x->n; l++)
            NAME(attn_finish)(t, &x->row[p + l], x->scratch + l * x->wo, x->m[p + l], x->l[p + l]);
    }
}

/* Tiles start at multiples of their size whatever the window or the job, so a row's sums are cut
 * at the same keys in every batch. */
static void run(job *x, const attn_arithmetic *how)
{
    const int64_t keys = how->keys;
    int64_t lo[JOB_ROWS / LANES + 1] = {0}, hi[JOB_ROWS / LANES + 1] = {0}, first = INT64_MAX,
                                  last = 0;
    start(x, how);
    for (int p = 0; p < x->n; p += LANES) {
        int64_t from = INT64_MAX, to = 0;
        for (int r = p; r < x->n && r < p + LANES; r++) {
            if (x->row[r].hi > 0) from = attn_min(from, x->row[r].lo);
            to = attn_max(to, x->row[r].hi);
        }
        lo[p / LANES] = from;
        hi[p / LANES] = to;
        first = attn_min(first, from);
        last = attn_max(last, to);
    }
    for (int64_t j0 = first / keys * keys; j0 < last; j0 += keys) {
        how->pack_keys(x, j0, attn_min(keys, last - j0));
        int64_t next = attn_max(0, attn_min(keys, last - j0 - keys));
        x->ahead = j0 + keys;
        for (int p = 0; p < x->n; p += LANES) {
            x->ahead_end = j0 + keys + attn_min(next, next * (p + LANES) / x->n);
            if (lo[p / LANES] < j0 + keys && hi[p / LANES] > j0)
                how->tile(x, p, j0, attn_min(keys, hi[p / LANES] - j0));
        }
    }
    finish(x);
}

/* Rows of a job: all jobs have the same number, fewer than JOB_ROWS if threads would be idle.
 * At least four jobs a thread where there are rows for it: with a causal mask the last rows see
 * many times the keys of the first, and dynamic scheduling needs small jobs to level that out. */
static int64_t job_rows(const attn *t, int threads)
{
    int64_t fit = JOB_BYTES / (int64_t)sizeof(float) / (t->wk + t->wv) / LANES * LANES,
            most = attn_min(JOB_ROWS, attn_max(JOB_LEAST, fit)), heads = t->a->B * t->a->G,
            parts = attn_max((t->rows + most - 1) / most, (4 * threads + heads - 1) / heads);
    return attn_round_up(attn_max((t->rows + parts - 1) / parts, attn_min(96, t->rows)), LANES);
}

typedef struct {
    const attn *t;
    const attn_arithmetic *how;
    float *work;
    int64_t each, rows, parts;
} many_rows_args;

static void many_rows_part(void *arg, int64_t lo, int64_t hi, int slot)
{
    const many_rows_args *l = arg;
    if (l->how->enter) l->how->enter();
    for (int64_t i = lo; i < hi; i++) {
        int64_t unit = i / l->parts,
                part = l->parts - 1 -
                       i % l->parts; /* with a causal mask the last rows see the most keys */
        job x = {.t = l->t,
                 .b = unit / l->t->a->G,
                 .g = unit % l->t->a->G,
                 .r0 = part * l->rows,
                 .n = (int)attn_min(l->rows, l->t->rows - part * l->rows)};
        l->how->layout(&x, l->work + l->each * slot);
        run(&x, l->how);
    }
    if (l->how->leave) l->how->leave();
}

static void many_rows(fv_stream *s, const attn *t, const attn_arithmetic *how, int threads)
{
    const fv_attn_args *a = t->a;
    int64_t rows = job_rows(t, threads), parts = (t->rows + rows - 1) / rows,
            jobs = a->B * a->G * parts;
    threads = (int)attn_min(threads, jobs);
    int64_t each = attn_round_up(how->floats(t), 16);
    float *work = fv_stream_scratch(s, (size_t)(each * threads) * sizeof *work);
    if (!work) return;
    fv__cpu_parallel(s, threads, jobs, 1, many_rows_part,
                     &(many_rows_args){t, how, work, each, rows, parts});
}

typedef struct {
    const attn *t;
    float *work;
    int64_t each, parts, heads;
} few_rows_args;

static void few_rows_part(void *arg, int64_t lo, int64_t hi, int slot)
{
    const few_rows_args *l = arg;
    for (int64_t i = lo; i < hi; i++) {
        int64_t g0 = i % l->parts * l->heads;
        NAME(attn_few_rows)
        (l->t, i / l->parts, g0, attn_max(0, attn_min(l->heads, l->t->a->G - g0)),
         l->work + l->each * slot);
    }
}

/* One sequence is one job, or one group of KV heads where there are fewer sequences than
 * threads. */
static void few_rows(fv_stream *s, const attn *t, int threads)
{
    const fv_attn_args *a = t->a;
    int64_t parts = attn_min(a->G, (threads + a->B - 1) / a->B), heads = (a->G + parts - 1) / parts;
    threads = (int)attn_min(threads, a->B * parts);
    int64_t each = attn_round_up(NAME(attn_few_rows_floats)(t, heads), 16);
    float *work = fv_stream_scratch(s, (size_t)(each * threads) * sizeof *work);
    if (!work) return;
    fv__cpu_parallel(s, threads, a->B * parts, 1, few_rows_part,
                     &(few_rows_args){t, work, each, parts, heads});
}

static void forward(fv_stream *s, const fv_attn_args *a, fv_dtype dtype)
{
    attn t;
    if (!NAME(attn_init)(&t, s, a, dtype) || a->B * t.rows == 0) return;
    int64_t work = a->B * a->H * a->Tq * a->Tk * (a->Wk + a->Wv);
    /* few rows are bound by reading keys from memory: a product costs as much as several */
    bool few = t.rows <= FEW_ROWS;
    int threads = NAME(attn_threads)(s, few ? work * FEW_ROWS : work);
    const attn_arithmetic *how = &in_f32;
#if defined(CPU_AMX)
    if (dtype == FV_BF16) how = &NAME(attn_amx);
#endif
    if (few && a->dropout <= 0 && how == &in_f32)
        few_rows(s, &t, threads);
    else
        many_rows(s, &t, how, threads);
}

/* ---- the table ---- */

typedef struct {
    fv_sink w;
    const attn *t;
    float *work;
    int64_t each, b, h, i0;
} weights_args;

static void weights_part(void *arg, int64_t lo, int64_t hi, int slot)
{
    const weights_args *l = arg;
    for (int64_t i = l->i0 + lo; i < l->i0 + hi; i++) NAME(attn_weights)
    (l->w, (i - l->i0) * l->t->a->Tk, l->t, l->b, l->h, i, l->work + l->each * slot);
}

static void weights(fv_stream *s, fv_sink w, const fv_attn_args *a, int64_t b, int64_t h,
                    int64_t i0, int64_t i1, fv_dtype dtype)
{
    attn ready, *t = &ready;
    if (!NAME(attn_init)(t, s, a, dtype)) return;
    int threads = (int)attn_min(NAME(attn_threads)(s, (i1 - i0) * a->Tk * a->Wk),
                                attn_max(1, i1 - i0));
    int64_t each = attn_round_up(NAME(attn_few_rows_floats)(t, 1) + a->Wk + KEYS, 16);
    float *work = fv_stream_scratch(s, (size_t)(each * threads) * sizeof *work);
    if (!work) return;
    fv__cpu_parallel(s, threads, i1 - i0, 8, weights_part,
                     &(weights_args){w, t, work, each, b, h, i0});
}

static void forward_f32(fv_stream *s, const fv_attn_args *a) { forward(s, a, FV_F32); }
static void forward_bf16(fv_stream *s, const fv_attn_args *a) { forward(s, a, FV_BF16); }
static void forward_f16(fv_stream *s, const fv_attn_args *a) { forward(s, a, FV_F16); }

static void backward_f32(fv_stream *s, const fv_attn_args *a, const fv_attn_grads *g)
{
    NAME(attn_bwd)(s, a, g, FV_F32);
}
static void backward_bf16(fv_stream *s, const fv_attn_args *a, const fv_attn_grads *g)
{
    NAME(attn_bwd)(s, a, g, FV_BF16);
}
static void backward_f16(fv_stream *s, const fv_attn_args *a, const fv_attn_grads *g)
{
    NAME(attn_bwd)(s, a, g, FV_F16);
}

static void weights_f32(fv_stream *s, fv_sink w, const fv_attn_args *a, int64_t b, int64_t h,
                        int64_t i0, int64_t i1)
{
    weights(s, w, a, b, h, i0, i1, FV_F32);
}
static void weights_bf16(fv_stream *s, fv_sink w, const fv_attn_args *a, int64_t b, int64_t h,
                         int64_t i0, int64_t i1)
{
    weights(s, w, a, b, h, i0, i1, FV_BF16);
}
static void weights_f16(fv_stream *s, fv_sink w, const fv_attn_args *a, int64_t b, int64_t h,
                        int64_t i0, int64_t i1)
{
    weights(s, w, a, b, h, i0, i1, FV_F16);
}

void NAME(attention)(fv_kernels *k);

void NAME(attention)(fv_kernels *k)
{
    if (k->dtype == FV_F64) return; /* f64 is served by the reference kernels */
    k->attention = k->dtype == FV_F32    ? forward_f32
                   : k->dtype == FV_BF16 ? forward_bf16
                                         : forward_f16;
    k->attention_bwd = k->dtype == FV_F32    ? backward_f32
                       : k->dtype == FV_BF16 ? backward_bf16
                                             : backward_f16;
    k->attention_weights = k->dtype == FV_F32    ? weights_f32
                           : k->dtype == FV_BF16 ? weights_bf16
                                                 : weights_f16;
}
