/* scheduler_ranks.c - a scheduler of a model that ranks share: rank 0 is asked and tells, the
 * others make the same steps.
 *
 *     rank 0     round: what came since the last step     step ... tokens ... step ... tokens
 *     others     the same requests into their own queue   step ... tokens ... step ... tokens
 *
 * A scheduler's step depends on its requests and on the tokens that were chosen, and on nothing
 * else: no clock, no memory but by budgets that are equal.  So each rank has a whole scheduler, and
 * rank 0 sends what the others cannot know: requests (prompt, length, priority, owner) and those
 * that were cancelled, before a step; the token of each row and whether it was the last, behind it.
 * Requests that come while a step runs wait for the next round, or ranks would seat different ones.
 * Sampling, constraints and callbacks are rank 0's alone.
 *
 * Sending each operation on the KV cache instead would spare the others the queue, and add a
 * message for each of some twenty functions. */
#include "fovea/author/comm.h"
#include "fovea/author/parallel.h"
#include "gen/scheduler.h"

/* Before a step: whether there is one, and the bytes of what follows. */
typedef struct round_head {
    int64_t ends;
    uint64_t bytes;
} round_head;

/* A request, whose prompt follows; or, prompt 0, the end of sequence `id`. */
typedef struct round_item {
    uint64_t id, owner;
    int64_t prompt, end;
    int32_t priority, unused;
} round_item;

/* What the device captures or chooses it does without the other ranks. */
void fv__sched_ranks_open(fv_scheduler *s)
{
    s->ranks = fv_model_ranks(s->model);
    s->follows = fv_comm_rank(s->ranks) > 0;
    s->round.env = &s->env;
    if (s->ranks) s->beside = false;
}

fv_status fv__sched_ranks_check(const fv_scheduler *s, const fv_sched_request *r, fv_err *e)
{
    if (s->ranks && r->n_layers)
        return fv_fail(e, FV_EMISSING,
                       "scheduler: ranks share the model, and none of them has the attention of "
                       "all its heads");
    return FV_OK;
}

/* The buffer with so many bytes, for what is received. */
static fv_status reserve(fv_scheduler *s, uint64_t bytes, fv_err *e)
{
    static const char zeros[256];
    s->round.len = 0;
    while (s->round.len < bytes && !s->round.failed) {
        uint64_t left = bytes - s->round.len;
        fv__buf_add(&s->round, zeros, left < sizeof zeros ? left : sizeof zeros);
    }
    return s->round.failed ? fv_fail(e, FV_ENOMEM, "scheduler: out of memory") : FV_OK;
}

/* ---- rounds ---- */

/* Both lists under one lock: a request is never cancelled before it is known. */
static void collect(fv_scheduler *s)
{
    s->round.len = 0;
    pthread_mutex_lock(&s->lock);
    for (sequence *q = s->first; q; q = q->next_waiting) {
        if (!q->held) continue;
        round_item item = {.id = q->id, .prompt = q->prompt, .end = q->end, .owner = q->ask.owner};
        item.priority = q->ask.priority;
        fv__buf_add(&s->round, &item, sizeof item);
        fv__buf_add(&s->round, q->ids, (size_t)q->prompt * sizeof *q->ids);
        q->held = false;
    }
    for (sequence *q = s->live; q; q = q->next_live) {
        if (!q->cancel_asked || q->cancelled || q->done) continue;
        round_item item = {.id = q->id};
        fv__buf_add(&s->round, &item, sizeof item);
        q->cancelled = true;
    }
    pthread_mutex_unlock(&s->lock);
}

static fv_status send_round(fv_scheduler *s, bool ends, fv_err *e)
{
    round_head h = {.ends = ends, .bytes = s->round.len};
    fv_status st = s->round.failed ? fv_fail(e, FV_ENOMEM, "scheduler: out of memory") : FV_OK;
    if (st) fv_comm_abort(s->ranks, "out of memory");
    if (!st) st = fv_comm_broadcast(s->ranks, &h, sizeof h, 0, e);
    if (!st && h.bytes) st = fv_comm_broadcast(s->ranks, s->round.data, h.bytes, 0, e);
    return st;
}

/* Nobody will be served any more: those that run fail, those that wait end. */
static void give_up(fv_scheduler *s)
{
    pthread_mutex_lock(&s->lock);
    for (sequence *q = s->live; q; q = q->next_live) q->held = false, q->cancelled = true;
    pthread_mutex_unlock(&s->lock);
}

static bool meet(fv_scheduler *s)
{
    fv_err e = {0};
    if (!s->ranks) return true;
    collect(s);
    fv_status st = send_round(s, false, &e);
    if (!st) return true;
    fv_raise(s->ctx, st, "%s", e.text);
    give_up(s);
    return false;
}

void fv__sched_ranks_close(fv_scheduler *s)
{
    s->round.len = 0;
    if (s->ranks && !s->follows && s->locks) send_round(s, true, NULL);
    fv__buf_free(&s->round);
}

/* A step that fails here cannot go on with the others, nor they with this rank. */
void fv__sched_ranks_failed(fv_scheduler *s, const fv_err *why)
{
    if (s->ranks) fv_comm_abort(s->ranks, why->text);
}

/* ---- tokens ---- */

/* Of a row that a step has given a token: which, and whether the sequence ends with it. */
typedef struct chosen {
    int32_t token, done;
} chosen;

static bool failed(fv_scheduler *s, const fv_err *e)
{
    fv_raise(s->ctx, e->code, "%s", e->text);
    return false;
}

bool fv__sched_send_tokens(fv_scheduler *s, int64_t first, int64_t n)
{
    fv_err e = {0};
    if (!s->ranks) return true;
    s->round.len = 0;
    for (int64_t p = 0; p < n; p++) {
        const sequence *q = s->row[first + p];
        chosen c = {q->ids[q->n - 1], q->done};
        fv__buf_add(&s->round, &c, sizeof c);
    }
    if (s->round.failed) fv_fail(&e, FV_ENOMEM, "scheduler: out of memory");
    if (e.code) return failed(s, &e);
    return !fv_comm_broadcast(s->ranks, s->round.data, s->round.len, 0, &e) || failed(s, &e);
}

bool fv__sched_follow_tokens(fv_scheduler *s, int64_t first, int64_t n)
{
    fv_err e = {0};
    if (reserve(s, (uint64_t)n * sizeof(chosen), &e)) return failed(s, &e);
    if (fv_comm_broadcast(s->ranks, s->round.data, s->round.len, 0, &e)) return failed(s, &e);
    for (int64_t p = 0; p < n; p++) {
        sequence *q = s->row[first + p];
        chosen c;
        memcpy(&c, s->round.data + (size_t)p * sizeof c, sizeof c);
        q->ids[q->n++] = c.token;
        pthread_mutex_lock(&s->lock);
        q->done = c.done;
        s->stats.generated++;
        pthread_mutex_unlock(&s->lock);
    }
    return true;
}

/* ---- following ---- */

static bool nobody(void *user, const fv_sched_event *event)
{
    (void)user, (void)event;
    return true;
}

/* Ids are given in the order of requests, so they are those of rank 0. */
static fv_status take_item(fv_scheduler *s, const round_item *item, const int32_t *ids, fv_err *e)
{
    uint64_t id;
    if (!item->prompt) return fv_scheduler_cancel(s, item->id, NULL), FV_OK;
    fv_gen_opt opt = {.max_new_tokens = item->end - item->prompt, .eos = -1};
    opt.forced_bos = opt.forced_eos = -1;
    fv_sched_request r = {.prompt = ids, .n = item->prompt, .opt = &opt, .fn = nobody};
    r.unscored = true;
    r.priority = item->priority;
    r.owner = item->owner;
    fv_status st = fv_scheduler_submit(s, &id, &r, e);
    if (!st && id != item->id)
        st = fv_fail(e, FV_ESTATE, "scheduler: ranks number a request differently");
    return st;
}

static fv_status take_round(fv_scheduler *s, fv_err *e)
{
    fv_status st = FV_OK;
    for (size_t at = 0; !st && at < s->round.len;) {
        round_item item;
        memcpy(&item, s->round.data + at, sizeof item);
        at += sizeof item;
        st = take_item(s, &item, (const int32_t *)(void *)(s->round.data + at), e);
        at += (size_t)item.prompt * sizeof(int32_t);
    }
    return st;
}

bool fv__sched_meet(fv_scheduler *s, bool *ended)
{
    round_head h = {0};
    fv_err e = {0};
    *ended = false;
    if (!s->follows) return meet(s);
    fv_status st = fv_comm_broadcast(s->ranks, &h, sizeof h, 0, &e);
    *ended = !st && h.ends;
    if (*ended) return true;
    if (!st) st = reserve(s, h.bytes, &e);
    if (!st && h.bytes) st = fv_comm_broadcast(s->ranks, s->round.data, h.bytes, 0, &e);
    if (!st) st = take_round(s, &e);
    return !st || failed(s, &e);
}
