/* ref_walk.h - going through an fv_walk one element after another, last axis fastest.
 *
 * An odometer: offsets are advanced by strides and wound back at the end of an axis, so that no
 * step divides.  An axis of length 0 makes the walk empty; no axes at all is one element, a
 * scalar. */
#ifndef FV_REF_WALK_H
#define FV_REF_WALK_H

#include "fovea/author/backend.h"

typedef struct walker {
    int64_t at[FV_MAX_DIM + 2];
    int64_t y, a, b; /* offsets of this element in the operands */
    bool more;
} walker;

static inline walker walk_start(const fv_walk *w)
{
    walker s = {.more = true};
    for (int i = 0; i < w->n; i++) s.more = s.more && w->shape[i] > 0;
    return s;
}

static inline void walk_next(walker *s, const fv_walk *w)
{
    for (int i = w->n - 1; i >= 0; i--) {
        s->y += w->y[i];
        s->a += w->a[i];
        s->b += w->b[i];
        if (++s->at[i] < w->shape[i]) return;
        s->y -= w->y[i] * w->shape[i]; /* back to the first, and one axis up */
        s->a -= w->a[i] * w->shape[i];
        s->b -= w->b[i] * w->shape[i];
        s->at[i] = 0;
    }
    s->more = false;
}

#endif
