/* search_write.c - greedy search and sampling on a device that chooses by itself. */
#include "base/base.h"
#include "gen/search.h"
#include "model/session.h"

bool fv__device_chooses(const search *s, bool encoder)
{
    const fv_gen_opt *o = s->o;
    bool rules = o->repetition_penalty != 1 || o->no_repeat_ngram_size > 0 || o->n_bad_words > 0 ||
                 o->typical_p < 1;
    return s->K == 1 && !rules && !o->renormalize_logits && (encoder || o->forced_bos < 0) &&
           fv__write_can(s->session, s->ctx->dtype);
}

uint8_t *fv__search_kinds(const search *s)
{
    const fv_gen_opt *o = s->o;
    uint8_t *kinds = fv__alloc(s->env, (size_t)s->V);
    if (!kinds) return NULL;
    memset(kinds, 0, (size_t)s->V);
    for (int i = 0; i < o->n_banned; i++) kinds[o->banned[i]] |= FV_TOKEN_NEVER;
    for (int i = 0; i < o->n_ends; i++) kinds[o->ends[i]] |= FV_TOKEN_ENDS;
    if (o->eos >= 0) kinds[o->eos] |= FV_TOKEN_ENDS;
    return kinds;
}

int32_t fv__search_least(const search *s, int64_t i)
{
    int64_t before_end = s->o->min_length - s->prompt[i];
    return (int32_t)(before_end > s->o->min_new_tokens ? before_end : s->o->min_new_tokens);
}

int32_t fv__search_last(const search *s, int64_t i)
{
    return (int32_t)(s->end[i] - 1 - s->prompt[i]);
}

/* Tells the device about the rows there are now. */
static bool begin_writing(search *s, const uint8_t *kinds, int64_t *number, int32_t *least,
                          int32_t *last)
{
    const fv_gen_opt *o = s->o;
    for (int64_t p = 0; p < s->live; p++) {
        int64_t i = s->at[p];
        number[p] = fv__search_number(s, i);
        least[p] = fv__search_least(s, i);
        last[p] = fv__search_last(s, i);
    }
    fv_choose how = {.V = s->V,
                     .first_is = o->forced_bos,
                     .last_is = o->forced_eos,
                     .pad = fv__search_pad(s),
                     .draw = o->do_sample,
                     .temperature = o->temperature,
                     .top_p = o->top_p,
                     .min_p = o->min_p,
                     .top_k = o->top_k,
                     .seed = (uint64_t)o->seed};
    return fv__write_begin(s->ctx, s->session,
                           &(fv_writer){.how = how,
                                        .kinds = kinds,
                                        .least = least,
                                        .last = last,
                                        .number = number,
                                        .made = (int32_t)s->made});
}

/* Runs of steps, short ones first: a sequence that has ended is noticed a few steps late, and goes
 * on unheard till then. */
fv_status fv__write_loop(search *s, fv_err *e)
{
    enum { RUN_MOST = 8 };
    uint8_t *kinds = fv__search_kinds(s);
    size_t rows = (size_t)s->live,
           bytes = rows * (sizeof(int64_t) + (2 + 2 * RUN_MOST) * sizeof(int32_t));
    int64_t *number = fv__alloc(s->env, bytes);
    bool ok = kinds && number, fresh = true;
    if (!ok) fv_raise(s->ctx, FV_ENOMEM, "generate: out of memory");
    int32_t *least = (int32_t *)(number + rows), *last = least + rows, *token = last + rows;
    float *score_of = (float *)(token + RUN_MOST * rows);
    for (int64_t run = 1; ok && s->live; run = run < RUN_MOST ? 2 * run : RUN_MOST) {
        int64_t open = 0;
        if (fresh) ok = begin_writing(s, kinds, number, least, last);
        ok = ok && fv__write_run(s->ctx, s->session, fresh ? s->token : NULL, run, token, score_of);
        for (int64_t at = 0; ok && at < run * s->live; at++) {
            int64_t p = at % s->live;
            if (!s->over[s->at[p]]) fv__search_take(s, p, (fv_pick){score_of[at], token[at]});
            if (p == s->live - 1) s->made++;
        }
        for (int64_t p = 0; p < s->live; p++) open += !s->over[s->at[p]];
        fresh = 2 * open <= s->live; /* then it pays to let those leave that are done */
        if (ok && fresh) fv__search_retire(s);
        if (ok && fresh && s->live) fv_session_select(s->ctx, s->session, s->from, s->live);
        ok = ok && !fv__failed(s->ctx);
    }
    fv__free(s->env, kinds, (size_t)s->V);
    fv__free(s->env, number, bytes);
    return ok ? FV_OK : fv__search_failed(s, e);
}
