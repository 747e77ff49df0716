/* rel_bias.c - what is added to a score for the distance between query and key: T5's learned
 * buckets, ALiBi's slopes.
 *
 * Both are tables by distance for fv_attn's rel, never matrices of T by T.  T5's is short whatever
 * the length of the sequence: distances from `max_distance` on share a bucket, and attention reads
 * the table's ends for all that lies beyond. */
#include "nn/part.h"

#include <math.h>

void fv_rel_bias_init(fv_params *p, fv_rel_bias *l, int64_t buckets, int64_t n_head,
                      int64_t max_distance, bool unidirectional, const char *path, ...)
{
    va_list ap;
    va_start(ap, path);
    fv_path at = fv__path(path, ap);
    va_end(ap);
    *l = (fv_rel_bias){.max_distance = max_distance, .unidirectional = unidirectional};
    l->table = fv_param(p, fv__weight(0), FV_SHAPE(buckets, n_head), "%s.weight", at.s);
}

/* Half of the buckets are for single distances, the others grow with the logarithm.  In f32 and in
 * this order, because the published models round here: a distance on an edge belongs where they put
 * it. */
int32_t fv_rel_bucket(int64_t distance, int64_t buckets, int64_t max_distance, bool unidirectional)
{
    int64_t first = 0, n = unidirectional ? buckets : buckets / 2,
            far = distance < 0 ? -distance : distance;
    if (unidirectional)
        far = distance < 0 ? -distance : 0;
    else if (distance > 0)
        first = n;
    int64_t exact = n / 2;
    if (far < exact) return (int32_t)(first + far);
    float steps = logf((float)far / (float)exact) /
                  (float)log((double)max_distance / (double)exact) * (float)(n - exact);
    int64_t bucket = exact + (int64_t)steps;
    return (int32_t)(first + (bucket < n ? bucket : n - 1));
}

typedef struct {
    int64_t buckets, max_distance, zero, unidirectional;
} ruler;

static void buckets_of(void *out, const void *user, int64_t from, int64_t n)
{
    const ruler *r = user;
    int32_t *y = out;
    for (int64_t i = 0; i < n; i++)
        y[i] = fv_rel_bucket(from + i - r->zero, r->buckets, r->max_distance,
                             r->unidirectional != 0);
}

fv_tensor *fv_rel_bias_fwd(fv_ctx *c, const fv_rel_bias *l, int64_t *zero)
{
    if (!l->table) return NULL;
    ruler r = {l->table->shape.d[0], l->max_distance, l->max_distance, l->unidirectional};
    fv_tensor *ids = fv__table(c, FV_I32,
                               FV_SHAPE(l->unidirectional ? l->max_distance + 1
                                                          : 2 * l->max_distance + 1),
                               buckets_of, &r, sizeof r);
    *zero = r.zero;
    return fv_transpose(c, fv_gather(c, l->table, ids, -1));
}

/* 2^(-8/n), 2^(-16/n), .. for n heads; where n is no power of two, the rest interleaves those of
 * twice as many. */
float fv_alibi_slope(int64_t head, int64_t n_head)
{
    int64_t power = 1;
    while (2 * power <= n_head) power *= 2;
    double at = head < power ? (double)(head + 1) / (double)power
                             : (double)(2 * (head - power) + 1) / (double)(2 * power);
    return (float)exp2(-8 * at);
}

typedef struct {
    int64_t n_head, len, zero;
} slopes;

static void slopes_of(void *out, const void *user, int64_t from, int64_t n)
{
    const slopes *s = user;
    float *y = out;
    for (int64_t i = from; i < from + n; i++) {
        int64_t distance = i % s->len - s->zero;
        *y++ = -fv_alibi_slope(i / s->len, s->n_head) *
               (float)(distance < 0 ? -distance : distance);
    }
}

fv_tensor *fv_alibi(fv_ctx *c, fv_dtype t, int64_t n_head, int64_t len, bool causal, int64_t *zero)
{
    slopes s = {n_head, causal ? len : 2 * len - 1, len - 1};
    *zero = s.zero;
    fv_tensor *x = fv__table(c, FV_F32, FV_SHAPE(n_head, s.len), slopes_of, &s, sizeof s);
    return t == FV_F32 ? x : fv_cast(c, x, t);
}
