/* copy.c - strided copies, filling, and conversion between float dtypes.
 *
 * A copy whose operands are contiguous along the same axis runs along it; where they are contiguous
 * along different axes (a transposition) squares of TILE are copied, so that a cache line that was
 * read or written once is used for all it holds before it leaves L1. */
#ifndef DTYPE
#include "strides.h"

#define TILE 32 /* square of a transposition: 128 bytes of f32 in either direction */

/* The axis along which an operand is contiguous, or -1. */
static int unit_axis(const fv_walk *w, const int64_t *stride)
{
    for (int d = w->n - 1; d >= 0; d--)
        if (stride[d] == 1 && w->shape[d] > 1) return d;
    return -1;
}

static fv_walk without(const fv_walk *w, int p, int q)
{
    fv_walk rest = {0};
    for (int d = 0; d < w->n; d++) {
        if (d == p || d == q) continue;
        rest.shape[rest.n] = w->shape[d];
        rest.y[rest.n] = w->y[d];
        rest.a[rest.n++] = w->a[d];
    }
    return rest;
}

/* True if several elements are written to the same address: then their order matters. */
static bool collides(const fv_walk *w)
{
    for (int d = 0; d < w->n; d++)
        if (!w->y[d] && w->shape[d] > 1) return true;
    return false;
}

#define BY_DTYPE "copy.c"
#include "by_dtype.h"

void NAME(copy)(fv_kernels *k);
void NAME(copy)(fv_kernels *k) { fill_by_dtype(k); }

#else /* the kernels of dtype DTYPE */

/* n elements from x to y, both contiguous. */
static void OF(run)(fv_sink y, int64_t to, const void *x, int64_t from, int64_t n)
{
    float tmp[PIECE];
    if (y.dtype == DTYPE && !y.add) {
        memcpy((char *)y.data + to * bytes_of(DTYPE), element(x, from, DTYPE),
               (size_t)(n * bytes_of(DTYPE)));
        return;
    }
    for (int64_t i = 0; i < n; i += PIECE) {
        int64_t m = least(PIECE, n - i);
        const float *p = fetch(tmp, x, from + i, m, DTYPE);
        if (p != tmp) memcpy(tmp, p, (size_t)m * sizeof *tmp);
        sink_store(y, to + i, tmp, m);
    }
}

typedef struct {
    fv_sink y;
    const void *x;
    const fv_walk *w;
    int last;
    int64_t cols, per_row, ys, xs;
} OF(copy_rows_args);

static void OF(copy_rows_part)(void *arg, int64_t lo, int64_t hi, int slot)
{
    const OF(copy_rows_args) *l = arg;
    (void)slot;
    for (int64_t i = lo; i < hi; i++) {
        float tmp[PIECE];
        walk_offsets p = walk_offsets_of(l->w, l->last, i / l->per_row);
        int64_t at = i % l->per_row * PIECE, m = least(PIECE, l->cols - at);
        if (l->ys == 1 && l->xs == 1) {
            OF(run)(l->y, p.y + at, l->x, p.a + at, m);
        } else {
            const float *in = fetch_strided(tmp, l->x, p.a + at * l->xs, l->xs, m, DTYPE);
            if (in != tmp) memcpy(tmp, in, (size_t)m * sizeof *tmp);
            sink_store_strided(l->y, p.y + at * l->ys, l->ys, tmp, m);
        }
    }
}

/* Last axis after last axis. */
static void OF(copy_rows)(fv_stream *s, fv_sink y, const void *x, const fv_walk *w)
{
    int last = w->n - 1;
    int64_t cols = w->shape[last], per_row = pieces(cols, PIECE), rows = steps_of(w, last),
            ys = w->y[last], xs = w->a[last];
    fv__cpu_parallel(s, collides(w) ? 1 : threads_for_rows(s, rows, cols), rows * per_row, 0,
                     OF(copy_rows_part),
                     &(OF(copy_rows_args)){y, x, w, last, cols, per_row, ys, xs});
}

typedef struct {
    fv_sink y;
    const void *x;
    const fv_walk *w;
    int u, v;
    const fv_walk *rest;
    int64_t tu, tv;
} OF(transpose_args);

static void OF(transpose_part)(void *arg, int64_t lo, int64_t hi, int slot)
{
    const OF(transpose_args) *l = arg;
    (void)slot;
    for (int64_t i = lo; i < hi; i++) {
        float wide[TILE][TILE], out[TILE];
        const float *row[TILE];
        walk_offsets p = walk_offsets_of(l->rest, l->rest->n, i / (l->tu * l->tv));
        int64_t fu = i / l->tv % l->tu * TILE, fv = i % l->tv * TILE,
                nu = least(TILE, l->w->shape[l->u] - fu), nv = least(TILE, l->w->shape[l->v] - fv);
        for (int64_t j = 0; j < nu; j++)
            row[j] = fetch(wide[j], l->x, p.a + (fu + j) * l->w->a[l->u] + fv, nv, DTYPE);
        for (int64_t k = 0; k < nv; k++) {
            int64_t at = p.y + (fv + k) * l->w->y[l->v] + fu;
            float *to = sink_target(l->y, at, out);
            for (int64_t j = 0; j < nu; j++) to[j] = row[j][k];
            sink_store(l->y, at, to, nu);
        }
    }
}

/* y lies along axis u and x along axis v: squares are read along v and written along u, so that
 * every cache line that is touched is used up. */
static void OF(transpose)(fv_stream *s, fv_sink y, const void *x, const fv_walk *w, int u, int v)
{
    fv_walk left = without(w, u, v);
    const fv_walk *rest = &left;
    int64_t tu = pieces(w->shape[u], TILE), tv = pieces(w->shape[v], TILE),
            others = steps_of(rest, rest->n);
    fv__cpu_parallel(s, threads_for_axes(s, others, w->shape[u], w->shape[v]), others * tu * tv, 0,
                     OF(transpose_part), &(OF(transpose_args)){y, x, w, u, v, rest, tu, tv});
}

/* Permutations whose last axis moves go by squares; all others copy along the last axis. */
static void OF(copy)(fv_stream *s, fv_sink y, const void *x, const fv_walk *w)
{
    if (!y.data) return;
    int u = unit_axis(w, w->y), v = unit_axis(w, w->a);
    if (u >= 0 && v >= 0 && u != v && !collides(w))
        OF(transpose)(s, y, x, w, u, v);
    else
        OF(copy_rows)(s, y, x, w);
}

typedef struct {
    void *y;
    const float *tmp;
    int64_t n;
} OF(constant_args);

static void OF(constant_part)(void *arg, int64_t lo, int64_t hi, int slot)
{
    const OF(constant_args) *l = arg;
    (void)slot;
    for (int64_t k = lo; k < hi; k++) {
        int64_t i = k * PIECE;
        narrow((char *)l->y + i * bytes_of(DTYPE), l->tmp, least(PIECE, l->n - i), DTYPE);
    }
}

static void OF(constant)(fv_stream *s, void *y, float value, int64_t n)
{
    float tmp[PIECE];
    for (int i = 0; i < PIECE; i++) tmp[i] = value;
    fv__cpu_parallel(s, threads_for(s, n), pieces(n, PIECE), 0, OF(constant_part),
                     &(OF(constant_args)){y, tmp, n});
}

typedef struct {
    fv_sink y;
    const void *x;
    int64_t n;
} OF(cast_args);

static void OF(cast_part)(void *arg, int64_t lo, int64_t hi, int slot)
{
    const OF(cast_args) *l = arg;
    (void)slot;
    for (int64_t k = lo; k < hi; k++) {
        int64_t i = k * PIECE;
        float tmp[PIECE];
        int64_t m = least(PIECE, l->n - i);
        if (l->y.dtype != FV_F64) {
            OF(run)(l->y, i, l->x, i, m);
            continue;
        }
        const float *p = fetch(tmp, l->x, i, m, DTYPE);
        double *to = (double *)l->y.data + i;
        for (int64_t j = 0; j < m; j++) to[j] = l->y.add ? to[j] + p[j] : p[j];
    }
}

static void OF(cast)(fv_stream *s, fv_sink y, const void *x, int64_t n)
{
    if (!y.data) return;
    fv__cpu_parallel(s, threads_for(s, n), pieces(n, PIECE), 0, OF(cast_part),
                     &(OF(cast_args)){y, x, n});
}

static void OF(table)(fv_kernels *k)
{
    k->copy = OF(copy);
    k->fill = OF(constant);
    k->cast = OF(cast);
}
#endif
