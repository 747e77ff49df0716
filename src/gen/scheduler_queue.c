/* scheduler_queue.c - requests of a scheduler: taken from any thread, cancelled, and given a row in
 * fair order.
 *
 * Two threads meet here. Any thread may submit, cancel, wait and ask for statistics, under
 * s->lock; one thread steps the scheduler (scheduler.c) and alone owns the rows. The lock
 * protects the two lists (waiting, live), ids, counters and the cancelled flags; it is never
 * held during a forward pass or a callback.
 *
 * A sequence is one allocation that the submitting thread makes, with copies of everything the
 * request points to: callers may free their lists as soon as submit returns. */
#include <errno.h>
#include <time.h>

#include "fovea/author/gen.h"
#include "gen/scheduler.h"

/* ---- checks, in the thread that asks ---- */

/* least is -1 for ids that may be absent. */
static bool ids_within(const int32_t *ids, int64_t n, int32_t least, int64_t V)
{
    for (int64_t i = 0; i < n; i++)
        if (ids[i] < least || ids[i] >= V) return false;
    return true;
}

/* capacity is in tokens of one sequence, prompt and answer together, as the KV cache was
 * allocated. */
static fv_status check_lengths(const fv_scheduler *s, const fv_sched_request *r, fv_err *e)
{
    const fv_gen_opt *o = r->opt;
    if (r->n < 1) return fv_fail(e, FV_EARG, "scheduler: an empty prompt");
    if (r->n >= s->opt.capacity)
        return fv_fail(e, FV_EARG, "scheduler: the prompt has %lld tokens, a sequence holds %lld",
                       (long long)r->n, (long long)s->opt.capacity);
    if (!o->max_new_tokens && r->n >= o->max_length)
        return fv_fail(e, FV_EARG, "scheduler: the prompt has %lld tokens, max_length is %lld",
                       (long long)r->n, (long long)o->max_length);
    return FV_OK;
}

static fv_status check_lists(const fv_scheduler *s, const fv_sched_request *r, fv_err *e)
{
    if (r->top < 0 || r->top > FV_SCHED_TOP || r->top > s->V)
        return fv_fail(e, FV_EARG, "scheduler: %d likeliest tokens, at most %d are told", r->top,
                       FV_SCHED_TOP);
    for (int i = 0; i < r->n_bias; i++)
        if (r->bias[i].token < 0 || r->bias[i].token >= s->V)
            return fv_fail(e, FV_EARG, "scheduler: a bias for id %d, the vocabulary has %lld",
                           r->bias[i].token, (long long)s->V);
    if (!ids_within(r->layers, r->n_layers, 0, s->stats.layers) ||
        !ids_within(r->heads, r->n_heads, 0, s->stats.heads))
        return fv_fail(e, FV_EARG,
                       "scheduler: attention of a layer or head that is not there: the model has "
                       "%lld layers of %lld heads",
                       (long long)s->stats.layers, (long long)s->stats.heads);
    fv_status st = fv__sched_ranks_check(s, r, e);
    if (st) return st;
    if (r->n_layers && fv_model_dtype(s->model) == FV_F64)
        return fv_fail(e, FV_EDTYPE, "scheduler: attention weights come as f32, the model is f64");
    return FV_OK;
}

/* Everything that would fail later is refused here. */
static fv_status check_request(const fv_scheduler *s, const fv_sched_request *r, fv_err *e)
{
    const fv_gen_opt *o = r->opt;
    const int32_t special[] = {o->eos, o->forced_bos, o->forced_eos};
    if (o->num_beams > 1 || o->num_return_sequences > 1)
        return fv_fail(e, FV_EARG, "scheduler: a request takes one beam and one sequence");
    fv_status st = check_lengths(s, r, e);
    if (!st) st = check_lists(s, r, e);
    if (st) return st;
    if (r->model < 0 || r->model >= s->n_models)
        return fv_fail(e, FV_EARG, "scheduler: model %d of %d", r->model, s->n_models);
    if (!ids_within(r->prompt, r->n, 0, s->V) || !ids_within(special, 3, -1, s->V) ||
        !ids_within(o->ends, o->n_ends, 0, s->V) || !ids_within(o->banned, o->n_banned, 0, s->V))
        return fv_fail(e, FV_EARG, "scheduler: an id is outside the vocabulary of %lld",
                       (long long)s->V);
    return FV_OK;
}

/* ---- submitting ---- */

/* A copy of n ids behind *at, which moves on. */
static const int32_t *copy_ids(int32_t **at, const int32_t *ids, int64_t n)
{
    int32_t *copy = *at;
    if (n > 0) memcpy(copy, ids, (size_t)n * sizeof *copy);
    *at += n;
    return copy;
}

/* One allocation: the sequence, its tokens up to its greatest length, and copies of the lists. */
static sequence *new_sequence(const fv_scheduler *s, const fv_sched_request *r)
{
    const fv_gen_opt *o = r->opt;
    /* The end is fixed at once, so that the budget can be computed before a row is given. */
    int64_t end = o->max_new_tokens ? r->n + o->max_new_tokens : o->max_length;
    if (end > s->opt.capacity) end = s->opt.capacity;
    size_t ids = (size_t)(end + o->n_ends + o->n_banned + o->n_bad_words + r->n_layers +
                          r->n_heads) *
                 sizeof(int32_t);
    size_t bias = (size_t)r->n_bias * sizeof *r->bias;
    sequence *q = fv__alloc(&s->env, sizeof *q + ids + bias);
    if (!q) return NULL;
    *q = (sequence){.ask = *r, .opt = *o, .n = r->n, .prompt = r->n, .end = end};
    q->bytes = sizeof *q + ids + bias;
    int32_t *at = q->ids = (int32_t *)(q + 1);
    memcpy(q->ids, r->prompt, (size_t)r->n * sizeof *r->prompt);
    at += end;
    q->opt.ends = copy_ids(&at, o->ends, o->n_ends);
    q->opt.banned = copy_ids(&at, o->banned, o->n_banned);
    q->opt.bad_words = copy_ids(&at, o->bad_words, o->n_bad_words);
    q->ask.layers = copy_ids(&at, r->layers, r->n_layers);
    q->ask.heads = copy_ids(&at, r->heads, r->n_heads);
    /* Behind int32 lists; fv_logit_bias needs the alignment of an int32 and no more. */
    q->ask.bias = (fv_logit_bias *)at;
    if (bias) memcpy(at, r->bias, bias);
    q->number = o->numbers ? o->numbers[0] : 0;
    /* Memory of the caller, who may be gone when the sequence runs: the number is copied above,
     * and the request has a callback of its own. */
    q->opt.numbers = NULL;
    q->opt.token = NULL;
    q->ask.opt = &q->opt;
    q->ask.prompt = q->ids;
    return q;
}

/* The id is given and the sequence queued under one lock: no callback can run before *id is set. */
fv_status fv_scheduler_submit(fv_scheduler *s, uint64_t *id, const fv_sched_request *r, fv_err *e)
{
    fv_status st = check_request(s, r, e);
    if (st) return st;
    sequence *q = new_sequence(s, r);
    if (!q) return fv_fail(e, FV_ENOMEM, "scheduler: out of memory for a request");
    pthread_mutex_lock(&s->lock);
    bool full = s->waiting >= s->opt.waiting;
    if (!full) {
        *id = q->id = ++s->last_id;
        q->held = s->ranks && !s->follows;
        if (s->last) s->last->next_waiting = q;
        if (!s->first) s->first = q;
        s->last = q;
        q->next_live = s->live;
        s->live = q;
        s->waiting++;
        s->n_live++;
        pthread_cond_broadcast(&s->work);
    }
    pthread_mutex_unlock(&s->lock);
    /* Outside of the lock: freeing may be slow, and nobody else knows the sequence. */
    if (!full) return FV_OK;
    fv__free(&s->env, q, q->bytes);
    return fv_fail(e, FV_ESTATE, "scheduler: %lld requests are waiting, which is the most",
                   (long long)s->opt.waiting);
}

/* Only marks: the row belongs to the stepping thread, which ends the sequence at its next step. */
fv_status fv_scheduler_cancel(fv_scheduler *s, uint64_t id, fv_err *e)
{
    bool found = false;
    pthread_mutex_lock(&s->lock);
    for (sequence *q = s->live; q && !found; q = q->next_live)
        if (q->id == id && !q->done) {
            found = q->cancel_asked = true;
            q->cancelled = !s->ranks || s->follows || q->cancelled;
        }
    pthread_mutex_unlock(&s->lock);
    if (found) return FV_OK;
    return fv_fail(e, FV_EARG, "scheduler: no sequence %llu is in flight", (unsigned long long)id);
}

bool fv_scheduler_wait(fv_scheduler *s, int64_t milliseconds)
{
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += (time_t)(milliseconds / 1000);
    until.tv_nsec += (long)(milliseconds % 1000) * 1000000;
    if (until.tv_nsec >= 1000000000) until.tv_sec++, until.tv_nsec -= 1000000000;
    pthread_mutex_lock(&s->lock);
    int rc = 0;
    /* In a loop, as condition variables may wake without cause; the clock is the monotonic one,
     * which no change of the date moves. */
    while (!s->live && !rc) rc = pthread_cond_timedwait(&s->work, &s->lock, &until);
    bool any = s->live != NULL;
    pthread_mutex_unlock(&s->lock);
    return any;
}

fv_sched_stats fv_scheduler_stats(fv_scheduler *s)
{
    pthread_mutex_lock(&s->lock);
    fv_sched_stats now = s->stats;
    now.waiting = s->waiting;
    /* Live sequences are waiting or have a row. */
    now.running = s->n_live - s->waiting;
    pthread_mutex_unlock(&s->lock);
    now.rows = s->opt.rows;
    now.capacity = s->opt.capacity;
    return now;
}

/* ---- the next one, on the stepping thread ---- */

bool fv__sched_cancelled(fv_scheduler *s, const sequence *q)
{
    pthread_mutex_lock(&s->lock);
    bool yes = q->cancelled;
    pthread_mutex_unlock(&s->lock);
    return yes;
}

/* One lock for all: at most steps nobody is. */
bool fv__sched_any_cancelled(fv_scheduler *s)
{
    bool any = false;
    pthread_mutex_lock(&s->lock);
    for (int64_t p = 0; p < s->decoding + s->reading && !any; p++) any = s->row[p]->cancelled;
    pthread_mutex_unlock(&s->lock);
    return any;
}

static int64_t rows_of(const fv_scheduler *s, uint64_t owner)
{
    int64_t n = 0;
    for (int64_t p = 0; p < s->decoding + s->reading; p++) n += s->row[p]->ask.owner == owner;
    return n;
}

static int64_t bytes_of(const fv_scheduler *s, int64_t tokens)
{
    return s->session->pages.data ? fv__session_row_bytes(s->session, tokens)
                                  : tokens * s->token_bytes;
}

/* Whether all that the running sequences and this one may come to fits into the budget.  Nobody
 * is taken in who might have to be put out again: that would compute his tokens twice.  Tokens that
 * a row shares belong to the budget of prefixes.  Where a row moves by copying, the greatest may be
 * there twice. */
static bool fits(const fv_scheduler *s, const sequence *q)
{
    int64_t each = bytes_of(s, q->end), all = each, greatest = each;
    for (int64_t p = 0; s->budget && p < s->decoding + s->reading; p++) {
        each = bytes_of(s, s->row[p]->end - fv__session_shared(s->session, p));
        all += each;
        greatest = each > greatest ? each : greatest;
    }
    if (s->session->pages.data) all += greatest;
    return !s->budget || q->cancelled || all <= s->budget;
}

/* Greater priority first, then the owner with fewer rows, then the order of arrival.  Cancelled
 * ones come at once: they take no row.  One that does not fit holds those behind it up, since a
 * long one would otherwise wait for as long as short ones come. */
sequence *fv__sched_next(fv_scheduler *s, int64_t most, int model)
{
    sequence *best = NULL, *before_best = NULL, *before = NULL;
    int64_t fewest = 0, rows = -1;
    uint64_t owner = 0; /* whose rows these are */
    pthread_mutex_lock(&s->lock);
    for (sequence *q = s->first; q; before = q, q = q->next_waiting) {
        if (q->held) continue; /* other ranks do not know it yet */
        if (best && !q->cancelled && q->ask.priority < best->ask.priority) continue;
        bool greater = !best || q->cancelled || q->ask.priority > best->ask.priority;
        /* Counted anew, but for neighbours of one owner: rows are few, and a counter for each
         * owner would have to be kept right on every path. */
        if (rows < 0 || q->ask.owner != owner) rows = rows_of(s, owner = q->ask.owner);
        if (!greater && rows >= fewest) continue;
        best = q;
        before_best = before;
        fewest = rows;
        /* A cancelled one is taken out at once, so that its owner hears of it. */
        if (q->cancelled) break;
    }
    if (best && !fits(s, best)) best = NULL;
    bool alone = best && best->ask.n_layers && best->ask.prompt_rows;
    bool joins = best && best->prompt <= most && best->ask.model == model && !alone;
    if (most && !joins) best = NULL;
    if (best) {
        if (before_best) before_best->next_waiting = best->next_waiting;
        if (s->first == best) s->first = best->next_waiting;
        if (s->last == best) s->last = before_best;
        s->waiting--;
    }
    pthread_mutex_unlock(&s->lock);
    return best;
}
