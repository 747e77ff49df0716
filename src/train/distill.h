/* distill.h - learning from a teacher: a feed around the objective's own, with a loss of two. */
#ifndef FV_DISTILL_H
#define FV_DISTILL_H

#include "fovea/author/config.h"
#include "fovea/author/feed.h"

typedef struct fv__distill_opt {
    char teacher[512];
    float alpha, temperature, hidden, attention;
} fv__distill_opt;

extern const fv_field fv__distill_fields[];

/* Puts a feed with a teacher around f, which it owns from here on.  dtype: of the training. */
fv_status fv__distill_wrap(fv_feed *f, const fv__distill_opt *o, fv_device *d, fv_dtype dtype,
                           fv_err *e);

#endif
