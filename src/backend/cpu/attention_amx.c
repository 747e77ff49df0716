/* attention_amx.c - attention forward in bf16 on tile registers of AMX, with f32 sums.
 *
 *     S' (key, row) = K Q'         a = 16 keys x 32 of w,      b = pairs of w x 16 rows
 *     O' (w, row)  += V' P'        a = 16 of w x 32 keys,      b = pairs of keys x 16 rows
 *
 * Rows of the softmax lie in lanes as they do in f32, so masks, biases, dropout and the finish are
 * those of the other levels.  K is copied as it lies, V and Q are transposed 16 x 16 pairs at a
 * time, and two vectors of weights become one of pairs in two instructions: packing costs little
 * beside the exponentials, which are what is left of the time.  The other orientation,
 * S (row, key), would take V without a transpose, but its softmax works across lanes and its K is
 * transposed.
 *
 * Scores are exact products of what was given, summed in f32 and then scaled: log-sum-exp is as
 * good as that of f32.  Weights are rounded to bf16 for the second product and summed in f32 before
 * that, as FlashAttention does.
 *
 * Same bits everywhere: an element of a tile depends on its row and column alone, tiles of keys
 * start at multiples of AMX_KEYS, and a key that a row does not see adds an exact 0.  So a decode
 * step takes this way too, with one group of 16 lanes: the arithmetic of attention_rows.c rounds
 * otherwise. */
#include "attention_job.h"

#include "backend/attention_dropout.h"

#if defined(CPU_AMX)
#include "gemm_amx.h"
#include "gemm_bf16_avx512.h"

#define AMX_KEYS (2 * KEYS) /* 192: six units, and BERT's 128 in one tile */
#define KEY_UNITS (AMX_KEYS / GEMM_UNIT)
#define GROUPS (LANES / TILE)          /* of 16 rows, in a panel */
#define PANEL_ROW (LANES * 4)          /* bytes of a row of a panel: scores, outputs, or pairs */
#define PAIRS_BYTES (TILE * PANEL_ROW) /* of 32 values of w of q, or of 32 keys of the weights */
#define TILE_BYTES (TILE * 64)

/* ---- memory ---- */

static int64_t units_of(int64_t n) { return (n + GEMM_UNIT - 1) / GEMM_UNIT; }

static int64_t scratch_floats(const attn *t)
{
    return attn_max(AMX_KEYS * LANES, LANES * attn_round_up(t->a->Wv, TILE));
}

/* In the order of layout; bf16 takes half a float. */
static int64_t floats(const attn *t)
{
    int64_t wk = units_of(t->a->Wk) * GEMM_UNIT, wo = attn_round_up(t->a->Wv, TILE);
    return JOB_ROWS * (wk / 2 + wo + 2) + AMX_KEYS * (wk / 2 + wo / 2) + AMX_KEYS * LANES * 3 / 2 +
           scratch_floats(t);
}

static void layout(job *x, float *work)
{
    int64_t wk = units_of(x->t->a->Wk) * GEMM_UNIT;
    x->wo = attn_round_up(x->t->a->Wv, TILE);
    x->q = work;
    x->o = work + JOB_ROWS * wk / 2;
    x->m = x->o + JOB_ROWS * x->wo;
    x->l = x->m + JOB_ROWS;
    float *k = x->l + JOB_ROWS, *v = k + AMX_KEYS * wk / 2;
    x->k = k;
    x->v = v;
    x->s = v + AMX_KEYS * x->wo / 2;
    x->p = x->s + AMX_KEYS * LANES;
    x->scratch = x->s + AMX_KEYS * LANES * 3 / 2;
    /* not in the weights: there it would be rounded to bf16 with them */
    float dropout = x->t->a->dropout;
    x->after = dropout > 0 ? (float)(1 / fv__keep_probability(dropout)) : 1;
}

/* ---- packing ---- */

/* Bytes of a panel of q. */
static int64_t q_bytes(const attn *t) { return units_of(t->a->Wk) * PAIRS_BYTES; }

/* [unit of w][16 pairs][LANES rows][2]; rows that are not there are zeros. */
static void pack_rows(job *x, int p)
{
    const fv_attn_args *a = x->t->a;
    char *out = (char *)x->q + p / LANES * q_bytes(x->t);
    int n = (int)attn_min(x->n - p, LANES);
    for (int64_t w = 0; w < a->Wk; w += GEMM_UNIT, out += PAIRS_BYTES)
        for (int first = 0; first < n; first += VW) {
            vf rows[VW];
#pragma GCC unroll 16
            for (int j = 0; j < VW; j++)
                rows[j] = first + j < n
                              ? (vf)load_unit(a->q, attn_q_offset(a, &x->row[p + first + j]) + w,
                                              a->Wk - w, FV_BF16)
                              : v_zero();
            transpose(rows);
#pragma GCC unroll 16
            for (int i = 0; i < PAIRS; i++)
                v_store((float *)(out + i * PANEL_ROW) + first, rows[i]);
        }
}

/* k as [unit of w][AMX_KEYS keys][32], v as [16 of w][unit of keys][16 of w][32 keys]; zeros beyond
 * n up to the next 16 keys of k and 32 of v. */
static void pack_keys(job *x, int64_t j0, int64_t n)
{
    const fv_attn_args *a = x->t->a;
    const int64_t k0 = attn_k_offset(a, x->b, x->g, j0);
    char *out = x->k;
    for (int64_t w = 0; w < a->Wk; w += GEMM_UNIT, out += AMX_KEYS * 64)
        for (int64_t j = 0; j < attn_round_up(n, TILE); j++)
            v_store((float *)(out + j * 64),
                    j < n ? (vf)load_unit(a->k, k0 + j * a->k_row + w, a->Wk - w, FV_BF16)
                          : v_zero());
    out = x->v;
    for (int64_t w = 0; w < a->Wv; w += TILE, out += KEY_UNITS * TILE_BYTES) {
        gemm_src v = {(const uint16_t *)a->v + attn_v_offset(a, x->b, x->g, j0) + w, FV_BF16,
                      a->v_row, false, (int)attn_min(a->Wv - w, TILE)};
        for (int64_t j = 0; j < n; j += GEMM_UNIT) {
            vf rows[VW];
            load_pairs(rows, &v, 0, j, n, FV_BF16);
            transpose(rows);
#pragma GCC unroll 16
            for (int i = 0; i < VW; i++)
                v_store((float *)(out + j / GEMM_UNIT * TILE_BYTES + i * 64), rows[i]);
        }
    }
}

/* ---- products ---- */

/* Tiles 0 to groups - 1 += a b over `units` of 32, then stored in c; step: bytes from one unit of a
 * to the next. */
ALWAYS_INLINE void add_products(float *c, const char *a, int64_t step, const char *b, int64_t units,
                                const int groups)
{
    for (int64_t u = 0; u < units; u++, a += step, b += PAIRS_BYTES) {
        _tile_loadd(3, a, 64);
        _tile_loadd(4, b, PANEL_ROW);
        _tile_dpbf16ps(0, 3, 4);
        if (groups > 1) {
            _tile_loadd(5, b + 64, PANEL_ROW);
            _tile_dpbf16ps(1, 3, 5);
        }
        if (groups > 2) {
            _tile_loadd(6, b + 128, PANEL_ROW);
            _tile_dpbf16ps(2, 3, 6);
        }
    }
    _tile_stored(0, c, PANEL_ROW);
    if (groups > 1) _tile_stored(1, c + TILE, PANEL_ROW);
    if (groups > 2) _tile_stored(2, c + 2 * TILE, PANEL_ROW);
}

/* s (16 keys, 16 * groups rows) = k q'. */
ALWAYS_INLINE void score_block(float *s, const char *k, const char *q, int64_t units,
                               const int groups)
{
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    add_products(s, k, AMX_KEYS * 64, q, units, groups);
}

/* o (16 of w, 16 * groups rows) += v' p'. */
ALWAYS_INLINE void output_block(float *o, const char *v, const char *p, int64_t units,
                                const int groups)
{
    _tile_loadd(0, o, PANEL_ROW);
    if (groups > 1) _tile_loadd(1, o + TILE, PANEL_ROW);
    if (groups > 2) _tile_loadd(2, o + 2 * TILE, PANEL_ROW);
    add_products(o, v, TILE_BYTES, p, units, groups);
}

ALWAYS_INLINE void all_scores(job *x, int p, int64_t n, const int groups)
{
    const attn *t = x->t;
    const char *q = (const char *)x->q + p / LANES * q_bytes(t);
    for (int64_t j = 0; j < n; j += TILE)
        score_block(x->s + j * LANES, (const char *)x->k + j * 64, q, units_of(t->a->Wk), groups);
}

ALWAYS_INLINE void all_outputs(job *x, int p, int64_t n, const int groups)
{
    for (int64_t c = 0; c < x->t->a->Wv; c += TILE)
        output_block(x->o + p * x->wo + c * LANES,
                     (const char *)x->v + c / TILE * KEY_UNITS * TILE_BYTES, x->p, units_of(n),
                     groups);
}

/* ---- softmax ---- */

/* Lane r of the result is the pair (even[r], odd[r]), rounded to nearest even. */
ALWAYS_INLINE vf pair(vf even, vf odd)
{
    const __m512i interleave = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25,
                                                9, 24, 8, 23, 7, 22, 6, 21, 5, 20, 4, 19, 3, 18, 2,
                                                17, 1, 16, 0);
    return (vf)_mm512_permutexvar_epi16(interleave, (__m512i)_mm512_cvtne2ps_pbh(odd, even));
}

/* One vector of rows: weights 2^(by s - m') of n keys, a multiple of 4, as pairs of keys; the sums
 * over keys are those of attention.c.  drop: the dropout factors, of which only 0 counts, or
 * NULL. */
ALWAYS_INLINE void online_softmax(float *p, const float *s, int64_t n, float *m, float *l,
                                  float *keep, float factor, const float *drop)
{
    const vf by = v_set1(factor);
    vf top[4], sum[4] = {v_zero(), v_zero(), v_zero(), v_zero()};
    top[0] = top[1] = top[2] = top[3] = v_load(m);
    for (int64_t j = 0; j < n; j += 4)
#pragma GCC unroll 4
        for (int k = 0; k < 4; k++) top[k] = v_max(top[k], v_mul(by, v_load(s + (j + k) * LANES)));
    vf most = v_max(v_max(top[0], top[1]), v_max(top[2], top[3])),
       rescale = attn_exp2(v_sub(v_load(m), most));
    for (int64_t j = 0; j < n; j += 4) {
        vf e[4];
#pragma GCC unroll 4
        for (int k = 0; k < 4; k++) {
            const int64_t at = (j + k) * LANES;
            e[k] = attn_exp2(v_sub(v_mul(by, v_load(s + at)), most));
            sum[k] = v_add(sum[k], e[k]);
            if (drop) e[k] = v_sel(v_lt(v_zero(), v_load(drop + at)), e[k], v_zero());
        }
        v_store(p + j / 2 * LANES, pair(e[0], e[1]));
        v_store(p + (j / 2 + 1) * LANES, pair(e[2], e[3]));
    }
    v_store(m, most);
    v_store(l, v_fma(v_load(l), rescale, v_add(v_add(sum[0], sum[1]), v_add(sum[2], sum[3]))));
    v_store(keep, rescale);
}

/* Whether scores of the panel are dot products and nothing else. */
static bool is_plain(const job *x, int p, int n_rows, int64_t j0, int64_t n)
{
    bool plain = !x->t->has_mask_or_bias;
    for (int r = p; r < p + n_rows; r++)
        plain = plain && x->row[r].lo <= j0 && x->row[r].hi >= j0 + n;
    return plain;
}

/* Scales scores and adds what attention_tile.c knows, KEYS keys at a time. */
static void scale_and_mask(job *x, int p, int n_rows, int64_t j0, int64_t n)
{
    const vf by = v_set1(x->t->scale2);
    for (int64_t i = 0; i < n * LANES; i += VW) v_store(x->s + i, v_mul(by, v_load(x->s + i)));
    for (int64_t j = 0; j < n; j += KEYS) NAME(attn_mask_and_bias)
    (x->s + j * LANES, x->t, x->row + p, n_rows, j0 + j, attn_min(KEYS, n - j), x->scratch);
}

/* keep * o */
static void rescale(job *x, int p, const float *keep, int groups)
{
    float *o = x->o + p * x->wo;
    for (int g = 0; g < groups * VW; g += VW) {
        vf by = v_load(keep + g);
        for (int64_t c = 0; c < x->wo; c++)
            v_store(o + c * LANES + g, v_mul(by, v_load(o + c * LANES + g)));
    }
}

ALWAYS_INLINE void tile_of(job *x, int p, int64_t j0, int64_t n, const int groups)
{
    const attn *t = x->t;
    const int n_rows = (int)attn_min(x->n - p, LANES);
    const int64_t n4 = attn_round_up(n, 4), all = units_of(n) * GEMM_UNIT;
    _Alignas(64) float keep[LANES];
    float *drop = t->a->dropout > 0 ? x->scratch : NULL;
    bool plain = is_plain(x, p, n_rows, j0, n);
    published();
    all_scores(x, p, n, groups);
    if (!plain) scale_and_mask(x, p, n_rows, j0, n);
    for (int64_t i = n * LANES; i < n4 * LANES; i++) x->s[i] = -INFINITY;
    if (drop) NAME(attn_dropout)(drop, t, x->row + p, n_rows, j0, n4);
    for (int v = 0; v < groups * VW; v += VW)
        online_softmax((float *)x->p + v, x->s + v, n4, x->m + p + v, x->l + p + v, keep + v,
                       plain ? t->scale2 : 1, drop ? drop + v : NULL);
    for (int64_t i = n4 / 2; i < all / 2; i++)
        memset((char *)x->p + i * PANEL_ROW, 0, (size_t)groups * 64);
    rescale(x, p, keep, groups);
    published();
    all_outputs(x, p, n, groups);
}

static void tile(job *x, int p, int64_t j0, int64_t n)
{
    switch ((attn_min(x->n - p, LANES) + TILE - 1) / TILE) {
    case 1: tile_of(x, p, j0, n, 1); break;
    case 2: tile_of(x, p, j0, n, 2); break;
    default: tile_of(x, p, j0, n, GROUPS);
    }
}

const attn_arithmetic NAME(attn_amx) = {.keys = AMX_KEYS,
                                        .floats = floats,
                                        .layout = layout,
                                        .pack_rows = pack_rows,
                                        .pack_keys = pack_keys,
                                        .tile = tile,
                                        .enter = enter,
                                        .leave = leave};
#endif
