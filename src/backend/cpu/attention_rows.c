/* attention_rows.c - attention of a few rows, as in decoding from a cache, and exact weights.
 *
 * With one row nothing is reused, and the time is that of reading k and v once.  So nothing is
 * packed: keys are transposed 4x4 in registers, so that each has its own lane and its own chain
 * over w, and v is read where it is.  All heads of a sequence process the same few keys before the
 * next ones, because (B,T,H,W) stores the heads of a position side by side: head by head, each
 * would touch every page for a few hundred bytes.
 * The chains of additions are those of attention.c, and so are the bits.
 *
 * Decoding at length T reads T (Wk + Wv) values of each KV head and does one multiply-add on each
 * for every query head that shares it, far below what a core can do in the time of the reads. */
#include "attention.h"

#define KEYS_ABREAST 16 /* keys whose chains are interleaved */
#define VALUES 16       /* rows of v that one head reads before the next head does */

static inline f4 four(float x) { return (f4){x, x, x, x}; }

/* sum[k] += q[w..w+3] . row k [w..w+3], for four rows, in the order of w
 * Four keys in four lanes.  A dot product along w in vectors would be faster alone, but its
 * lanes would be summed in another order than attention_block.c does. */
static inline f4 dot4(const float *q, const float *const *k, int64_t w, f4 sum)
{
    f4 y[4];
    attn_transpose4(y, attn_load4(k[0] + w), attn_load4(k[1] + w), attn_load4(k[2] + w),
                    attn_load4(k[3] + w));
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) sum = attn_fma4(y[i], four(q[w + i]), sum);
    return sum;
}

/* s[j] = q . row j of k, for n rows; s has the capacity of n rounded up to KEYS_ABREAST.
 * Keys beyond n repeat the last one: valid memory, no branch, and mask_and_bias overwrites them. */
static void scores(float *s, const float *q, const float *k, int64_t ld, int64_t n, int64_t width)
{
    for (int64_t j = 0; j < n; j += KEYS_ABREAST) {
        const float *row[KEYS_ABREAST];
        f4 sum[KEYS_ABREAST / 4] = {{0}};
        for (int x = 0; x < KEYS_ABREAST; x++) row[x] = k + attn_min(j + x, n - 1) * ld;
        int64_t w = 0;
        for (; w + 4 <= width; w += 4)
#pragma GCC unroll 4
            for (int x = 0; x < KEYS_ABREAST / 4; x++) sum[x] = dot4(q, row + 4 * x, w, sum[x]);
        for (; w < width; w++)
            for (int x = 0; x < KEYS_ABREAST / 4; x++) {
                f4 column = {row[4 * x][w], row[4 * x + 1][w], row[4 * x + 2][w],
                             row[4 * x + 3][w]};
                sum[x] = attn_fma4(column, four(q[w]), sum[x]);
            }
        memcpy(s + j, sum, sizeof sum);
    }
}

/* Masks and biases of a row on n scores, -inf out of its range and from n to a multiple of
 * KEYS_ABREAST. */
static void mask_and_bias(float *s, const attn *t, const attn_row *r, int64_t j0, int64_t n)
{
    if (t->has_mask_or_bias) {
        float e[KEYS];
        NAME(attn_bias_row)(e, t, r, j0, n);
        for (int64_t j = 0; j < n; j++) s[j] = e[j] < -FLT_MAX ? -INFINITY : s[j] + e[j];
    }
    for (int64_t j = 0; j < r->lo - j0 && j < n; j++) s[j] = -INFINITY;
    for (int64_t j = attn_max(0, attn_min(n, r->hi - j0)); j < attn_round_up(n, KEYS_ABREAST); j++)
        s[j] = -INFINITY;
}

static inline float first(vf x)
{
    float t[VW];
    v_store(t, x);
    return t[0];
}

/* Weights from n (a multiple of KEYS_ABREAST) scores, and what is left of the sums so far;
 * `online_softmax` of attention.c for one row.
 * The sum is four chains (key mod 4), in vectors of four at every level, as attention.c adds
 * them. */
static float online_softmax(float *s, int64_t n, float *m, float *l)
{
    vf top = v_set1(*m);
    for (int64_t j = 0; j < n; j += VW) top = v_max(top, v_load(s + j));
    top = v_set1(v_hmax(top));
    vf rescale = attn_exp2(v_sub(v_set1(*m), top));
    f4 sum = {0};
    for (int64_t j = 0; j < n; j += VW) v_store(s + j, attn_exp2(v_sub(v_load(s + j), top)));
    for (int64_t j = 0; j < n; j += 4) sum += attn_load4(s + j);
    *l = first(v_fma(v_set1(*l), rescale, v_set1((sum[0] + sum[1]) + (sum[2] + sum[3]))));
    *m = first(top);
    return first(rescale);
}

#define COLUMNS 64 /* of o, kept in registers while rows of v are read */

ALWAYS_INLINE void accumulate_pv_columns(float *o, const float *p, const float *v, int64_t ld,
                                         int64_t n)
{
    vf y[COLUMNS / VW];
#pragma GCC unroll 16
    for (int c = 0; c < COLUMNS / VW; c++) y[c] = v_load(o + c * VW);
    for (int64_t j = 0; j < n; j++, v += ld) {
        vf pj = v_set1(p[j]);
#pragma GCC unroll 16
        for (int c = 0; c < COLUMNS / VW; c++) y[c] = v_fma(pj, v_load(v + c * VW), y[c]);
    }
#pragma GCC unroll 16
    for (int c = 0; c < COLUMNS / VW; c++) v_store(o + c * VW, y[c]);
}

/* o += sum of p[j] v_j over n rows of v, in their order; o has the capacity of width rounded up to
 * VW */
static void accumulate_pv(float *o, const float *p, const float *v, int64_t ld, int64_t n,
                          int64_t width)
{
    int64_t c = 0;
    for (; c + COLUMNS <= width; c += COLUMNS) accumulate_pv_columns(o + c, p, v + c, ld, n);
    for (; c < width; c += VW) {
        vf y = v_load(o + c);
        for (int64_t j = 0; j < n; j++) {
            const float *x = v + j * ld + c;
            y = v_fma(v_set1(p[j]), width - c < VW ? v_load_n(x, width - c, 0) : v_load(x), y);
        }
        v_store(o + c, y);
    }
}

/* Keys or values [j0, j0+n) of a head as rows of f32: in place, or converted into scratch.  *ld:
 * the row stride. */
static const float *tile(const attn *t, const void *x, int64_t at, int64_t row, int64_t n,
                         int64_t width, float *scratch, int64_t *ld)
{
    *ld = t->dtype == FV_F32 ? row : width;
    if (t->dtype == FV_F32) return (const float *)x + at;
    for (int64_t j = 0; j < n; j++)
        NAME(attn_load)(x, t->dtype, at + j * row, width, scratch + j * width);
    return scratch;
}

static void scaled_query(float *q, const attn *t, const attn_row *r)
{
    const float *x = NAME(attn_load)(t->a->q, t->dtype, attn_q_offset(t->a, r), t->a->Wk, q);
    for (int64_t c = 0; c < t->a->Wk; c++) q[c] = x[c] * t->scale2;
}

/* ---- forward ---- */

/* The rows of key heads [g0, g0+heads) of one sequence: row r of the x-th head has index x *
 * t->rows + r. */
typedef struct few_rows {
    const attn *t;
    int64_t b, g0, heads, n;
    float *q, *o, *s; /* (n, Wk), (n, wo), (n, KEYS) */
    float *m, *l, *scratch;
    int64_t wo; /* Wv rounded up to VW */
} few_rows;

int64_t NAME(attn_few_rows_floats)(const attn *t, int64_t heads)
{
    const fv_attn_args *a = t->a;
    return heads * t->rows * (a->Wk + attn_round_up(a->Wv, VW) + KEYS + 2) +
           KEYS * attn_max(a->Wk, a->Wv);
}

static few_rows few_rows_layout(const attn *t, int64_t b, int64_t g0, int64_t heads, float *work)
{
    few_rows f = {.t = t,
                  .b = b,
                  .g0 = g0,
                  .heads = heads,
                  .n = heads * t->rows,
                  .wo = attn_round_up(t->a->Wv, VW)};
    f.q = work;
    f.o = f.q + f.n * t->a->Wk;
    f.s = f.o + f.n * f.wo;
    f.m = f.s + f.n * KEYS;
    f.l = f.m + f.n;
    f.scratch = f.l + f.n;
    return f;
}

static attn_row row_of(const few_rows *f, int64_t x)
{
    return NAME(attn_row)(f->t, f->b, f->g0 + x / f->t->rows, x % f->t->rows);
}

/* Updates all rows with the keys [j0, j0+n) of a tile.
 * Heads are the inner loop: the keys of a few positions of all heads lie in the same pages.
 *
 *      for each KEYS_ABREAST keys:  for each row of each head:  scores
 *      for each row:                softmax of its KEYS scores, o *= correction
 *      for each VALUES values:      for each row of each head:  o += p v */
static void process_tile(few_rows *f, int64_t j0, int64_t n)
{
    const attn *t = f->t;
    const fv_attn_args *a = t->a;
    int64_t ld;
    for (int64_t j = 0; j < n; j += KEYS_ABREAST)
        for (int64_t x = 0; x < f->n; x++) {
            int64_t some = attn_min(KEYS_ABREAST, n - j),
                    at = attn_k_offset(a, f->b, f->g0 + x / t->rows, j0 + j);
            const float *k = tile(t, a->k, at, a->k_row, some, a->Wk, f->scratch, &ld);
            scores(f->s + x * KEYS + j, f->q + x * a->Wk, k, ld, some, a->Wk);
        }
    for (int64_t x = 0; x < f->n; x++) {
        attn_row row = row_of(f, x);
        mask_and_bias(f->s + x * KEYS, t, &row, j0, n);
        vf rescale = v_set1(
            online_softmax(f->s + x * KEYS, attn_round_up(n, KEYS_ABREAST), &f->m[x], &f->l[x]));
        for (float *o = f->o + x * f->wo; o < f->o + (x + 1) * f->wo; o += VW)
            v_store(o, v_mul(v_load(o), rescale));
    }
    for (int64_t j = 0; j < n; j += VALUES)
        for (int64_t x = 0; x < f->n; x++) {
            int64_t some = attn_min(VALUES, n - j),
                    at = attn_v_offset(a, f->b, f->g0 + x / t->rows, j0 + j);
            const float *v = tile(t, a->v, at, a->v_row, some, a->Wv, f->scratch, &ld);
            accumulate_pv(f->o + x * f->wo, f->s + x * KEYS + j, v, ld, some, a->Wv);
        }
}

void NAME(attn_few_rows)(const attn *t, int64_t b, int64_t g0, int64_t heads, float *work)
{
    few_rows f = few_rows_layout(t, b, g0, heads, work);
    int64_t lo = INT64_MAX, hi = 0;
    memset(f.o, 0, (size_t)(f.n * f.wo) * sizeof *f.o);
    for (int64_t x = 0; x < f.n; x++) {
        attn_row row = row_of(&f, x);
        scaled_query(f.q + x * t->a->Wk, t, &row);
        f.m[x] = -FLT_MAX;
        f.l[x] = 0;
        if (row.hi > 0) lo = attn_min(lo, row.lo);
        hi = attn_max(hi, row.hi);
    }
    for (int64_t j0 = lo / KEYS * KEYS; j0 < hi; j0 += KEYS)
        process_tile(&f, j0, attn_min(KEYS, hi - j0));
    for (int64_t x = 0; x < f.n; x++) {
        attn_row row = row_of(&f, x);
        NAME(attn_finish)(t, &row, f.o + x * f.wo, f.m[x], f.l[x]);
    }
}

/* ---- exact weights ---- */

/* w = 2^(s - m) / l with (m, l) from the forward pass: exactly the weights it used, bit for bit
 * in s, at the cost of one row of q k'.  Dropout is not applied: these are the weights of the
 * model. */
void NAME(attn_weights)(fv_sink w, int64_t at, const attn *t, int64_t b, int64_t h, int64_t i,
                        float *work)
{
    const fv_attn_args *a = t->a;
    int64_t g = h / t->q_per_kv, ld;
    attn_row row = NAME(attn_row)(t, b, g, h % t->q_per_kv * a->Tq + i);
    float *q = work, *s = q + a->Wk, *scratch = s + KEYS;
    const float *lse = attn_lse(a, &row);
    scaled_query(q, t, &row);
    if (!w.add)
        memset((char *)w.data + (size_t)at * fv_dtype_size(w.dtype), 0,
               (size_t)a->Tk * fv_dtype_size(w.dtype));
    for (int64_t j0 = row.lo / KEYS * KEYS; j0 < row.hi && lse[1] != 0; j0 += KEYS) {
        int64_t n = attn_min(KEYS, row.hi - j0);
        const float *k = tile(t, a->k, attn_k_offset(a, b, g, j0), a->k_row, n, a->Wk, scratch,
                              &ld);
        scores(s, q, k, ld, n, a->Wk);
        mask_and_bias(s, t, &row, j0, n);
        for (int64_t j = 0; j < n; j += VW)
            v_store(s + j, attn_exp2(v_sub(v_load(s + j), v_set1(lse[0]))));
        NAME(attn_store)(w, at + j0, s, n, 1 / lse[1]);
    }
}
