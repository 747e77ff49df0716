/* attention_tile.c - packing rows into panels and back; masks, biases and dropout on scores.
 *
 * Polarity, once for all files: a mask byte of 1 means that the query may see the key.  Inside,
 * "may not" is a score of -inf, which 2^x turns into an exact 0; a finite bias, however low,
 * stays finite. */
#include "attention.h"

#include "backend/attention_dropout.h"
#include "fovea/author/backend.h"
#include "gemm_transpose.h"

bool NAME(attn_init)(attn *t, fv_stream *s, const fv_attn_args *a, fv_dtype dtype)
{
    for (int64_t b = 0; a->lens && b < a->B; b++)
        if (a->lens[b] < 0 || a->lens[b] > a->Tk) {
            fv_stream_fail(s, FV_EARG, "attention: lens[%lld] is %d, there are %lld keys",
                           (long long)b, a->lens[b], (long long)a->Tk);
            return false;
        }
    float scale = a->scale != 0 ? a->scale : 1 / sqrtf((float)a->Wk);
    *t = (attn){.a = a,
                .dtype = dtype,
                .q_per_kv = a->H / a->G,
                .rows = a->H / a->G * a->Tq,
                .wk = attn_round_up(a->Wk, STEP),
                .wv = attn_round_up(a->Wv, STEP),
                .scale = scale,
                .scale2 = scale * LOG2E,
                .has_mask_or_bias = a->mask || a->key_mask || a->bias || a->rel};
    return true;
}

/* pos is the index of the query among the keys: queries are the last Tq of `len` positions,
 * which covers training (Tq = len) and decoding from a KV cache (Tq new ones) alike. */
attn_row NAME(attn_row)(const attn *t, int64_t b, int64_t g, int64_t r)
{
    const fv_attn_args *a = t->a;
    int64_t len = a->lens ? a->lens[b] : a->Tk;
    attn_row x = {.b = b, .h = g * t->q_per_kv + r / a->Tq, .i = r % a->Tq};
    x.pos = x.i + len - a->Tq;
    x.hi = a->causal ? attn_max(0, attn_min(len, x.pos + 1)) : len;
    x.lo = a->window > 0 ? attn_max(0, x.pos - a->window + 1) : 0;
    if (x.lo >= x.hi) x.lo = x.hi = 0;
    return x;
}

/* The bound is that of gemm (GEMM_SMALL): some microseconds of work on one core. */
int NAME(attn_threads)(const fv_stream *s, int64_t work) { return work < 1 << 18 ? 1 : s->threads; }

/* ---- rows in and out ---- */

const float *NAME(attn_load)(const void *x, fv_dtype dtype, int64_t at, int64_t n, float *scratch)
{
    if (dtype == FV_F32) return (const float *)x + at;
    const uint16_t *h = (const uint16_t *)x + at;
    int64_t i = 0;
    if (dtype == FV_BF16)
        for (; i + VW <= n; i += VW) v_store(scratch + i, v_load_bf16(h + i));
    else
        for (; i + VW <= n; i += VW) v_store(scratch + i, v_load_f16(h + i));
    if (i < n) {
        uint16_t tail[VW] = {0};
        memcpy(tail, h + i, (size_t)(n - i) * sizeof *h);
        v_store_n(scratch + i, dtype == FV_BF16 ? v_load_bf16(tail) : v_load_f16(tail), n - i);
    }
    return scratch;
}

/* VW elements of x from i, as many as there are up to n.  Whole vectors go straight to and from
 * memory: a copy of a size that the compiler does not know is a call. */
static vf sink_load(fv_sink x, int64_t i, int64_t n)
{
    if (x.dtype == FV_F32)
        return n < VW ? v_load_n((float *)x.data + i, n, 0) : v_load((float *)x.data + i);
    const uint16_t *from = (const uint16_t *)x.data + i;
    uint16_t h[VW] = {0};
    if (n < VW) from = memcpy(h, from, (size_t)n * sizeof *h);
    return x.dtype == FV_BF16 ? v_load_bf16(from) : v_load_f16(from);
}

static void sink_write(fv_sink x, int64_t i, int64_t n, vf v)
{
    uint16_t h[VW], *to = n < VW ? h : (uint16_t *)x.data + i;
    if (x.dtype == FV_F32) {
        if (n < VW)
            v_store_n((float *)x.data + i, v, n);
        else
            v_store((float *)x.data + i, v);
        return;
    }
    if (x.dtype == FV_BF16)
        v_store_bf16(to, v);
    else
        v_store_f16(to, v);
    if (n < VW) memcpy((uint16_t *)x.data + i, h, (size_t)n * sizeof *h);
}

void NAME(attn_store)(fv_sink x, int64_t at, const float *row, int64_t n, float by)
{
    for (int64_t i = 0; i < n; i += VW) {
        int64_t left = n - i;
        vf v = left < VW ? v_load_n(row + i, left, 0) : v_load(row + i);
        v = v_fma(v, v_set1(by), x.add ? sink_load(x, at + i, left) : v_zero());
        sink_write(x, at + i, left, v);
    }
}

/* l is 0 for a row without keys, so the factor is 0 and y is exactly zero; a NaN in l passes
 * through. */
void NAME(attn_finish)(const attn *t, const attn_row *r, const float *o, float m, float l)
{
    const fv_attn_args *a = t->a;
    NAME(attn_store)
    ((fv_sink){.data = a->y, .dtype = t->dtype}, attn_y_offset(a, r), o, a->Wv, l > 0 ? 1 / l : l);
    float *lse = attn_lse(a, r);
    lse[0] = m;
    lse[1] = l;
}

/* ---- transposition: blocks of a vector's width, and four by four where less is left ---- */

static inline void store_transposed(float *out, int64_t ldo, f4 a, f4 b, f4 c, f4 d)
{
    f4 y[4];
    attn_transpose4(y, a, b, c, d);
    for (int i = 0; i < 4; i++) memcpy(out + i * ldo, &y[i], sizeof y[i]);
}

static void transpose_fours(float *out, int64_t ldo, const float *x, int64_t ldx, int64_t n,
                            int64_t m)
{
    for (int64_t i = 0; i < n; i += 4)
        for (int64_t j = 0; j < m; j += 4) {
            const float *p = x + i * ldx + j;
            store_transposed(out + j * ldo + i, ldo, attn_load4(p), attn_load4(p + ldx),
                             attn_load4(p + 2 * ldx), attn_load4(p + 3 * ldx));
        }
}

/* With vectors of 16, four by four takes twice the shuffles and four times the stores: a tenth of
 * the time of the gradients. */
void NAME(attn_transpose)(float *out, int64_t ldo, const float *x, int64_t ldx, int64_t n,
                          int64_t m)
{
    int64_t rows = VW > 4 ? n / VW * VW : 0, cols = VW > 4 ? m / VW * VW : 0;
    for (int64_t i = 0; i < rows; i += VW)
        for (int64_t j = 0; j < cols; j += VW) {
            vf v[VW];
#pragma GCC unroll 16
            for (int u = 0; u < VW; u++) v[u] = v_load(x + (i + u) * ldx + j);
            transpose(v);
#pragma GCC unroll 16
            for (int u = 0; u < VW; u++) v_store(out + (j + u) * ldo + i, v[u]);
        }
    transpose_fours(out + cols * ldo, ldo, x + cols, ldx, rows, m - cols);
    transpose_fours(out + rows, ldo, x + rows * ldx, ldx, n - rows, m);
}

/* VW rows, as many blocks of VW columns as there are; returns the columns that are done. */
static int64_t pack_blocks(float *out, int lanes, const float *const *rows, int64_t w, float by)
{
    int64_t c = 0;
    for (; c + VW <= w; c += VW) {
        vf x[VW];
#pragma GCC unroll 16
        for (int u = 0; u < VW; u++) x[u] = v_mul(v_load(rows[u] + c), v_set1(by));
        transpose(x);
#pragma GCC unroll 16
        for (int u = 0; u < VW; u++) v_store(out + (c + u) * lanes, x[u]);
    }
    return c;
}

/* `by` is the softmax scale where the rows are queries.  Zeros in unused lanes, not garbage: a
 * NaN there would be computed with, and could raise floating-point flags. */
void NAME(attn_pack_lanes)(float *out, int lanes, const float *const *rows, int n, int64_t w,
                           float by)
{
    const f4 factor = {by, by, by, by};
    int full = n / 4 * 4, wide = VW > 4 ? n / VW * VW : 0;
    int64_t done = 0;
    for (int l = 0; l < wide; l += VW) done = pack_blocks(out + l, lanes, rows + l, w, by);
    for (int l = 0; l < full; l += 4) {
        const float *const *p = rows + l;
        int64_t c = l < wide ? done : 0;
        for (; c + 4 <= w; c += 4)
            store_transposed(out + c * lanes + l, lanes, attn_load4(p[0] + c) * factor,
                             attn_load4(p[1] + c) * factor, attn_load4(p[2] + c) * factor,
                             attn_load4(p[3] + c) * factor);
        for (; c < w; c++)
            for (int x = 0; x < 4; x++) out[c * lanes + l + x] = p[x][c] * by;
    }
    for (int64_t c = 0; full < lanes && c < w; c++)
        for (int l = full; l < lanes; l++) out[c * lanes + l] = l < n ? rows[l][c] * by : 0;
}

/* A vector of 16 lanes holds a column of two strips: 16 rows are transposed together, and a store
 * takes the same half of two neighbouring columns.  Returns the rows that are done. */
static int64_t pack_strip_pairs(float *out, const float *const *rows, int64_t n, int64_t w)
{
    int64_t r = 0;
#if VW == 16
    const vi low = {0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23};
    const vi high = {8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31};
    for (; r + 2 * STEP <= n && w % VW == 0; r += 2 * STEP, rows += 2 * STEP, out += 2 * STEP * w)
        for (int64_t c = 0; c < w; c += VW) {
            vf x[VW];
#pragma GCC unroll 16
            for (int u = 0; u < VW; u++) x[u] = v_load(rows[u] + c);
            transpose(x);
#pragma GCC unroll 8
            for (int u = 0; u < VW; u += 2) {
                v_store(out + (c + u) * STEP, v_shuffle(x[u], x[u + 1], low));
                v_store(out + (c + u + w) * STEP, v_shuffle(x[u], x[u + 1], high));
            }
        }
#else
    (void)out, (void)rows, (void)n, (void)w;
#endif
    return r;
}

void NAME(attn_pack_strips)(float *out, const float *const *rows, int64_t n, int64_t w)
{
    for (int64_t j = pack_strip_pairs(out, rows, n, w); j < n; j += STEP)
        NAME(attn_pack_lanes)(out + j * w, STEP, rows + j, (int)attn_min(n - j, STEP), w, 1);
}

void NAME(attn_pack_steps)(float *out, int64_t stride, const float *const *rows, int n, int64_t w)
{
    for (int r = 0; r < n; r++) {
        int64_t c = 0;
        for (; c + STEP <= w; c += STEP)
            memcpy(out + c / STEP * stride + r * STEP, rows[r] + c, STEP * sizeof *out);
        for (int x = 0; c < w && x < STEP; x++)
            out[c / STEP * stride + r * STEP + x] = c + x < w ? rows[r][c + x] : 0;
    }
}

/* ---- bias and mask ---- */

/* rel is T5's relative bias: a table (H, rel_len) indexed by key position minus query position,
 * clamped at both ends. */
void NAME(attn_bias_row)(float *out, const attn *t, const attn_row *r, int64_t j0, int64_t n)
{
    const fv_attn_args *a = t->a;
    for (int64_t j = 0; j < n; j++) out[j] = 0;
    if (a->bias) {
        float scratch[KEYS];
        const float *bias = NAME(attn_load)(a->bias, t->dtype,
                                            r->b * a->bias_s[0] + r->h * a->bias_s[1] +
                                                r->i * a->bias_s[2] + j0,
                                            n, scratch);
        for (int64_t j = 0; j < n; j++) /* a finite bias must not become a mask by overflow */
            out[j] = bias[j] < -FLT_MAX ? -INFINITY : fmaxf(bias[j] * LOG2E, -FLT_MAX);
    }
    if (a->rel) {
        int64_t first = a->rel_zero + j0 - r->pos;
        for (int64_t j = 0; j < n; j++) {
            float one;
            int64_t l = attn_max(0, attn_min(a->rel_len - 1, first + j));
            out[j] += NAME(attn_load)(a->rel, t->dtype, r->h * a->rel_len + l, 1, &one)[0] * LOG2E;
        }
    }
    if (a->mask) {
        const uint8_t *mask = a->mask + r->b * a->mask_s[0] + r->h * a->mask_s[1] +
                              r->i * a->mask_s[2] + j0;
        for (int64_t j = 0; j < n; j++) out[j] = mask[j] ? out[j] : -INFINITY;
    }
    if (a->key_mask) {
        const uint8_t *mask = a->key_mask + r->b * a->Tk + j0;
        for (int64_t j = 0; j < n; j++) out[j] = mask[j] ? out[j] : -INFINITY;
    }
}

/* -inf where a key lies outside of a row's range; lo and hi count from the first key of the
 * tile. */
static void bound(float *s, const float *lo, const float *hi, int64_t n)
{
    for (int v = 0; v < LANES; v += VW) {
        vf from = v_load(lo + v), to = v_load(hi + v);
        for (int64_t j = 0; j < n; j++) {
            vf at = v_set1((float)j), x = v_load(s + j * LANES + v);
            x = v_sel(v_lt(at, from), v_set1(-INFINITY), x);
            v_store(s + j * LANES + v, v_sel(v_lt(at, to), x, v_set1(-INFINITY)));
        }
    }
}

/* Bias rows are gathered as (row, key), the order in memory, then transposed to the (key, row)
 * of the scores.  Without mask, bias or ragged range nothing is read: the usual tile of a causal
 * model. */
void NAME(attn_mask_and_bias)(float *s, const attn *t, const attn_row *rows, int n_rows, int64_t j0,
                              int64_t n, float *scratch)
{
    float *flat = scratch, *transposed = scratch + KEYS * LANES, lo[LANES], hi[LANES];
    const attn_row *last = &rows[n_rows - 1];
    bool ragged = false;
    /* within a head lo and hi never fall from row to row: here every row sees the whole tile */
    if (!t->has_mask_or_bias && rows->h == last->h && rows->hi >= j0 + n && last->lo <= j0) return;
    for (int l = 0; l < LANES; l++) {
        const attn_row *r = &rows[l < n_rows ? l : 0];
        lo[l] = (float)attn_max(r->lo - j0, 0);
        hi[l] = (float)attn_max(attn_min(r->hi - j0, n), 0);
        ragged = ragged || lo[l] > 0 || hi[l] < (float)n;
    }
    if (t->has_mask_or_bias) {
        memset(flat, 0, KEYS * LANES * sizeof *flat);
        for (int l = 0; l < n_rows; l++) NAME(attn_bias_row)(flat + l * KEYS, t, &rows[l], j0, n);
        NAME(attn_transpose)(transposed, LANES, flat, KEYS, LANES, attn_round_up(n, 4));
        for (int64_t j = 0; j < n * LANES;
             j += VW) { /* a masked score is -inf whatever it was, NaN included */
            vf e = v_load(transposed + j), x = v_add(v_load(s + j), e);
            v_store(s + j, v_sel(v_lt(e, v_set1(-FLT_MAX)), v_set1(-INFINITY), x));
        }
    }
    if (ragged) bound(s, lo, hi, n);
}

/* ---- dropout: Philox with a row in each lane; the four words of a position are four keys ---- */

typedef struct {
    vu c[3][4];
} counters; /* of a panel: three vectors, four words each */

/* As fv__philox7; three vectors are interleaved, since one alone is bound by the latency of its
 * multiplications. */
static counters philox(counters x, const fv__philox_round_keys *keys)
{
    for (int r = 0; r < FV__PHILOX_ROUNDS; r++) {
#pragma GCC unroll 3
        for (int v = 0; v < 3; v++) {
            vu *c = x.c[v], hi0, lo0, hi1, lo1;
            v_mul_wide(&hi0, &lo0, c[0], 0xD2511F53u);
            v_mul_wide(&hi1, &lo1, c[2], 0xCD9E8D57u);
            c[0] = hi1 ^ c[1] ^ keys->k[r][0];
            c[2] = hi0 ^ c[3] ^ keys->k[r][1];
            c[1] = lo1;
            c[3] = lo0;
        }
    }
    return x;
}

/* One block of Philox gives the bits of rows i, i + 8 and keys j, j + 1, j + 8, j + 9 (see
 * attention_dropout.h): lanes take the upper or lower half of a word, the loop takes the four
 * keys. */
void NAME(attn_dropout)(float *f, const attn *t, const attn_row *rows, int n_rows, int64_t j0,
                        int64_t n)
{
    const fv_attn_args *a = t->a;
    const vu zero = {0};
    const fv__philox_round_keys keys = fv__philox_schedule(a->rng.seed);
    uint64_t step = *a->rng.step;
    vu pair[3], up[3]; /* row counter, and the shift that moves a row's half of a word to the top */
    vu below = zero + (fv__dropout_threshold(a->dropout) << 16),
       factor = (vu)v_set1((float)(1 / fv__keep_probability(a->dropout)));
    for (int l = 0; l < LANES; l++) {
        const attn_row *r = &rows[l < n_rows ? l : 0];
        pair[l / VW][l % VW] = fv__philox_row_index((uint32_t)(r->b * a->H + r->h), (uint32_t)a->Tq,
                                                    (uint32_t)r->i);
        up[l / VW][l % VW] = r->i % 16 < 8 ? 16 : 0;
    }
    for (int64_t j = j0; j < j0 + n; j += j % 8 == 6 ? 10 : 2) { /* and j + 1, j + 8, j + 9 */
        counters x;
#pragma GCC unroll 3
        for (int v = 0; v < 3; v++) {
            x.c[v][0] = zero + fv__philox_key_index((uint32_t)j);
            x.c[v][1] = pair[v] ^ (uint32_t)(step >> 32);
            x.c[v][2] = zero + (uint32_t)step;
            x.c[v][3] = zero + (uint32_t)a->rng.site;
        }
        x = philox(x, &keys);
#pragma GCC unroll 3
        for (int v = 0; v < 3; v++)
#pragma GCC unroll 4
            for (int k = 0; k < 4; k++) {
                vu bits = x.c[v][k] << up[v];
                v_store(f + (j - j0 + k % 2 * 8 + k / 2) * LANES + v * VW,
                        (vf)((vu)(bits >= below) & factor));
            }
    }
}
