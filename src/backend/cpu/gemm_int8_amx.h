/* gemm_int8_amx.h - the integer product with one scale for each row on AMX: tdpbssd.
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

/* All 32 rows, or the first 16, against one panel. */
INLINE void integer_sums(int32_t *sum, const gemm_tile *t, const char *b, const bool tall)
{
    const char *a = (const char *)t->a + I8_SCALES, *ahead = t->ahead;
    const int row = I8_SIDE * 4;
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
INLINE void scale_sums(const gemm_tile *t, float *c, const int32_t *sum, const float *b_scale)
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

#endif
