/* copy.c - strided copies, filling, and conversion between float dtypes. */
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

/* Last axis after last axis. */
static void OF(copy_rows)(fv_stream *s, fv_sink y, const void *x, const fv_walk *w)
{
    int last = w->n - 1;
    int64_t cols = w->shape[last], per_row = pieces(cols, PIECE), rows = steps_of(w, last),
            ys = w->y[last], xs = w->a[last];
#pragma omp parallel for num_threads(collides(w) ? 1 : threads_for_rows(s, rows, cols))            \
    schedule(static)
    for (int64_t i = 0; i < rows * per_row; i++) {
        float tmp[PIECE];
        walk_offsets p = walk_offsets_of(w, last, i / per_row);
        int64_t at = i % per_row * PIECE, m = least(PIECE, cols - at);
        if (ys == 1 && xs == 1) {
            OF(run)(y, p.y + at, x, p.a + at, m);
        } else {
            const float *in = fetch_strided(tmp, x, p.a + at * xs, xs, m, DTYPE);
            if (in != tmp) memcpy(tmp, in, (size_t)m * sizeof *tmp);
            sink_store_strided(y, p.y + at * ys, ys, tmp, m);
        }
    }
}

/* y lies along axis u and x along axis v: squares are read along v and written along u, so that
 * every cache line that is touched is used up. */
static void OF(transpose)(fv_stream *s, fv_sink y, const void *x, const fv_walk *w, int u, int v)
{
    fv_walk rest = without(w, u, v);
    int64_t tu = pieces(w->shape[u], TILE), tv = pieces(w->shape[v], TILE),
            others = steps_of(&rest, rest.n);
#pragma omp parallel for num_threads(threads_for_axes(s, others, w->shape[u], w->shape[v]))        \
    schedule(static)
    for (int64_t i = 0; i < others * tu * tv; i++) {
        float wide[TILE][TILE], out[TILE];
        const float *row[TILE];
        walk_offsets p = walk_offsets_of(&rest, rest.n, i / (tu * tv));
        int64_t fu = i / tv % tu * TILE, fv = i % tv * TILE, nu = least(TILE, w->shape[u] - fu),
                nv = least(TILE, w->shape[v] - fv);
        for (int64_t j = 0; j < nu; j++)
            row[j] = fetch(wide[j], x, p.a + (fu + j) * w->a[u] + fv, nv, DTYPE);
        for (int64_t k = 0; k < nv; k++) {
            int64_t at = p.y + (fv + k) * w->y[v] + fu;
            float *to = sink_target(y, at, out);
            for (int64_t j = 0; j < nu; j++) to[j] = row[j][k];
            sink_store(y, at, to, nu);
        }
    }
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

static void OF(constant)(fv_stream *s, void *y, float value, int64_t n)
{
    float tmp[PIECE];
    for (int i = 0; i < PIECE; i++) tmp[i] = value;
#pragma omp parallel for num_threads(threads_for(s, n)) schedule(static)
    for (int64_t i = 0; i < n; i += PIECE)
        narrow((char *)y + i * bytes_of(DTYPE), tmp, least(PIECE, n - i), DTYPE);
}

static void OF(cast)(fv_stream *s, fv_sink y, const void *x, int64_t n)
{
    if (!y.data) return;
#pragma omp parallel for num_threads(threads_for(s, n)) schedule(static)
    for (int64_t i = 0; i < n; i += PIECE) {
        float tmp[PIECE];
        int64_t m = least(PIECE, n - i);
        if (y.dtype != FV_F64) {
            OF(run)(y, i, x, i, m);
            continue;
        }
        const float *p = fetch(tmp, x, i, m, DTYPE);
        double *to = (double *)y.data + i;
        for (int64_t j = 0; j < m; j++) to[j] = y.add ? to[j] + p[j] : p[j];
    }
}

static void OF(table)(fv_kernels *k)
{
    k->copy = OF(copy);
    k->fill = OF(constant);
    k->cast = OF(cast);
}
#endif
