/* shape.c - shapes that come from files: how many elements, where one stands, memory for them. */
#include <stdio.h>

#include "array.h"

/* An axis of 0 makes any shape empty, also one whose other axes would overflow their product. */
bool fv__shape_count(int64_t *n, const fv_shape *s)
{
    int64_t count = 1;
    bool empty = false;
    for (int i = 0; i < s->n; i++) {
        if (s->d[i] < 0) return false;
        empty |= !s->d[i];
    }
    for (int i = 0; i < s->n && !empty; i++)
        if (!fv__mul_i64(&count, count, s->d[i])) return false;
    *n = empty ? 0 : count;
    return true;
}

/* "(3,0,17)" for element i: messages about a number in a file say where it stands. */
fv_desc_text fv__element(const fv_shape *s, int64_t i)
{
    fv_desc_text d = {"("};
    int64_t at[FV_MAX_DIM] = {0};
    for (int k = s->n - 1; k >= 0; k--) {
        at[k] = i % s->d[k];
        i /= s->d[k];
    }
    int len = 1;
    for (int k = 0; k < s->n && len < 90; k++)
        len += snprintf(d.s + len, sizeof d.s - (size_t)len, k ? ",%lld" : "%lld",
                        (long long)at[k]);
    if (len < 95) snprintf(d.s + len, sizeof d.s - (size_t)len, ")");
    return d;
}

fv_status fv__array_alloc(fv_array *a, const char *what, fv_err *e)
{
    int64_t n;
    size_t bytes;
    if (!fv__shape_count(&n, &a->shape) || !fv__mul_size(&bytes, (size_t)n, sizeof *a->data) ||
        bytes > PTRDIFF_MAX)
        return fv_fail(e, FV_ESHAPE, "%s: more elements than can be addressed", what);
    if (!n) return FV_OK;
    a->data = fv__alloc(a->env, bytes);
    return a->data ? FV_OK
                   : fv_fail(e, FV_ENOMEM, "%s: no memory for %lld elements", what, (long long)n);
}
