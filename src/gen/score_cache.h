/* score_cache.h - a continuous cache beside a language model (Grave et al. 2017). */
#ifndef FV_GEN_SCORE_CACHE_H
#define FV_GEN_SCORE_CACHE_H

#include "fovea/gen.h"
#include "fovea/author/tensor.h"

typedef struct fv__score_cache {
    fv_score_cache opt;
    fv_ctx *ctx; /* its own, in f32: products of states are large, and softmax needs their digits */
    const fv_env *env;
    int64_t width, n, most; /* of a state; states held; states a block has memory for */
    float *states;          /* (most, width), the oldest first */
    int32_t *next;          /* the token that followed each */
    const fv_tensor *seen;  /* what the tap saw last: states behind the last layer */
} fv__score_cache;

fv_status fv__score_cache_open(fv__score_cache *s, fv_device *d, fv_score_cache opt, fv_err *e);
/* Shows the states of what c computes to the cache. */
void fv__score_cache_watch(fv__score_cache *s, fv_ctx *c);
/* Of the pass just made in c: rows from, .., from + n - 1 of its states, which predict `label`,
 * with loss = -log p by the model.  s->opt.out + at gets log p with the cache, which then holds the
 * rows too. */
fv_status fv__score_cache_add(fv__score_cache *s, fv_ctx *c, int64_t from, int64_t n,
                              const int32_t *label, const float *loss, int64_t at, fv_err *e);
void fv__score_cache_close(fv__score_cache *s);

#endif
