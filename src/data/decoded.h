/* decoded.h - the decoded images of a small data set, kept in memory. */
#ifndef FV_DATA_DECODED_H
#define FV_DATA_DECODED_H

#include "fovea/author/image.h"

/* image is NULL where they did not fit: then each is decoded when it is needed. */
typedef struct fv__decoded {
    const fv_env *env;
    fv_image *image;
    int64_t n;
} fv__decoded;

/* Decodes image i of a source into out; called by several threads. */
typedef fv_status fv__decode_fn(const void *source, int64_t i, fv_image *out, fv_err *e);

/* Decodes all n images on all processors, unless they take more than `most` bytes.  On failure
 * nothing is kept. */
fv_status fv__decoded_open(fv__decoded *d, const fv_env *env, int64_t n, fv__decode_fn *decode,
                           const void *source, size_t most, fv_err *e);
void fv__decoded_close(fv__decoded *d); /* a zeroed one is allowed */

/* Image i, owned by d; NULL: none are kept. */
static inline const fv_image *fv__decoded_at(const fv__decoded *d, int64_t i)
{
    return d->image ? &d->image[i] : NULL;
}

/* The key of an objective whose options have `cache`, in MiB. */
#define FV__CACHE_KEY(type_)                                                                       \
    FV_INT(type_, cache, 0, 2048, 1 << 20,                                                         \
           "MiB for decoded images; where they do not fit they are decoded each time",             \
           FV_ON_RESUME)

#endif
