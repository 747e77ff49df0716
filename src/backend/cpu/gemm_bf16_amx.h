/* gemm_bf16_amx.h - the bf16 tile of AMX: tdpbf16ps on tile registers of 16 rows of 64 bytes.
 *
 *    c (16 x 16, f32) += a (16 x 32) b (32 x 16), b as [16 pairs of k][16 columns][2]
 *
 * Four such products, 2 x 2, share two tiles of A and two of B: four loads for four products of 16
 * cycles each, so that a panel of B in L1 and strips of A in L2 keep up.
 *
 *    strip of A   [k/32][32 rows][32 values]         tmm4, tmm5; or A itself, unpacked
 *    panel of B   [k/2][32 columns][2]               tmm6, tmm7
 *    C            32 x 32 sums                       tmm0 tmm1 / tmm2 tmm3
 *
 * The sums of C so far are loaded into the tiles, so that a run continues the sum of the run
 * before; where alpha is not 1 they are added behind.  Both depend on the call alone, so that a row
 * has the same bits in a tile of any height.  Fewer than 16 rows cost as much as 16, which memory
 * hides: one row is bound by reading B.
 */
#ifndef FV_GEMM_BF16_AMX_H
#define FV_GEMM_BF16_AMX_H

#include "gemm_amx.h"
#include "gemm_bf16_avx512.h"

#define MR 32
#define NR 32
#define A_WIDTH 32
#define A_TILE (TILE * 64)           /* bytes */
#define A_BYTES_OF_UNIT (2 * A_TILE) /* 32 values of k of a strip */
#define B_BYTES_OF_UNIT (PAIRS * NR * 4)

/* ---- products ---- */

/* Bytes between the rows of a tile of A, and from one tile to the next along k. */
ALWAYS_INLINE int64_t row_stride(const gemm_tile *t) { return t->a_stride ? t->a_stride : 64; }
ALWAYS_INLINE int64_t unit_stride(const gemm_tile *t) { return t->a_stride ? 64 : A_BYTES_OF_UNIT; }

/* c (32 x 32, ld floats a row) = a b, or c + a b. */
ALWAYS_INLINE void square(float *c, int64_t ld, const gemm_tile *t, const bool add)
{
    const char *a = t->a, *b = t->b, *ahead = t->ahead;
    const int64_t row = ld * (int64_t)sizeof *c, a_row = row_stride(t), a_next = unit_stride(t);
    if (add) {
        _tile_loadd(0, c, row);
        _tile_loadd(1, c + TILE, row);
        _tile_loadd(2, c + TILE * ld, row);
        _tile_loadd(3, c + TILE * ld + TILE, row);
    } else {
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
    }
    for (int64_t k = t->kc; k > 0; k -= GEMM_UNIT, a += a_next, b += B_BYTES_OF_UNIT) {
        _tile_loadd(4, a, a_row);
        _tile_loadd(6, b, NR * 4);
        _tile_dpbf16ps(0, 4, 6);
        _tile_loadd(7, b + 64, NR * 4);
        _tile_dpbf16ps(1, 4, 7);
        _tile_loadd(5, a + TILE * a_row, a_row);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
        ahead = prefetch_part(ahead, 8 * t->ahead_step);
    }
    _tile_stored(0, c, row);
    _tile_stored(1, c + TILE, row);
    _tile_stored(2, c + TILE * ld, row);
    _tile_stored(3, c + TILE * ld + TILE, row);
}

/* Up to 16 rows against a panel and the one t->b_next bytes behind it, if two: c (16 x 32) and
 * c2. */
#define FEW_AHEAD (8 * B_BYTES_OF_UNIT) /* bytes of a stream that are prefetched */
ALWAYS_INLINE void band(float *c, float *c2, int64_t ld, const gemm_tile *t, const char *b,
                        const bool two, const bool add)
{
    const char *a = t->a, *b2 = b + t->b_next;
    const int64_t row = ld * (int64_t)sizeof *c, a_row = row_stride(t), a_next = unit_stride(t);
    if (add) {
        _tile_loadd(0, c, row);
        _tile_loadd(1, c + TILE, row);
        if (two) _tile_loadd(2, c2, row);
        if (two) _tile_loadd(3, c2 + TILE, row);
    } else {
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
    }
    for (int64_t k = t->kc; k > 0; k -= GEMM_UNIT, a += a_next) {
        for (int i = 0; i < B_BYTES_OF_UNIT; i += 64) __builtin_prefetch(b + FEW_AHEAD + i);
        _tile_loadd(4, a, a_row);
        _tile_loadd(6, b, NR * 4);
        _tile_dpbf16ps(0, 4, 6);
        _tile_loadd(7, b + 64, NR * 4);
        _tile_dpbf16ps(1, 4, 7);
        b += B_BYTES_OF_UNIT;
        if (!two) continue;
        for (int i = 0; i < B_BYTES_OF_UNIT; i += 64) __builtin_prefetch(b2 + FEW_AHEAD + i);
        _tile_loadd(6, b2, NR * 4);
        _tile_dpbf16ps(2, 4, 6);
        _tile_loadd(7, b2 + 64, NR * 4);
        _tile_dpbf16ps(3, 4, 7);
        b2 += B_BYTES_OF_UNIT;
    }
    _tile_stored(0, c, row);
    _tile_stored(1, c + TILE, row);
    if (two) _tile_stored(2, c2, row);
    if (two) _tile_stored(3, c2 + TILE, row);
}

/* ---- one row, by multiply-adds ----
 *
 * Tiles read a weight from memory more slowly than vectors do (77 GB/s on 16 threads, where the
 * products of f32 and q8 read 106 and 112), so the one row of a decode step is computed as
 * tdpbf16ps is documented to compute it, with the same bits: over the 16 pairs of k of a tile, one
 * chain of multiply-adds for the first values of the pairs and one for the second, both from zero;
 * then their sum is added to C.  A product of two bf16 is exact in f32.  Subnormal numbers are
 * zeros, as they are in tiles. */
#define BF16_PLAIN_ROWS 1
#define PLAIN_AHEAD 2048 /* bytes that are prefetched: with 16 KB 8 threads are 8 % slower */

/* sum[v] += a (one row, 32 values of k) times vector v of the panels, two vectors a panel. */
ALWAYS_INLINE void plain_unit(vf *sum, const uint16_t *a, const char *b, size_t b_next,
                              const int panels)
{
    const __m512i high = _mm512_set1_epi32((int)0xffff0000u);
    vf first[2 * GEMM_WALK], second[2 * GEMM_WALK];
#pragma GCC unroll 8
    for (int v = 0; v < 2 * panels; v++) first[v] = second[v] = v_zero();
    for (int p = 0; p < PAIRS; p++, b += NR * 4) {
        int32_t pair;
        memcpy(&pair, a + 2 * p, sizeof pair);
        __m512i both = _mm512_set1_epi32(pair);
        vf a1 = (vf)_mm512_slli_epi32(both, 16), a2 = (vf)_mm512_and_si512(both, high);
#pragma GCC unroll 8
        for (int v = 0; v < 2 * panels; v++) {
            const char *from = b + (size_t)(v / 2) * b_next + v % 2 * 64;
            __builtin_prefetch(from + PLAIN_AHEAD);
            __m512i w = _mm512_loadu_si512(from);
            first[v] = v_fma(a1, (vf)_mm512_slli_epi32(w, 16), first[v]);
            second[v] = v_fma(a2, (vf)_mm512_and_si512(w, high), second[v]);
        }
    }
#pragma GCC unroll 8
    for (int v = 0; v < 2 * panels; v++) sum[v] = v_add(sum[v], v_add(first[v], second[v]));
}

ALWAYS_INLINE void plain_row(const gemm_tile *t, const int panels)
{
    const uint16_t *a = t->a;
    const char *b = t->b;
    const bool go_on = t->add && t->alpha == 1, add = t->add && !go_on;
    const unsigned modes = _mm_getcsr();
    vf sum[2 * GEMM_WALK];
    _mm_setcsr(modes | 0x8040); /* subnormal results and operands are zeros */
#pragma GCC unroll 8
    for (int v = 0; v < 2 * panels; v++)
        sum[v] = go_on ? v_load(t->c + v / 2 * t->c_next + v % 2 * VW) : v_zero();
    for (int64_t k = t->kc; k > 0; k -= GEMM_UNIT) {
        plain_unit(sum, a, b, t->b_next, panels);
        a += unit_stride(t) / (int64_t)sizeof *a;
        b += B_BYTES_OF_UNIT;
    }
    _mm_setcsr(modes);
#pragma GCC unroll 8
    for (int v = 0; v < 2 * panels; v++) {
        float *c = t->c + v / 2 * t->c_next + v % 2 * VW;
        v_store(c, t->alpha == 1 ? sum[v]
                                 : v_fma(v_set1(t->alpha), sum[v], add ? v_load(c) : v_zero()));
    }
}

static void plain(const gemm_tile *t)
{
    switch (t->panels) {
    case 1: plain_row(t, 1); break;
    case 2: plain_row(t, 2); break;
    default: plain_row(t, 4);
    }
}

/* ---- sums that are not a whole tile of C, or not simply added to it ---- */

/* n rows of 32 columns. */
ALWAYS_INLINE void copy_rows(float *to, int64_t ld_to, const float *from, int64_t ld_from,
                             int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        for (int j = 0; j < NR; j += VW)
            v_store(to + i * ld_to + j, v_load(from + i * ld_from + j));
}

ALWAYS_INLINE void add_rows(float *c, int64_t ldc, const float *sum, int64_t n, const gemm_tile *t)
{
    vf alpha = v_set1(t->alpha);
    for (int64_t i = 0; i < n; i++)
        for (int j = 0; j < NR; j += VW) {
            float *to = c + i * ldc + j;
            v_store(to, v_fma(alpha, v_load(sum + i * NR + j), t->add ? v_load(to) : v_zero()));
        }
}

/* Before and behind a product that is made in `sum` (32 columns). */
ALWAYS_INLINE void fetch_sum(float *sum, const float *c, const gemm_tile *t)
{
    if (t->add && t->alpha == 1) copy_rows(sum, NR, c, t->ldc, t->rows);
    published();
}
ALWAYS_INLINE void store_sum(float *c, const float *sum, const gemm_tile *t)
{
    if (t->alpha == 1)
        copy_rows(c, t->ldc, sum, NR, t->rows);
    else
        add_rows(c, t->ldc, sum, t->rows, t);
}

static void tall(const gemm_tile *t)
{
    _Alignas(64) float sum[MR * NR];
    /* the tile registers have exactly the rows of this tile: they can load and store C itself */
    const bool exact = t->rows == MR || t->a_stride;
    if (exact && t->alpha == 1 && t->add) {
        square(t->c, t->ldc, t, true);
    } else if (exact && t->alpha == 1) {
        square(t->c, t->ldc, t, false);
    } else {
        fetch_sum(sum, t->c, t);
        if (t->add && t->alpha == 1)
            square(sum, NR, t, true);
        else
            square(sum, NR, t, false);
        store_sum(t->c, sum, t);
    }
}

static void flat(const gemm_tile *t)
{
    _Alignas(64) float sum[2][TILE * NR];
    bool add = t->add && t->alpha == 1;
    for (int p = 0; p < t->panels; p += 2) {
        const char *b = (const char *)t->b + (size_t)p * t->b_next;
        float *c = t->c + p * t->c_next;
        bool two = p + 1 < t->panels;
        fetch_sum(sum[0], c, t);
        if (two) fetch_sum(sum[1], c + t->c_next, t);
        if (two)
            band(sum[0], sum[1], NR, t, b, true, add);
        else
            band(sum[0], sum[1], NR, t, b, false, add);
        store_sum(c, sum[0], t);
        if (two) store_sum(c + t->c_next, sum[1], t);
    }
}

/* Limits the tile registers of A and C: `upper` rows in those of rows 0 to 15, `lower` in those of
 * rows 16 to 31.  Those of B keep 16. */
static void set_tile_rows(int upper, int lower)
{
    const uint8_t u = (uint8_t)upper, l = (uint8_t)lower;
    const amx_config config = {.palette = 1,
                               .row_bytes = {64, 64, 64, 64, 64, 64, 64, 64},
                               .rows = {u, u, l, l, u, l, TILE, TILE}};
    /* the intrinsic names only the first bytes as its input: keep the other stores */
    __asm__ volatile("" ::"r"(&config) : "memory");
    _tile_loadconfig(&config);
}

/* A packed strip is padded to 32 rows.  Unpacked rows are not: reading more of them than there are
 * could leave the matrix, so the tile registers are limited to the rows that are there. */
static void tile(const gemm_tile *t)
{
    if (t->rows <= BF16_PLAIN_ROWS) {
        plain(t);
        return;
    }
    const bool limit = t->a_stride && t->rows < MR;
    if (t->rows > TILE) {
        if (limit) set_tile_rows(TILE, t->rows - TILE);
        tall(t);
    } else {
        if (limit) set_tile_rows(t->rows, t->rows);
        flat(t);
    }
    if (limit) enter();
}

/* ---- panels ---- */

/* 16 rows of 32 values of k, from row `first` on: as they lie, or the transpose of pairs. */
ALWAYS_INLINE void load_rows(vf x[VW], const gemm_src *s, int first, int64_t k, int64_t kc,
                             const fv_dtype t)
{
    if (!s->along_k) {
        load_pairs(x, s, first, k, kc, t);
        transpose(x);
        return;
    }
#pragma GCC unroll 16
    for (int j = 0; j < VW; j++) {
        int64_t row = first + j < s->n ? first + j : s->n - 1;
        x[j] = (vf)load_unit(s->p, row * s->ld + k, kc - k, t);
    }
}

/* The second 16 rows only where there are any: a tile of few rows does not read them. */
ALWAYS_INLINE void pack_rows_as(char *out, const gemm_src *s, int64_t kc, const fv_dtype t)
{
    for (int64_t k = 0; k < kc; k += GEMM_UNIT, out += A_BYTES_OF_UNIT)
        for (int i = 0; i < A_WIDTH && (!i || i < s->n); i += VW) {
            vf x[VW];
            load_rows(x, s, i, k, kc, t);
#pragma GCC unroll 16
            for (int j = 0; j < VW; j++) v_store((float *)(out + (i + j) * 64), x[j]);
        }
}

static void pack_a(void *out, const gemm_src *a, int64_t kc)
{
    if (a->dtype == FV_BF16)
        pack_rows_as(out, a, kc, FV_BF16);
    else if (a->dtype == FV_F16)
        pack_rows_as(out, a, kc, FV_F16);
    else
        pack_rows_as(out, a, kc, FV_F32);
}

static void pack_b(void *out, const gemm_src *b, int64_t kc) { pack_pairs(out, NR, b, kc); }

#endif
