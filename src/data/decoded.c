/* decoded.c - the decoded images of a small data set, kept in memory.
 *
 * Decoding a photograph costs more than cutting a part out of it and resizing that, and every epoch
 * asks for the same ones.  They are decoded before the first batch, in parallel, at their own size:
 * what is shown of them differs each time (pixels.c keeps fitted images instead, as its objectives
 * always show whole ones).  Filling the cache as images are first asked for was the alternative: it
 * needs a lock for each image that the loader's workers share. */
#include "data/decoded.h"

#include <omp.h>

#include "base/base.h"

/* What the threads share; over `most` bytes the rest is left undecoded. */
typedef struct filling {
    size_t bytes;
    int64_t failed; /* the first image that could not be decoded, whichever thread met it; or n */
    fv_status st;
} filling;

/* The error of the first image in order is kept, whichever thread fails first: a message must not
 * depend on timing. */
static void decode_one(fv__decoded *d, filling *f, int64_t i, fv__decode_fn *decode,
                       const void *source, fv_err *e)
{
    fv_err why;
    fv_status st = decode(source, i, &d->image[i], &why);
#pragma omp critical /* unnamed: a name would be an exported symbol */
    {
        f->bytes += d->image[i].bytes;
        if (st && i < f->failed) {
            f->failed = i;
            f->st = fv_fail(e, st, "%s", why.text);
        }
    }
}

/* Stops decoding as soon as the budget is passed and then keeps nothing: a cache of half the images
 * would save little and make times uneven. */
fv_status fv__decoded_open(fv__decoded *d, const fv_env *env, int64_t n, fv__decode_fn *decode,
                           const void *source, size_t most, fv_err *e)
{
    filling f = {.failed = n};
    *d = (fv__decoded){.env = env, .n = n};
    if (!most || !n) return FV_OK;
    d->image = fv__alloc(env, (size_t)n * sizeof *d->image);
    if (!d->image) return FV_OK; /* then they are decoded each time */
#pragma omp parallel for schedule(dynamic)
    for (int64_t i = 0; i < n; i++) {
        size_t so_far;
#pragma omp critical
        so_far = f.bytes;
        if (so_far <= most) decode_one(d, &f, i, decode, source, e);
    }
    if (f.st || f.bytes > most) fv__decoded_close(d);
    return f.st;
}

void fv__decoded_close(fv__decoded *d)
{
    for (int64_t i = 0; d->image && i < d->n; i++) fv_image_free(&d->image[i]);
    if (d->image) fv__free(d->env, d->image, (size_t)d->n * sizeof *d->image);
    *d = (fv__decoded){0};
}
