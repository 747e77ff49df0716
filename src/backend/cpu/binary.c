/* binary.c - y = a op b with broadcasting, its gradients, and masked_fill.
 *
 * Operands are walked by strides: an axis along which one is repeated has stride 0 there, so
 * broadcasting costs no copy and no case.  Axes that lie behind one another in all three are joined
 * before (ops/walk.h), and most calls come down to one or two.  The last axis is done in pieces
 * that fit into registers and L1: fetched and widened to f32 where the dtype is narrower, computed,
 * rounded once and stored.  Chunks of rows go to threads; each element of y has one owner.
 *
 * The gradient of an operand that was repeated is a sum over the axes it was repeated along, and
 * each element of it has one thread and one order, whatever the number of threads: pieces of fixed
 * size first, then their sums in order. */
#ifndef DTYPE
#include "strides.h"

#define COLUMNS 512 /* columns that one thread processes at a time in a gradient summed over rows */

static inline vf add(vf a, vf b) { return v_add(a, b); }
static inline vf sub(vf a, vf b) { return v_sub(a, b); }
static inline vf mul(vf a, vf b) { return v_mul(a, b); }
static inline vf div_(vf a, vf b) { return v_div(a, b); }
/* Neither less nor greater: equal, or one is NaN, which must be the result.  The OR of the bits is
 * right in both cases. */
static inline vf max(vf a, vf b)
{
    return v_sel(v_lt(a, b), b, v_sel(v_lt(b, a), a, (vf)((vi)a | (vi)b)));
}

static void forward(fv_binary_op op, float *y, const float *a, const float *b, int64_t n)
{
    switch (op) {
    case FV_B_ADD: map2(y, a, b, n, add); break;
    case FV_B_SUB: map2(y, a, b, n, sub); break;
    case FV_B_MUL: map2(y, a, b, n, mul); break;
    case FV_B_DIV: map2(y, a, b, n, div_); break;
    case FV_B_MAX: map2(y, a, b, n, max); break;
    case FV_B_COUNT: break;
    }
}

/* ---- gradients: side 0 is a, side 1 is b ---- */

static inline vf negate(vf a, vf p, vf q) { return (void)p, (void)q, v_neg(a); }
static inline vf d_mul(vf dy, vf other) { return v_mul(dy, other); }
static inline vf d_div_b(vf dy, vf a, vf b) { return v_neg(v_div(v_mul(dy, a), v_mul(b, b))); }
/* the larger one has it all, equals share it */
static inline vf d_max(vf dy, vf mine, vf other)
{
    return v_sel(v_lt(other, mine), dy,
                 v_sel(v_lt(mine, other), v_zero(), v_mul(v_set1(0.5f), dy)));
}

static bool reads_inputs(fv_binary_op op) { return op != FV_B_ADD && op != FV_B_SUB; }

/* The contribution of each element of dy to its element of da (db).
 * add: 1, 1;  sub: 1, -1;  mul: b, a;  div: 1/b, -a/b^2;  max: 1 or 0, 1/2 where equal, as
 * PyTorch has it for the maximum of two tensors. */
static void terms(fv_binary_op op, int side, float *d, const float *dy, const float *a,
                  const float *b, int64_t n)
{
    switch (op) {
    case FV_B_ADD: memcpy(d, dy, (size_t)n * sizeof *d); break;
    case FV_B_SUB:
        if (side)
            map1(d, dy, n, v_zero(), v_zero(), negate);
        else
            memcpy(d, dy, (size_t)n * sizeof *d);
        break;
    case FV_B_MUL: map2(d, dy, side ? a : b, n, d_mul); break;
    case FV_B_DIV:
        if (side)
            map3(d, dy, a, b, n, d_div_b);
        else
            map2(d, dy, b, n, div_);
        break;
    case FV_B_MAX: map3(d, dy, side ? b : a, side ? a : b, n, d_max); break;
    case FV_B_COUNT: break;
    }
}

static const int64_t *strides_of(const fv_walk *w, int side) { return side ? w->b : w->a; }
static int64_t walk_offset_on(walk_offsets p, int side) { return side ? p.b : p.a; }

static bool is_repeated(const fv_walk *w, int side)
{
    for (int d = 0; d < w->n; d++)
        if (!strides_of(w, side)[d] && w->shape[d] > 1) return true;
    return false;
}

/* Splits all axes but the last into those the operand has and those it is repeated along.
 * An operand that was broadcast gets the sum over the axes it was repeated along.  Three cases:
 *
 *    not repeated                  grad_each      one term, no sum
 *    along leading axes (a bias)   grad_columns   vectors run across the columns
 *    along the last axis           grad_rows      sums of pieces first, then of their rows */
static void split(const fv_walk *w, int side, fv_walk *own, fv_walk *over)
{
    *own = *over = (fv_walk){0};
    for (int d = 0; d < w->n - 1; d++) {
        fv_walk *to = strides_of(w, side)[d] ? own : over;
        to->shape[to->n] = w->shape[d];
        to->y[to->n] = w->y[d];
        to->a[to->n] = w->a[d];
        to->b[to->n++] = w->b[d];
    }
}

/* Inputs of the gradients. */
typedef struct {
    fv_binary_op op;
    const void *dy, *a, *b;
    const fv_walk *w;
} operands;

#define BY_DTYPE "binary.c"
#include "by_dtype.h"

void NAME(binary)(fv_kernels *k);
void NAME(binary)(fv_kernels *k) { fill_by_dtype(k); }

#else /* the kernels of dtype DTYPE */

typedef struct {
    fv_binary_op op;
    void *y;
    const void *a, *b;
    const fv_walk *w;
    int last;
    int64_t cols, per_row;
} OF(binary_args);

static void OF(binary_part)(void *arg, int64_t lo, int64_t hi, int slot)
{
    const OF(binary_args) *l = arg;
    (void)slot;
    for (int64_t i = lo; i < hi; i++) {
        float ta[PIECE], tb[PIECE], ty[PIECE];
        walk_offsets p = walk_offsets_of(l->w, l->last, i / l->per_row);
        int64_t from = i % l->per_row * PIECE, m = least(PIECE, l->cols - from),
                at = p.y + from * l->w->y[l->last];
        const float *pa = fetch_strided(ta, l->a, p.a + from * l->w->a[l->last], l->w->a[l->last],
                                        m, DTYPE);
        const float *pb = fetch_strided(tb, l->b, p.b + from * l->w->b[l->last], l->w->b[l->last],
                                        m, DTYPE);
        float *to = sink_target_strided(output(l->y, DTYPE), at, l->w->y[l->last], ty);
        forward(l->op, to, pa, pb, m);
        sink_store_strided(output(l->y, DTYPE), at, l->w->y[l->last], to, m);
    }
}

/* y may be a or b.
 * All axes but the last are one index i, cut evenly among threads; along the last, pieces of
 * PIECE. */
static void OF(binary)(fv_stream *s, fv_binary_op op, void *y, const void *a, const void *b,
                       const fv_walk *w)
{
    int last = w->n - 1;
    int64_t cols = w->shape[last], per_row = pieces(cols, PIECE), rows = steps_of(w, last);
    fv__cpu_parallel(s, threads_for_rows(s, rows, cols), rows * per_row, 0, OF(binary_part),
                     &(OF(binary_args)){op, y, a, b, w, last, cols, per_row});
}

/* The terms of n elements of the last axis, from `from` on, in the row at p. */
static void OF(row_terms)(const operands *g, int side, float *d, walk_offsets p, int64_t from,
                          int64_t n)
{
    float tdy[PIECE], ta[PIECE], tb[PIECE];
    const fv_walk *w = g->w;
    int last = w->n - 1;
    const float *dy = fetch_strided(tdy, g->dy, p.y + from * w->y[last], w->y[last], n, DTYPE),
                *a = dy, *b = dy;
    if (reads_inputs(g->op)) {
        a = fetch_strided(ta, g->a, p.a + from * w->a[last], w->a[last], n, DTYPE);
        b = fetch_strided(tb, g->b, p.b + from * w->b[last], w->b[last], n, DTYPE);
    }
    terms(g->op, side, d, dy, a, b, n);
}

typedef struct {
    const operands *g;
    const fv_sink *sink;
    const fv_walk *w;
    int last;
    int64_t cols, per_row;
} OF(grad_each_args);

static void OF(grad_each_part)(void *arg, int64_t lo, int64_t hi, int slot)
{
    const OF(grad_each_args) *l = arg;
    (void)slot;
    for (int64_t i = lo; i < hi; i++) {
        walk_offsets p = walk_offsets_of(l->w, l->last, i / l->per_row);
        int64_t from = i % l->per_row * PIECE, m = least(PIECE, l->cols - from);
        for (int side = 0; side < 2; side++) {
            if (!l->sink[side].data) continue;
            float tmp[PIECE];
            int64_t step = strides_of(l->w, side)[l->last],
                    at = walk_offset_on(p, side) + from * step;
            float *to = sink_target_strided(l->sink[side], at, step, tmp);
            OF(row_terms)(l->g, side, to, p, from, m);
            sink_store_strided(l->sink[side], at, step, to, m);
        }
    }
}

/* Operands that are not repeated: one term for each element.
 * Both sides in one pass where neither is repeated: dy is read once for da and db. */
static void OF(grad_each)(fv_stream *s, const operands *g, const fv_sink sink[2])
{
    const fv_walk *w = g->w;
    int last = w->n - 1;
    int64_t cols = w->shape[last], per_row = pieces(cols, PIECE), rows = steps_of(w, last);
    fv__cpu_parallel(s, threads_for_rows(s, rows, cols), rows * per_row, 0, OF(grad_each_part),
                     &(OF(grad_each_args)){g, sink, w, last, cols, per_row});
}

typedef struct {
    const operands *g;
    int side;
    fv_sink sink;
    const fv_walk *own, *over;
    int64_t cols, per_row, step, repeats;
} OF(grad_columns_args);

static void OF(grad_columns_part)(void *arg, int64_t lo, int64_t hi, int slot)
{
    const OF(grad_columns_args) *l = arg;
    (void)slot;
    for (int64_t i = lo; i < hi; i++) {
        float sum[COLUMNS] = {0}, d[COLUMNS];
        walk_offsets p = walk_offsets_of(l->own, l->own->n, i / l->per_row);
        int64_t from = i % l->per_row * COLUMNS, m = least(COLUMNS, l->cols - from);
        for (int64_t r = 0; r < l->repeats; r++) {
            walk_offsets q = walk_offsets_of(l->over, l->over->n, r);
            OF(row_terms)
            (l->g, l->side, d, (walk_offsets){p.y + q.y, p.a + q.a, p.b + q.b}, from, m);
            for (int64_t j = 0; j < m; j++) sum[j] += d[j];
        }
        sink_store_strided(l->sink, walk_offset_on(p, l->side) + from * l->step, l->step, sum, m);
    }
}

/* Repeated along leading axes alone, as a bias is: columns are summed row after row, each by one
 * thread. */
static void OF(grad_columns)(fv_stream *s, const operands *g, int side, fv_sink sink)
{
    const fv_walk *w = g->w;
    int last = w->n - 1;
    fv_walk mine, repeated, *own = &mine, *over = &repeated;
    split(w, side, own, over);
    int64_t cols = w->shape[last], per_row = pieces(cols, COLUMNS),
            step = strides_of(w, side)[last];
    int64_t rows = steps_of(own, own->n), repeats = steps_of(over, over->n);
    fv__cpu_parallel(s, threads_for_axes(s, rows, repeats, cols), rows * per_row, 0,
                     OF(grad_columns_part),
                     &(OF(grad_columns_args)){g, side, sink, own, over, cols, per_row, step,
                                              repeats});
}

typedef struct {
    const operands *g;
    int side;
    float *part;
    const fv_walk *w;
    int last;
    int64_t cols, per_row;
} OF(row_sums_args);

static void OF(row_sums_part)(void *arg, int64_t lo, int64_t hi, int slot)
{
    const OF(row_sums_args) *l = arg;
    (void)slot;
    for (int64_t i = lo; i < hi; i++) {
        float d[PIECE];
        int64_t from = i % l->per_row * PIECE, m = least(PIECE, l->cols - from);
        OF(row_terms)(l->g, l->side, d, walk_offsets_of(l->w, l->last, i / l->per_row), from, m);
        l->part[i] = sum_of(d, m);
    }
}

typedef struct {
    const float *part;
    int side;
    fv_sink sink;
    const fv_walk *own, *over;
    int64_t per_row, repeats;
} OF(grad_rows_args);

static void OF(grad_rows_part)(void *arg, int64_t lo, int64_t hi, int slot)
{
    const OF(grad_rows_args) *l = arg;
    (void)slot;
    for (int64_t i = lo; i < hi; i++) {
        walk_offsets p = walk_offsets_of(l->own, l->own->n, i);
        float sum = 0;
        for (int64_t r = 0; r < l->repeats; r++) {
            const float *of_row = l->part +
                                  (p.y + walk_offsets_of(l->over, l->over->n, r).y) * l->per_row;
            for (int64_t j = 0; j < l->per_row; j++) sum += of_row[j];
        }
        sink_store(l->sink, walk_offset_on(p, l->side), &sum, 1);
    }
}

/* Repeated along the last axis: first the sum of each piece, then for each element the sum of its
 * pieces. */
static void OF(grad_rows)(fv_stream *s, const operands *g, int side, fv_sink sink)
{
    const fv_walk *w = g->w;
    int last = w->n - 1;
    int64_t cols = w->shape[last], per_row = pieces(cols, PIECE), rows = steps_of(w, last);
    float *part = fv_stream_scratch(s, (size_t)(rows * per_row + 1) * sizeof *part);
    if (!part) return;
    fv__cpu_parallel(s, threads_for_rows(s, rows, cols), rows * per_row, 0, OF(row_sums_part),
                     &(OF(row_sums_args)){g, side, part, w, last, cols, per_row});
    fv_walk mine, repeated, *own = &mine, *over = &repeated;
    fv_walk numbered = *w; /* y holds row indices instead of elements of dy */
    int64_t step = 1;
    for (int d = last - 1; d >= 0; step *= w->shape[d--]) numbered.y[d] = step;
    split(&numbered, side, own, over);
    int64_t elements = steps_of(own, own->n), repeats = steps_of(over, over->n);
    fv__cpu_parallel(s, threads_for_rows(s, rows, per_row), elements, 0, OF(grad_rows_part),
                     &(OF(grad_rows_args)){part, side, sink, own, over, per_row, repeats});
}

static void OF(binary_bwd)(fv_stream *s, fv_binary_op op, fv_sink da, fv_sink db, const void *dy,
                           const void *a, const void *b, const fv_walk *w)
{
    operands g = {op, dy, a, b, w};
    fv_sink each[2] = {da, db};
    for (int side = 0; side < 2; side++) {
        fv_sink sink = each[side];
        if (!sink.data || !is_repeated(w, side)) continue;
        each[side].data = NULL;
        if (strides_of(w, side)[w->n - 1])
            OF(grad_columns)(s, &g, side, sink);
        else
            OF(grad_rows)(s, &g, side, sink);
    }
    if (each[0].data || each[1].data) OF(grad_each)(s, &g, each);
}

typedef struct {
    fv_sink y;
    const void *x;
    const uint8_t *mask;
    float value;
    const fv_walk *w;
    int last;
    int64_t cols, per_row;
} OF(masked_fill_args);

static void OF(masked_fill_part)(void *arg, int64_t lo, int64_t hi, int slot)
{
    const OF(masked_fill_args) *l = arg;
    (void)slot;
    for (int64_t i = lo; i < hi; i++) {
        float tx[PIECE], ty[PIECE];
        walk_offsets p = walk_offsets_of(l->w, l->last, i / l->per_row);
        int64_t from = i % l->per_row * PIECE, m = least(PIECE, l->cols - from),
                at = p.y + from * l->w->y[l->last], step = l->w->b[l->last];
        const float *px = fetch_strided(tx, l->x, p.a + from * l->w->a[l->last], l->w->a[l->last],
                                        m, DTYPE);
        const uint8_t *pm = l->mask + p.b + from * step;
        float *to = sink_target_strided(l->y, at, l->w->y[l->last], ty);
        if (step == 1)
            for (int64_t j = 0; j < m; j++) to[j] = pm[j] ? px[j] : l->value;
        else
            for (int64_t j = 0; j < m; j++) to[j] = pm[j * step] ? px[j] : l->value;
        sink_store_strided(l->y, at, l->w->y[l->last], to, m);
    }
}

static void OF(masked_fill)(fv_stream *s, fv_sink y, const void *x, const uint8_t *mask,
                            float value, const fv_walk *w)
{
    if (!y.data) return;
    int last = w->n - 1;
    int64_t cols = w->shape[last], per_row = pieces(cols, PIECE), rows = steps_of(w, last);
    fv__cpu_parallel(s, threads_for_rows(s, rows, cols), rows * per_row, 0, OF(masked_fill_part),
                     &(OF(masked_fill_args)){y, x, mask, value, w, last, cols, per_row});
}

static void OF(table)(fv_kernels *k)
{
    k->binary = OF(binary);
    k->binary_bwd = OF(binary_bwd);
    k->masked_fill = OF(masked_fill);
}
#endif
