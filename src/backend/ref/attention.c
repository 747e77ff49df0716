/* attention.c - scaled dot-product attention, its gradient, exact weights, and writing to a
 * key/value cache.
 *
 * Everything is written down pair by pair from the definition in author/kernel_args.h.  The forward
 * pass keeps one row of scores; the backward pass keeps none and recomputes the weight of a pair
 * from lse = (m, l) wherever it needs it, with scores in base 2:
 *     w = 2^(score - m) / l,  dw = keep dy_i.v_j (keep: 0, or 1 over the share kept),
 *     dscore = w * (dw - dy_i.y_i). */
#include "backend/attention_dropout.h"
#include "ref.h"

#define LOG2E ((acc)1.4426950408889634)

typedef const fv_attn_args args;
typedef struct {
    int64_t b, h, i, j;
} pair; /* row i of head h asks key j, in sequence b */

static int64_t length(args *a, int64_t b) { return a->lens ? a->lens[b] : a->Tk; }
/* Queries are the last Tq of the sequence's positions, so a decode step with a KV cache is the
 * same formula with Tq = 1. */
static int64_t position(args *a, pair p) { return p.i + length(a, p.b) - a->Tq; }
static int64_t kv_head(args *a, int64_t h) { return h / (a->H / a->G); }

static int64_t q_offset(args *a, pair p) { return p.b * a->q_batch + p.i * a->q_row + p.h * a->Wk; }
static int64_t k_offset(args *a, pair p)
{
    return p.b * a->k_batch + p.j * a->k_row + kv_head(a, p.h) * a->Wk;
}
static int64_t v_offset(args *a, pair p)
{
    return p.b * a->v_batch + p.j * a->v_row + kv_head(a, p.h) * a->Wv;
}
static int64_t y_offset(args *a, pair p) { return ((p.b * a->Tq + p.i) * a->H + p.h) * a->Wv; }
static int64_t at_row(args *a, pair p) { return (p.b * a->H + p.h) * a->Tq + p.i; }
static int64_t at_grid(const int64_t s[3], pair p)
{
    return p.b * s[0] + p.h * s[1] + p.i * s[2] + p.j;
}

/* Table (H, rel_len): entry rel_zero is distance 0; distances beyond either end use the end. */
static int64_t rel_index(args *a, pair p)
{
    int64_t l = a->rel_zero + p.j - position(a, p);
    l = l < 0 ? 0 : l >= a->rel_len ? a->rel_len - 1 : l;
    return p.h * a->rel_len + l;
}

static acc scale_of(args *a) { return a->scale != 0 ? (acc)a->scale : 1 / SQRT((acc)a->Wk); }

static acc dot(const void *x, int64_t ix, const void *y, int64_t iy, int64_t n)
{
    acc sum = 0;
    for (int64_t w = 0; w < n; w++) sum += ld(x, ix + w) * ld(y, iy + w);
    return sum;
}

/* Five conditions, all of which must hold: length, key padding, mask by pairs, causality,
 * window. */
static bool takes_part(args *a, pair p)
{
    int64_t pos = position(a, p);
    if (p.j >= length(a, p.b)) return false;
    if (a->key_mask && !a->key_mask[p.b * a->Tk + p.j]) return false;
    if (a->mask && !a->mask[at_grid(a->mask_s, p)]) return false;
    if (a->causal && p.j > pos) return false;
    return a->window <= 0 || p.j > pos - a->window;
}

/* In base 2; -inf for a key that takes no part. */
static acc score(args *a, pair p)
{
    if (!takes_part(a, p)) return -(acc)INFINITY;
    acc s = scale_of(a) * dot(a->q, q_offset(a, p), a->k, k_offset(a, p), a->Wk);
    if (a->bias) s += ld(a->bias, at_grid(a->bias_s, p));
    if (a->rel) s += ld(a->rel, rel_index(a, p));
    acc in_base_2 = s * LOG2E; /* a finite score must not become a mask by overflow */
    return in_base_2 < LOWEST && s >= LOWEST ? LOWEST : in_base_2;
}

/* What dropout multiplies the weight with: 0, or 1 over the share that is kept.
 * The bits of a pair are a function of (seed, site, step, head, i, j) alone; see
 * attention_dropout.h. */
static acc dropout(args *a, pair p)
{
    if (a->dropout <= 0) return 1;
    uint32_t row = fv__philox_row_index((uint32_t)(p.b * a->H + p.h), (uint32_t)a->Tq,
                                        (uint32_t)p.i),
             key = fv__philox_key_index((uint32_t)p.j);
    uint32_t word[4];
    fv__philox_round_keys keys = fv__philox_schedule(a->rng.seed);
    fv__philox7(word, &keys, a->rng.site, *a->rng.step, row, key);
    uint32_t bits = word[fv__philox_word((uint32_t)p.j)] >> (p.i % 16 / 8 * 16) & 0xffff;
    return bits >= fv__dropout_threshold(a->dropout) ? (acc)(1 / fv__keep_probability(a->dropout))
                                                     : 0;
}

static bool lens_ok(fv_stream *s, args *a)
{
    for (int64_t b = 0; a->lens && b < a->B; b++) {
        if (a->lens[b] >= 0 && a->lens[b] <= a->Tk) continue;
        fv_stream_fail(s, FV_EARG, "attention: lens[%lld] is %d, there are %lld keys", (long long)b,
                       a->lens[b], (long long)a->Tk);
        return false;
    }
    return true;
}

/* ---- forward ---- */

/* Two passes and no tiles: this is the definition that tiled kernels are compared with. */
static void row(args *a, pair p, acc *w)
{
    acc top = -(acc)INFINITY, sum = 0;
    for (p.j = 0; p.j < a->Tk; p.j++) {
        w[p.j] = score(a, p);
        if (w[p.j] > top) top = w[p.j];
    }
    bool empty = top == -(acc)INFINITY;
    for (int64_t j = 0; j < a->Tk; j++) {
        w[j] = empty ? 0 : EXP2(w[j] - top);
        sum += w[j];
    }
    sts(a->lse, 2 * at_row(a, p), top);
    sts(a->lse, 2 * at_row(a, p) + 1, sum);

    for (p.j = 0; p.j < a->Tk; p.j++) w[p.j] *= w[p.j] != 0 ? dropout(a, p) / sum : 0;
    for (int64_t c = 0; c < a->Wv; c++) {
        acc y = 0;
        for (p.j = 0; p.j < a->Tk; p.j++)
            if (w[p.j] != 0) y += w[p.j] * ld(a->v, v_offset(a, p) + c);
        st(a->y, y_offset(a, p) + c, y);
    }
}

static void attention(fv_stream *s, args *a)
{
    acc *w = fv_stream_scratch(s, (size_t)(a->Tk + 1) * sizeof *w);
    if (!w || !lens_ok(s, a)) return;
    for (int64_t b = 0; b < a->B; b++)
        for (int64_t h = 0; h < a->H; h++)
            for (int64_t i = 0; i < a->Tq; i++) row(a, (pair){b, h, i, 0}, w);
}

/* Of a pair, from its score. */
static acc weight(args *a, pair p, acc x)
{
    if (x == -(acc)INFINITY) return 0;
    return EXP2(x - lds(a->lse, 2 * at_row(a, p))) / lds(a->lse, 2 * at_row(a, p) + 1);
}

/* -> w (i1 - i0, Tk), before dropout; a row without keys gives zeros. */
static void attention_weights(fv_stream *s, fv_sink w, args *a, int64_t b, int64_t h, int64_t i0,
                              int64_t i1)
{
    (void)s;
    for (int64_t i = i0; i < i1; i++)
        for (int64_t j = 0; j < a->Tk; j++) {
            pair p = {b, h, i, j};
            acc x = score(a, p);
            sink_store(w, (i - i0) * a->Tk + j, weight(a, p, x));
        }
}

/* ---- backward ---- */

typedef struct {
    acc w, ds;
} weight_dscore; /* weight after dropout, and d loss / d score */

/* O(Wk + Wv) for one pair, and each pair is recomputed for every gradient that asks: O(T^2 W) in
 * all, with no memory for scores. */
static weight_dscore dscore_at(args *a, const fv_attn_grads *g, const acc *dyy, pair p)
{
    acc x = score(a, p);
    if (x == -(acc)INFINITY) return (weight_dscore){0, 0};
    acc w = weight(a, p, x), keep = dropout(a, p);
    acc dw = keep != 0 ? keep * dot(g->dy, y_offset(a, p), a->v, v_offset(a, p), a->Wv) : 0;
    return (weight_dscore){w * keep, w * (dw - dyy[at_row(a, p)])};
}

/* dq_i = scale * sum over j of ds_ij k_j */
static void query_grads(args *a, const fv_attn_grads *g, const acc *dyy, acc *sum)
{
    pair p;
    for (p.b = 0; p.b < a->B; p.b++)
        for (p.h = 0; p.h < a->H; p.h++)
            for (p.i = 0; p.i < a->Tq; p.i++) {
                for (int64_t c = 0; c < a->Wk; c++) sum[c] = 0;
                for (p.j = 0; p.j < a->Tk; p.j++) {
                    acc ds = scale_of(a) * dscore_at(a, g, dyy, p).ds;
                    for (int64_t c = 0; ds != 0 && c < a->Wk; c++)
                        sum[c] += ds * ld(a->k, k_offset(a, p) + c);
                }
                for (int64_t c = 0; c < a->Wk; c++) sink_store(g->dq, q_offset(a, p) + c, sum[c]);
            }
}

/* One key head serves H/G query heads, whose gradients are added up. */
static void key_grads(args *a, const fv_attn_grads *g, const acc *dyy, acc *sum)
{
    acc *dk = sum, *dv = sum + a->Wk;
    int64_t q_per_kv = a->H / a->G;
    pair p;
    for (p.b = 0; p.b < a->B; p.b++)
        for (int64_t head = 0; head < a->G; head++)
            for (p.j = 0; p.j < a->Tk; p.j++) {
                for (int64_t c = 0; c < a->Wk + a->Wv; c++) sum[c] = 0;
                for (p.h = head * q_per_kv; p.h < (head + 1) * q_per_kv; p.h++)
                    for (p.i = 0; p.i < a->Tq; p.i++) {
                        weight_dscore t = dscore_at(a, g, dyy, p);
                        for (int64_t c = 0; c < a->Wk; c++)
                            dk[c] += scale_of(a) * t.ds * ld(a->q, q_offset(a, p) + c);
                        for (int64_t c = 0; c < a->Wv; c++)
                            dv[c] += t.w * ld(g->dy, y_offset(a, p) + c);
                    }
                p.h = head * q_per_kv;
                for (int64_t c = 0; g->dk.data && c < a->Wk; c++)
                    sink_store(g->dk, k_offset(a, p) + c, dk[c]);
                for (int64_t c = 0; g->dv.data && c < a->Wv; c++)
                    sink_store(g->dv, v_offset(a, p) + c, dv[c]);
            }
}

/* Each element of the bias collects from every pair that read it: all along an axis whose stride is
 * 0. */
static void bias_grads(args *a, const fv_attn_grads *g, const acc *dyy)
{
    int64_t n[3] = {a->B, a->H, a->Tq}, own[3], shared[3];
    for (int x = 0; x < 3; x++) {
        own[x] = a->bias_s[x] ? n[x] : 1;
        shared[x] = a->bias_s[x] ? 1 : n[x];
    }
    for (int64_t e = 0; e < own[0] * own[1] * own[2] * a->Tk; e++) {
        int64_t j = e % a->Tk, i = e / a->Tk % own[2], h = e / a->Tk / own[2] % own[1],
                b = e / a->Tk / own[2] / own[1];
        acc sum = 0;
        for (int64_t r = 0; r < shared[0] * shared[1] * shared[2]; r++) {
            int64_t ri = r % shared[2], rh = r / shared[2] % shared[1],
                    rb = r / shared[2] / shared[1];
            sum += dscore_at(a, g, dyy, (pair){b + rb, h + rh, i + ri, j}).ds;
        }
        sink_store(g->dbias, at_grid(a->bias_s, (pair){b, h, i, j}), sum);
    }
}

/* All pairs at one distance of one head, over the whole batch, read one number: they add to one
 * sum. */
static void rel_grads(args *a, const fv_attn_grads *g, const acc *dyy, acc *sum)
{
    pair p;
    for (int64_t l = 0; l < a->H * a->rel_len; l++) sum[l] = 0;
    for (p.b = 0; p.b < a->B; p.b++)
        for (p.h = 0; p.h < a->H; p.h++)
            for (p.i = 0; p.i < a->Tq; p.i++)
                for (p.j = 0; p.j < a->Tk; p.j++)
                    sum[rel_index(a, p)] += dscore_at(a, g, dyy, p).ds;
    for (int64_t l = 0; l < a->H * a->rel_len; l++) sink_store(g->drel, l, sum[l]);
}

static void attention_bwd(fv_stream *s, args *a, const fv_attn_grads *g)
{
    int64_t rows = a->B * a->H * a->Tq,
            sums = a->Wk + a->Wv + (g->drel.data ? a->H * a->rel_len : 0);
    acc *dyy = fv_stream_scratch(s, (size_t)(rows + sums) * sizeof *dyy),
        *sum = dyy + rows; /* dyy: dy_i.y_i of each row */
    if (!dyy) return;
    for (int64_t r = 0; r < rows; r++) {
        int64_t at = y_offset(a, (pair){r / a->Tq / a->H, r / a->Tq % a->H, r % a->Tq, 0});
        dyy[r] = dot(g->dy, at, a->y, at, a->Wv);
    }
    if (g->dq.data) query_grads(a, g, dyy, sum);
    if (g->dk.data || g->dv.data) key_grads(a, g, dyy, sum);
    if (g->dbias.data) bias_grads(a, g, dyy);
    if (g->drel.data) rel_grads(a, g, dyy, sum);
}

/* ---- cache ---- */

/* cache (B,cap,D) <- x (B,T,D) at row pos[b] of each sequence; a row past cap fails the stream. */
static void cache_write(fv_stream *s, void *cache, const void *x, const int32_t *pos, int64_t B,
                        int64_t T, int64_t cap, int64_t D, int64_t row, int64_t batch)
{
    for (int64_t b = 0; b < B; b++) {
        if (pos[b] < 0 || pos[b] + T > cap) {
            fv_stream_fail(s, FV_EARG, "cache_write: %lld rows at %d do not fit a cache of %lld",
                           (long long)T, pos[b], (long long)cap);
            return;
        }
        real *to = (real *)cache + b * batch + pos[b] * row;
        const real *from = (const real *)x + b * T * D;
        for (int64_t t = 0; t < T; t++) memcpy(to + t * row, from + t * D, (size_t)D * sizeof *to);
    }
}

void REF(attention)(fv_kernels *k);

void REF(attention)(fv_kernels *k)
{
    k->attention = attention;
    k->attention_bwd = attention_bwd;
    k->attention_weights = attention_weights;
    k->cache_write = cache_write;
}
