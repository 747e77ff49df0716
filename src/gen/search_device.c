/* search_device.c - greedy search and sampling on a device that chooses tokens by itself.
 *
 * The host starts runs of steps (sample_device.c) and reads the tokens afterwards.  A run is a
 * trade: long ones hide the round trip, and a sequence that ends within one keeps decoding to its
 * end for nothing.  Runs grow from 1 to 8 steps, and the batch is compacted once half of it has
 * ended, since that costs a copy of the KV cache and a new capture of the step. */
#include "base/base.h"
#include "gen/search.h"
#include "model/session.h"
#include "fovea/author/session.h"

bool fv__device_samples(const search *s, bool encoder)
{
    const fv_gen_opt *o = s->o;
    bool rules = fv__looks_back(o) || o->n_begin_banned > 0 || o->typical_p < 1;
    return s->K == 1 && s->depth == 1 && !rules && !o->renormalize_logits &&
           (encoder || o->forced_bos < 0) && fv__sampler_supported(s->session, s->ctx->dtype);
}

uint8_t *fv__search_token_flags(const search *s)
{
    const fv_gen_opt *o = s->o;
    uint8_t *token_flags = fv__alloc(s->env, (size_t)s->V);
    if (!token_flags) return NULL;
    memset(token_flags, 0, (size_t)s->V);
    for (int i = 0; i < o->n_banned; i++) token_flags[o->banned[i]] |= FV_TOKEN_BANNED;
    for (int i = 0; i < o->n_ends; i++) token_flags[o->ends[i]] |= FV_TOKEN_EOS;
    if (o->eos >= 0) token_flags[o->eos] |= FV_TOKEN_EOS;
    return token_flags;
}

int32_t fv__search_min_new(const search *s, int64_t i)
{
    int64_t before_end = s->o->min_length - s->prompt[i];
    return (int32_t)(before_end > s->o->min_new_tokens ? before_end : s->o->min_new_tokens);
}

int32_t fv__search_max_new(const search *s, int64_t i)
{
    return (int32_t)(s->end[i] - 1 - s->prompt[i]);
}

/* Uploads number and limits of each row, anew whenever rows have moved. */
static bool begin_sampler(search *s, const uint8_t *token_flags, int64_t *number, int32_t *min_new,
                          int32_t *max_new)
{
    const fv_gen_opt *o = s->o;
    for (int64_t p = 0; p < s->live; p++) {
        int64_t i = s->at[p];
        number[p] = fv__search_number(s, i);
        min_new[p] = fv__search_min_new(s, i);
        max_new[p] = fv__search_max_new(s, i);
    }
    fv_sample how = {.V = s->V,
                     .forced_first = o->forced_bos,
                     .forced_last = o->forced_eos,
                     .pad = fv__search_pad(s),
                     .do_sample = o->do_sample,
                     .temperature = o->temperature,
                     .top_p = o->top_p,
                     .min_p = o->min_p,
                     .top_k = o->top_k,
                     .seed = (uint64_t)o->seed};
    return fv__sampler_begin(s->ctx, s->session,
                             &(fv_sampler){.how = how,
                                           .token_flags = token_flags,
                                           .min_new = min_new,
                                           .max_new = max_new,
                                           .number = number,
                                           .made = (int32_t)s->made});
}

/* Steps after which every sequence that has not ended is as long as it may become. */
static int64_t steps_left(const search *s)
{
    int64_t most = 1;
    for (int64_t p = 0; p < s->live; p++) {
        int64_t i = s->at[p], left = s->end[i] - s->prompt[i] - s->made;
        if (!s->over[i] && left > most) most = left;
    }
    return most;
}

/* Tokens behind a sequence's end, up to the end of its run, are dropped. */
fv_status fv__sample_loop(search *s, fv_err *e)
{
    enum { RUN_MAX = 8 };
    uint8_t *token_flags = fv__search_token_flags(s);
    size_t rows = (size_t)s->live,
           bytes = rows * (sizeof(int64_t) + (2 + 2 * RUN_MAX) * sizeof(int32_t));
    int64_t *number = fv__alloc(s->env, bytes);
    bool ok = token_flags && number, fresh = true;
    if (!ok) fv_raise(s->ctx, FV_ENOMEM, "generate: out of memory");
    int32_t *min_new = (int32_t *)(number + rows), *max_new = min_new + rows,
            *token = max_new + rows;
    float *score_of = (float *)(token + RUN_MAX * rows);
    for (int64_t most = 1; ok && s->live; most = most < RUN_MAX ? 2 * most : RUN_MAX) {
        int64_t open = 0, left = steps_left(s), run = most < left ? most : left;
        if (fresh) ok = begin_sampler(s, token_flags, number, min_new, max_new);
        ok = ok &&
             fv__sampler_run(s->ctx, s->session, fresh ? s->token : NULL, run, token, score_of);
        for (int64_t at = 0; ok && at < run * s->live; at++) {
            int64_t p = at % s->live;
            if (!s->over[s->at[p]])
                fv__search_append(s, p, (fv_candidate){score_of[at], token[at]});
            if (p == s->live - 1) s->made++;
        }
        for (int64_t p = 0; p < s->live; p++) open += !s->over[s->at[p]];
        fresh = 2 * open <= s->live; /* half have ended: compact the batch */
        if (ok && fresh) fv__search_retire(s);
        if (ok && fresh && s->live) fv_session_select(s->ctx, s->session, s->from, s->live);
        ok = ok && !fv__failed(s->ctx);
    }
    fv__free(s->env, token_flags, (size_t)s->V);
    fv__free(s->env, number, bytes);
    return ok ? FV_OK : fv__search_failed(s, e);
}
