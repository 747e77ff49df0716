/* gemm_tile_end.h - one tile of C as a product needs it: at the edge of C, and with what follows
 * the last run (bias, activation, rounding). */
#ifndef FV_GEMM_TILE_END_H
#define FV_GEMM_TILE_END_H

#include "gemm_plan.h"

/* A tile that is wider than what is left of C is computed in a buffer and copied.  Panels of B are
 * padded, so it runs at its full width. */
static void edge_tile(const gemm_kind *kind, gemm_tile *t, int64_t cols)
{
    float buf[GEMM_EDGE];
    float *c = t->c;
    int64_t ldc = t->ldc, wide = (int64_t)t->panels * kind->nr;
    for (int i = 0; i < t->rows && t->add; i++)
        for (int64_t j = 0; j < wide; j++) buf[i * wide + j] = j < cols ? c[i * ldc + j] : 0;
    t->c = buf;
    t->ldc = wide;
    kind->tile(t);
    for (int i = 0; i < t->rows; i++) memcpy(c + i * ldc, buf + i * wide, (size_t)cols * sizeof *c);
    t->c = c;
    t->ldc = ldc;
}

/* From sums to C for one tile that has just been stored, `at` elements behind e's first. */
static void finish_tile(const gemm_tile *t, const gemm_end *e, int64_t at, int64_t col,
                        int64_t cols)
{
    gemm_end end = *e;
    end.sum = t->c;
    end.ld_sum = t->ldc;
    end.rows = t->rows;
    end.cols = cols;
    end.c = (char *)e->c + at * (int64_t)fv_dtype_size(e->ct);
    if (e->pre) end.pre = (char *)e->pre + at * (int64_t)fv_dtype_size(e->table);
    if (e->bias) end.bias = gemm_at(e->bias, col, e->table);
    NAME(gemm_finish)(&end);
}

/* A tile of the last run and its epilogue.  Where there is only one run, sums go to a buffer, not
 * to C: rows of C that are a page apart share one set of L1 and would be evicted before the
 * epilogue reads them. */
static void last_tile(const gemm_kind *kind, const gemm_tile *tile, const gemm_end *e, int64_t at,
                      int64_t col, int64_t cols)
{
    _Alignas(64) float buf[GEMM_EDGE];
    const int64_t wide = (int64_t)tile->panels * kind->nr, size = (int64_t)fv_dtype_size(e->ct);
    gemm_tile t = *tile;
    t.out = (const char *)e->c + at * size;
    t.out_stride = e->ldc * size;
    t.out_bytes = cols * size;
    if (!t.add) {
        t.c = buf;
        t.ldc = wide;
    }
    if (!t.add || cols == wide)
        kind->tile(&t);
    else
        edge_tile(kind, &t, cols);
    finish_tile(&t, e, at, col, cols);
}

#endif
