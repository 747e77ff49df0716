/* strides.h - offsets of elements in an fv_walk, and rows of operands with any stride.
 *
 * An fv_walk is a list of axes, outermost first, with the stride of each operand in elements;
 * stride 0 repeats an operand (broadcasting).  Kernels walk all axes but the last by index, so
 * that any step can be reached by any thread, and the last one in pieces:
 *
 *    y (2,3,4) = a (2,3,4) + b (3,1):   shape 2 3 4,  a 12 4 1,  b 0 1 0,  y 12 4 1 */
#ifndef FV_STRIDES_H
#define FV_STRIDES_H

#include "stage.h"

typedef struct {
    int64_t y, a, b;
} walk_offsets;

/* The i-th step through the first `axes` axes.
 * A division per axis and row; the rows are long enough for it not to be seen. */
static inline walk_offsets walk_offsets_of(const fv_walk *w, int axes, int64_t i)
{
    walk_offsets at = {0, 0, 0};
    for (int d = axes - 1; d >= 0; d--) {
        int64_t k = d ? i % w->shape[d] : i;
        i /= w->shape[d];
        at.y += k * w->y[d];
        at.a += k * w->a[d];
        at.b += k * w->b[d];
    }
    return at;
}

static inline int64_t steps_of(const fv_walk *w, int axes)
{
    int64_t n = 1;
    for (int d = 0; d < axes; d++) n *= w->shape[d];
    return n;
}

static inline float widen_one(const void *p, int64_t i, fv_dtype t)
{
    float f;
    widen(&f, element(p, i, t), 1, t);
    return f;
}

/* As fetch, with a stride. */
static inline const float *fetch_strided(float *tmp, const void *p, int64_t at, int64_t stride,
                                         int64_t n, fv_dtype t)
{
    if (stride == 1) return fetch(tmp, p, at, n, t);
    if (stride == 0) {
        float f = widen_one(p, at, t);
        for (int64_t i = 0; i < n; i++) tmp[i] = f;
    } else if (t == FV_F32) {
        for (int64_t i = 0; i < n; i++) tmp[i] = ((const float *)p)[at + i * stride];
    } else {
        for (int64_t i = 0; i < n; i++) tmp[i] = widen_one(p, at + i * stride, t);
    }
    return tmp;
}

/* As aim and deliver, with a stride. */
static inline float *sink_target_strided(fv_sink s, int64_t at, int64_t stride, float *tmp)
{
    return stride == 1 ? sink_target(s, at, tmp) : tmp;
}

static inline void sink_store_strided(fv_sink s, int64_t at, int64_t stride, float *p, int64_t n)
{
    if (stride == 1) {
        sink_store(s, at, p, n);
    } else if (s.dtype == FV_F32) {
        float *to = (float *)s.data + at;
        for (int64_t i = 0; i < n; i++) to[i * stride] = s.add ? to[i * stride] + p[i] : p[i];
    } else {
        for (int64_t i = 0; i < n; i++) sink_store(s, at + i * stride, p + i, 1);
    }
}

#endif
