/* score_cache.c - a continuous cache beside a language model: words come again.
 *
 *     w_i = softmax over i < t of theta h_t.h_i,   p_cache(x) = sum of w_i where x followed h_i
 *     p = (1 - weight) p_model + weight p_cache
 *
 * h are the model's last states.  Only the probability of the token that came is asked for, so
 * p_cache is the sum of a row of weights where that token followed.  States stay in host memory and
 * go to the device with each segment, which is little beside what the model does.
 *
 * Paper: Grave et al. 2017 (arXiv:1612.04426). */
#include "gen/score_cache.h"

#include <math.h>
#include <string.h>

#include "base/base.h"
#include "fovea/author/ops.h"

#define HIDDEN (-1e9f) /* added to the score of a state that is not there to be seen */

fv_status fv__score_cache_open(fv__score_cache *s, fv_device *d, fv_score_cache opt, fv_err *e)
{
    *s = (fv__score_cache){.opt = opt, .env = fv_device_env(d)};
    if (opt.size < 1) return FV_OK;
    if (opt.theta == 0) s->opt.theta = 0.3;
    if (opt.weight == 0) s->opt.weight = 0.1;
    if (!(s->opt.weight > 0 && s->opt.weight < 1 && s->opt.theta > 0))
        return fv_fail(e, FV_EARG,
                       "score: a cache with theta %g and weight %g, expected more than 0, and a "
                       "weight below 1",
                       opt.theta, opt.weight);
    return fv_ctx_new(&s->ctx, d, (fv_ctx_opt){.dtype = FV_F32}, e);
}

static void see(void *user, fv_ctx *c, const char *site, const char *name, const void *what)
{
    (void)c;
    if (!strcmp(site, "hidden") && !strcmp(name, "hidden_states"))
        ((fv__score_cache *)user)->seen = what;
}

void fv__score_cache_watch(fv__score_cache *s, fv_ctx *c)
{
    if (s->opt.size > 0) fv_ctx_set_tap(c, see, s);
}

static void release(fv__score_cache *s)
{
    fv__free(s->env, s->states, (size_t)(s->most * s->width) * sizeof *s->states);
    fv__free(s->env, s->next, (size_t)s->most * sizeof *s->next);
    s->states = NULL;
    s->next = NULL;
}

void fv__score_cache_close(fv__score_cache *s)
{
    release(s);
    fv_ctx_free(s->ctx);
}

/* Memory for the states of a pass, T of them, behind those that are held. */
static fv_status reserve(fv__score_cache *s, int64_t T, int64_t width, fv_err *e)
{
    if (s->width && s->width != width)
        return fv_fail(e, FV_ESTATE, "score: states became %lld wide", (long long)width);
    if (s->most >= s->opt.size + T) return FV_OK;
    int64_t most = s->opt.size + T;
    float *states = fv__alloc(s->env, (size_t)(most * width) * sizeof *states);
    int32_t *next = fv__alloc(s->env, (size_t)most * sizeof *next);
    if (!states || !next) {
        fv__free(s->env, states, (size_t)(most * width) * sizeof *states);
        fv__free(s->env, next, (size_t)most * sizeof *next);
        return fv_fail(e, FV_ENOMEM, "score: out of memory for a cache of %lld states",
                       (long long)s->opt.size);
    }
    if (s->n) {
        memcpy(states, s->states, (size_t)(s->n * width) * sizeof *states);
        memcpy(next, s->next, (size_t)s->n * sizeof *next);
    }
    release(s);
    s->states = states;
    s->next = next;
    s->most = most;
    s->width = width;
    return FV_OK;
}

/* hidden, same (n,all): which states a row does not see, and those that its label followed. */
static void compare(const fv__score_cache *s, float *hidden, float *same, int64_t n, int64_t all)
{
    for (int64_t r = 0; r < n; r++)
        for (int64_t i = 0; i < all; i++) {
            int64_t back = s->n + r - i; /* 1: the state just before */
            hidden[r * all + i] = back < 1 || back > s->opt.size ? HIDDEN : 0;
            same[r * all + i] = s->next[i] == s->next[s->n + r];
        }
}

/* p (n): what the cache gives the labels of the n states behind those held. */
static fv_status look_up(fv__score_cache *s, float *p, int64_t n, fv_err *e)
{
    fv_ctx *c = s->ctx;
    int64_t all = s->n + n;
    size_t bytes = (size_t)(2 * n * all) * sizeof(float);
    float *hidden = fv__alloc(s->env, bytes);
    if (!hidden) return fv_fail(e, FV_ENOMEM, "score: out of memory for %zu bytes", bytes);
    compare(s, hidden, hidden + n * all, n, all);
    fv_ctx_reset(c, 0);
    fv_tensor *keys = fv_floats(c, s->states, FV_SHAPE(all, s->width)),
              *h = fv_slice(c, keys, 0, s->n, all);
    fv_tensor *w = fv_matmul(c, h, keys, (fv_mm){.tb = true, .alpha = (float)s->opt.theta});
    w = fv_softmax(c, fv_add(c, w, fv_floats(c, hidden, FV_SHAPE(n, all))));
    w = fv_mul(c, w, fv_floats(c, hidden + n * all, FV_SHAPE(n, all)));
    fv_status st = fv_read(c, fv_sum(c, w, 1), p, n);
    if (st) st = fv_fail(e, fv_ctx_err(c)->code, "%s", fv_ctx_err(c)->text);
    fv__free(s->env, hidden, bytes);
    return st;
}

/* The newest `size` states stay. */
static void forget(fv__score_cache *s)
{
    int64_t old = s->n - s->opt.size;
    if (old <= 0) return;
    memmove(s->states, s->states + old * s->width,
            (size_t)(s->opt.size * s->width) * sizeof *s->states);
    memmove(s->next, s->next + old, (size_t)s->opt.size * sizeof *s->next);
    s->n = s->opt.size;
}

fv_status fv__score_cache_add(fv__score_cache *s, fv_ctx *c, int64_t from, int64_t n,
                              const int32_t *label, const float *loss, int64_t at, fv_err *e)
{
    if (s->opt.size < 1 || n < 1) return FV_OK;
    if (!s->seen) return fv_fail(e, FV_EMISSING, "score: this model shows no states to keep");
    int64_t width = fv_cols(s->seen), T = fv_len(s->seen) / width;
    fv_status st = reserve(s, T, width, e);
    float *p = st ? NULL : fv__alloc(s->env, (size_t)n * sizeof *p);
    if (!st && !p) st = fv_fail(e, FV_ENOMEM, "score: out of memory");
    if (st) return st;
    float *to = s->states + s->n * width;
    if (fv_read(c, s->seen, to, T * width))
        st = fv_fail(e, fv_ctx_err(c)->code, "%s", fv_ctx_err(c)->text);
    memmove(to, to + from * width, (size_t)(n * width) * sizeof *to);
    memcpy(s->next + s->n, label, (size_t)n * sizeof *label);
    if (!st) st = look_up(s, p, n, e);
    for (int64_t i = 0; !st && i < n; i++) {
        double known = exp(-(double)loss[i]), weight = s->opt.weight;
        /* nothing comes before the first */
        s->opt.out[at + i] = s->n + i ? log((1 - weight) * known + weight * (double)p[i])
                                      : -(double)loss[i];
    }
    s->n += n;
    forget(s);
    fv__free(s->env, p, (size_t)n * sizeof *p);
    return st;
}
