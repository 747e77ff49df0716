/* gemm_int8_amx.h - integer products on AMX: with one scale for each row (tdpbssd), and with one
 * for each block of 32 values of k (tdpbsud).
 *
 * One scale for each row:
 *
 *    c (16 x 16, i32) += a (16 x 64) b (64 x 16), b as [16 fours of k][16 columns][4]
 *
 *    strip of A   [32 scales][k/64][32 rows][64 values]      tmm4, tmm5
 *    panel of B   [32 scales][k/4][32 columns][4]            tmm6, tmm7
 *    C            32 x 32 sums                               tmm0 tmm1 / tmm2 tmm3
 *
 * Sums stay integers for a whole run and are then scaled, as gemm_int8_row.h does it, so the bits
 * are those of every other level.  A unit of k is 32 values and a tile takes 64: heads are one unit
 * larger than their scales, so that a last half tile, filled with zeros, has its memory. */
#ifndef FV_GEMM_INT8_AMX_H
#define FV_GEMM_INT8_AMX_H

#include "gemm_amx.h"
#include "gemm_int8_row.h"

#define I8_SIDE 32 /* rows of a strip, and columns of a panel */
#define I8_STEP 64 /* values of k of a tile */
#define I8_UNIT (GEMM_UNIT * I8_SIDE)
#define I8_SCALES (I8_SIDE * sizeof(float))
#define I8_HEAD (I8_SCALES + I8_UNIT)
#define I8_TILE (TILE * 64) /* bytes */

typedef int32_t i8_sums[I8_SIDE * I8_SIDE];

/* Rows of t->out for each step of k, and the next ones of them: all at once would fill the
 * line-fill buffers, and tiles of A would wait. */
ALWAYS_INLINE int64_t rows_per_step(const gemm_tile *t)
{
    int64_t steps = (t->kc + I8_STEP - 1) / I8_STEP;
    return t->out && steps ? (t->rows + steps - 1) / steps : 0;
}
ALWAYS_INLINE int64_t prefetch_out(const gemm_tile *t, int64_t row, int64_t each)
{
    for (int64_t i = 0; i < each && row < t->rows; i++, row++)
        for (int64_t j = 0; j < t->out_bytes; j += 64)
            __builtin_prefetch(t->out + row * t->out_stride + j, 1);
    return row;
}

/* All 32 rows, or the first 16, against one panel. */
ALWAYS_INLINE void integer_sums(int32_t *sum, const gemm_tile *t, const char *b, const bool tall)
{
    const char *a = (const char *)t->a + I8_SCALES, *ahead = t->ahead;
    const int row = I8_SIDE * 4;
    const int64_t each = rows_per_step(t);
    int64_t at = 0;
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (int64_t k = t->kc; k > 0; k -= I8_STEP, a += 2 * I8_TILE, b += 2 * I8_TILE) {
        _tile_loadd(4, a, 64);
        _tile_loadd(6, b, row);
        _tile_dpbssd(0, 4, 6);
        _tile_loadd(7, b + 64, row);
        _tile_dpbssd(1, 4, 7);
        if (tall) {
            _tile_loadd(5, a + I8_TILE, 64);
            _tile_dpbssd(2, 5, 6);
            _tile_dpbssd(3, 5, 7);
            ahead = prefetch_part(ahead, 16 * t->ahead_step);
            at = prefetch_out(t, at, each);
        } else {
            prefetch_part(b + 8 * I8_TILE, 2 * I8_TILE);
        }
    }
    _tile_stored(0, sum, row);
    _tile_stored(1, sum + TILE, row);
    if (tall) _tile_stored(2, sum + TILE * I8_SIDE, row);
    if (tall) _tile_stored(3, sum + TILE * I8_SIDE + TILE, row);
}

/* c = alpha * (sum * (scale_a * scale_b)) + (add ? c : 0) */
ALWAYS_INLINE void scale_sums(const gemm_tile *t, float *c, const int32_t *sum,
                              const float *b_scale)
{
    const float *a_scale = t->a;
    vf alpha = v_set1(t->alpha);
    for (int i = 0; i < t->rows; i++)
        for (int j = 0; j < I8_SIDE; j += VW) {
            float *to = c + i * t->ldc + j;
            vf x = _mm512_cvtepi32_ps(_mm512_load_si512(sum + i * I8_SIDE + j)),
               s = v_mul(x, v_mul(v_set1(a_scale[i]), v_load(b_scale + j)));
            v_store(to, v_fma(alpha, s, t->add ? v_load(to) : v_zero()));
        }
}

static void amx_tile_i8(const gemm_tile *t)
{
    _Alignas(64) i8_sums sum;
    for (int p = 0; p < t->panels; p++) {
        const char *b = (const char *)t->b + (size_t)p * t->b_next;
        if (t->rows > TILE)
            integer_sums(sum, t, b + I8_SCALES, true);
        else
            integer_sums(sum, t, b + I8_SCALES, false);
        published();
        scale_sums(t, t->c + p * t->c_next, sum, (const float *)b);
    }
}

/* ---- a scale for each block of 32 values of k ----
 *
 *    c (16 x 16, i32) = a (16 x 32) b (32 x 16)     one block: B as gemm_int8.h has it, unsigned
 *    s (16 x 16, f32) += (c + start) * (scale_a * scale_b)
 *
 * The panels of B are those of vpdpbusd, which multiplies up to PLAIN_ROWS rows; A lies row after
 * row in a block, which both read.  The sums of a tile stay in 16 registers over all blocks;
 * scaling them, 16 vectors a block, takes longer than the product, and two blocks at a time hide
 * the way through memory from tiles to vectors.  Each step is that of the other levels, and so are
 * the bits. */
#define PLAIN_ROWS 4
#define BLOCKS_ENTER enter_blocks
#define BLOCKS_LEAVE leave

static void enter_blocks(void)
{
    static const amx_config config = {.palette = 1,
                                      .row_bytes = {64, 64, 64, 64, 32, 32, 64, 64},
                                      .rows = {TILE, TILE, TILE, TILE, TILE, TILE, 8, 8}};
    _tile_loadconfig(&config);
}

typedef struct amx_block {
    int32_t sum[TILE * TILE];
    uint8_t wide[BLOCK * TILE]; /* FV_Q4: the halves as bytes */
} amx_block;

/* A block of B as 8 rows of 64 bytes. */
ALWAYS_INLINE const void *wide_block(amx_block *x, const char *b, const bool q4)
{
    const uint8_t *q = (const uint8_t *)b + TILE * sizeof(float);
    if (!q4) return q;
#pragma GCC unroll 4
    for (int t = 0; t < 4; t++) {
        __m512i both = load_group(q + t * 64);
        _mm512_store_si512(x->wide + t * 64, low_half(both));
        _mm512_store_si512(x->wide + (t + 4) * 64, high_half(both));
    }
    published();
    return x->wide;
}

ALWAYS_INLINE void first_sums(amx_block *x, const char *a, const char *b, const bool q4)
{
    const void *w = wide_block(x, b, q4);
    _tile_zero(0);
    _tile_loadd(4, a + sizeof(a_head), BLOCK);
    _tile_loadd(6, w, 64);
    _tile_dpbsud(0, 4, 6);
    _tile_stored(0, x->sum, 64);
}

ALWAYS_INLINE void second_sums(amx_block *x, const char *a, const char *b, const bool q4)
{
    const void *w = wide_block(x, b, q4);
    _tile_zero(1);
    _tile_loadd(5, a + sizeof(a_head), BLOCK);
    _tile_loadd(7, w, 64);
    _tile_dpbsud(1, 5, 7);
    _tile_stored(1, x->sum, 64);
}

ALWAYS_INLINE void scale_block(vf s[TILE], const amx_block *x, const char *a, const char *b)
{
    const a_head *head = (const a_head *)a;
    vf sb = v_load((const float *)b);
#pragma GCC unroll 16
    for (int i = 0; i < TILE; i++) {
        __m512i sum = _mm512_add_epi32(_mm512_load_si512(x->sum + i * TILE),
                                       _mm512_set1_epi32(head->start[i]));
        s[i] = v_fma(_mm512_cvtepi32_ps(sum), v_mul(v_set1(head->scale[i]), sb), s[i]);
    }
}

ALWAYS_INLINE void amx_panel_blocks(const gemm_tile *t, const char *b, float *c, const bool q4)
{
    const size_t a_unit = sizeof(a_head) + BLOCK * A_WIDTH,
                 b_unit = NR * sizeof(float) + (q4 ? 16 : 32) * NR;
    const char *a = t->a, *ahead = t->ahead;
    const int64_t step = 16 * t->ahead_step; /* of two blocks */
    _Alignas(64) amx_block x[2];
    vf s[TILE], alpha = v_set1(t->alpha);
#pragma GCC unroll 16
    for (int i = 0; i < TILE; i++) s[i] = v_zero();
    int64_t blocks = (int64_t)gemm_units(t->kc);
    for (; blocks > 1; blocks -= 2, a += 2 * a_unit, b += 2 * b_unit, ahead += step) {
        for (int64_t i = 0; i < step; i += 64) __builtin_prefetch(ahead + i);
        first_sums(&x[0], a, b, q4);
        second_sums(&x[1], a + a_unit, b + b_unit, q4);
        scale_block(s, &x[0], a, b);
        scale_block(s, &x[1], a + a_unit, b + b_unit);
    }
    if (blocks) {
        first_sums(&x[0], a, b, q4);
        scale_block(s, &x[0], a, b);
    }
#pragma GCC unroll 16
    for (int i = 0; i < TILE; i++)
        if (i < t->rows) {
            float *to = c + i * t->ldc;
            v_store(to, v_fma(alpha, s[i], t->add ? v_load(to) : v_zero()));
        }
}

ALWAYS_INLINE void amx_tile_blocks(const gemm_tile *t, const bool q4)
{
    for (int p = 0; p < t->panels; p++)
        amx_panel_blocks(t, (const char *)t->b + (size_t)p * t->b_next, t->c + p * t->c_next, q4);
}

#endif
