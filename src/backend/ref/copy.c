/* copy.c - strided copies, filling, and conversion between float dtypes. */
#include "backend/ref/ref.h"
#include "backend/ref/ref_walk.h"

/* y[w.y] (+)= x[w.a] */
static void copy(fv_stream *s, fv_sink y, const void *x, const fv_walk *w)
{
    (void)s;
    if (!y.data) return;
    for (walker at = walk_start(w); at.more; walk_next(&at, w)) sink_store(y, at.y, ld(x, at.a));
}

/* Rounded to the dtype once; used for the seed of backward (1) and for masks. */
static void fill(fv_stream *s, void *y, float value, int64_t n)
{
    (void)s;
    for (int64_t i = 0; i < n; i++) st(y, i, value);
}

/* Element i of memory of any float dtype. */
static double get_any(const void *p, fv_dtype t, int64_t i)
{
    switch (t) {
    case FV_F64: return ((const double *)p)[i];
    case FV_F32: return ((const float *)p)[i];
    case FV_BF16: return ref_from_bf16(((const uint16_t *)p)[i]);
    default: return ref_from_f16(((const uint16_t *)p)[i]);
    }
}

/* Double to half goes through f32: a double rounding that only a number halfway between two halves
 * can show. */
static void set_any(void *p, fv_dtype t, int64_t i, double v)
{
    switch (t) {
    case FV_F64: ((double *)p)[i] = v; break;
    case FV_F32: ((float *)p)[i] = (float)v; break;
    case FV_BF16: ((uint16_t *)p)[i] = ref_to_bf16((float)v); break;
    default: ((uint16_t *)p)[i] = ref_to_f16((float)v); break;
    }
}

static void cast(fv_stream *s, fv_sink y, const void *x, int64_t n)
{
    (void)s;
    if (!y.data) return;
    for (int64_t i = 0; i < n; i++) {
        double v = (double)ld(x, i);
        set_any(y.data, y.dtype, i, y.add ? get_any(y.data, y.dtype, i) + v : v);
    }
}

void REF(copy)(fv_kernels *k);
void REF(copy)(fv_kernels *k)
{
    k->copy = copy;
    k->fill = fill;
    k->cast = cast;
}
