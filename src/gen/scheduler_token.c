/* scheduler_token.c - the next token of a sequence, and the call that tells of it. */
#include <math.h>

#include "gen/scheduler.h"

/* From here on it cannot be cancelled; its row is taken by the next retire. */
static void mark_done(fv_scheduler *s, sequence *q)
{
    pthread_mutex_lock(&s->lock);
    q->done = true;
    pthread_mutex_unlock(&s->lock);
}

void fv__sched_end(fv_scheduler *s, sequence *q, fv_finish why, const fv_err *error)
{
    mark_done(s, q);
    q->ask.fn(q->ask.user,
              &(fv_sched_event){
                  .id = q->id, .token = -1, .n = q->n - q->prompt, .finish = why, .error = error});
}

/* What a request does to the logits before transformers' processors: its own function, biases, and
 * OpenAI's penalties, which count what was generated and not the prompt. */
static void change_logits(const fv_scheduler *s, const sequence *q, float *logits)
{
    const fv_sched_request *r = &q->ask;
    if (r->logits) r->logits(r->logits_user, logits, s->V, q->ids, q->n);
    for (int i = 0; i < r->n_bias; i++) logits[r->bias[i].token] += r->bias[i].add;
    if (r->frequency_penalty == 0 && r->presence_penalty == 0) return;
    /* candidates serve as marks: 0 for a token that has had its presence penalty */
    for (int64_t i = q->prompt; i < q->n; i++) s->candidates[q->ids[i]].score = r->presence_penalty;
    for (int64_t i = q->prompt; i < q->n; i++) {
        logits[q->ids[i]] -= r->frequency_penalty + s->candidates[q->ids[i]].score;
        s->candidates[q->ids[i]].score = 0;
    }
}

/* The likeliest tokens by the model's own logits. */
static int likeliest(const fv_scheduler *s, const sequence *q, const float *logits, double all,
                     fv_scored *out)
{
    int n = q->ask.top;
    if (!n) return 0;
    fv__top_k(s->candidates, n, logits, s->V);
    for (int i = 0; i < n; i++)
        out[i] = (fv_scored){s->candidates[i].token, (float)((double)s->candidates[i].score - all)};
    return n;
}

/* The token belongs to the sequence; the event says whether it is the last. */
static void append(fv_scheduler *s, sequence *q, fv_sched_event *ev)
{
    q->ids[q->n++] = ev->token;
    if (q->n >= q->end) ev->finish = FV_FINISH_LENGTH;
    if (fv__token_is_eos(ev->token, &q->opt)) ev->finish = FV_FINISH_STOP;
    ev->n = q->n - q->prompt;
    pthread_mutex_lock(&s->lock);
    q->done = ev->finish; /* from here on it cannot be cancelled */
    s->stats.generated++;
    pthread_mutex_unlock(&s->lock);
}

void fv__sched_take_token(fv_scheduler *s, sequence *q, float *logits,
                          const fv_sched_weights *attention)
{
    fv_scored top[FV_SCHED_TOP];
    fv_prefix f = {.ids = q->ids, .n = q->n, .prompt = q->prompt, .most = q->end};
    bool scored = !q->ask.unscored || q->ask.top;
    double all = scored ? fv__log_sum_exp(logits, s->V) : 0;
    fv_sched_event ev = {.id = q->id, .top = top, .attention = attention, .cached = q->shared};
    ev.n_top = likeliest(s, q, logits, all, top);
    /* probabilities are the model's own, so what penalties and biases change is kept */
    if (scored) memcpy(s->raw, logits, (size_t)s->V * sizeof *logits);
    change_logits(s, q, logits);
    ev.token = fv__choose_token(logits, s->V, f, &q->opt, q->number, s->scratch, s->candidates);
    if (scored) ev.score = (float)((double)s->raw[ev.token] - all);
    append(s, q, &ev);
    bool more = q->ask.fn(q->ask.user, &ev);
    if (!more && !ev.finish) mark_done(s, q);
}

/* ---- events that wait until the device has its next step ---- */

void fv__sched_accept(fv_scheduler *s, sequence *q, int32_t token, int64_t b)
{
    fv_sched_told *t = &s->told[s->n_told++];
    *t = (fv_sched_told){.q = q, .ev = {.id = q->id, .token = token, .cached = q->shared}};
    fv__sched_note_weights(s, t, b);
    append(s, q, &t->ev);
    q->told_later = true;
}

/* A callback may end its sequence, of which the next step is under way then: its token is dropped.
 * Weights are still where the step before has left them. */
void fv__sched_tell(fv_scheduler *s)
{
    fv_sched_weights w;
    int64_t from = fv__sched_now();
    if (!s->n_told) return;
    for (int64_t i = 0; i < s->n_told; i++) {
        fv_sched_told *t = &s->told[i];
        sequence *q = t->q;
        t->ev.attention = t->cols ? fv__sched_weights_at(s, &w, t) : NULL;
        q->told_later = false;
        bool more = q->ask.fn(q->ask.user, &t->ev);
        if (!more && !t->ev.finish) mark_done(s, q);
        if (q->left) fv__sched_forget(s, q);
    }
    s->n_told = 0;
    fv__sched_inner(s, &s->times.tell, from);
}
