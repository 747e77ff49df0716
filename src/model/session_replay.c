/* session_replay.c - decode steps: one token more in every row, captured once and replayed.
 *
 * A graph holds addresses and sizes, so it is for one number of rows, one model and one use of the
 * logits.  Sequences of a scheduler come and go, and the number of rows with them: a session keeps
 * the graphs of the last FV_STEP_GRAPHS such steps, so that going back to a number of rows is a
 * replay and no new capture.  With one graph, a batch that changes at every step would never be
 * replayed at all. */
#include <string.h>

#include "base/base.h"
#include "model/session.h"
#include "fovea/author/family.h"
#include "fovea/author/parallel.h"

typedef struct replay_args {
    fv_session *s;
    fv_after_fn *after;
    void *user;
} replay_args;

/* The part of a decode step that is captured: the family's step on the session's own inputs. */
static void run_step(fv_ctx *c, void *user)
{
    const replay_args *a = user;
    fv_session *s = a->s;
    fv_step_inputs *h = &s->step_inputs;
    h->active = true;
    fv_tensor positions = h->pos;
    positions.shape = h->ids.shape;
    s->pos = &h->pos;
    s->lens = &h->lens;
    s->positions = &positions;
    fv_tensor *y = fv_model_family(s->model)->step(c, fv_model_self(s->model), s, &h->ids);
    s->pos = s->lens = s->positions = NULL;
    h->active = false;
    if (y) a->after(c, a->user, y);
}

/* Uploads ids, positions and lengths to where the captured step reads them. */
static bool arrange(fv_ctx *c, fv_session *s, const int32_t *ids)
{
    fv_step_inputs *h = &s->step_inputs;
    void *host = s->host;
    int64_t n = s->rows;
    if (!fv__session_reserve(c, s, &h->all, FV_I32, FV_SHAPE(4, s->all), 0)) return false;
    if (!fv__grow(&s->env, &host, &s->host_bytes, (size_t)(4 * n) * sizeof(int32_t)))
        return fv_raise(c, FV_ENOMEM, "session: out of memory") != NULL;
    int32_t *at = s->host = host, *data = h->all.t.data;
    h->ids = (fv_tensor){.data = data, .shape = FV_SHAPE(n, 1), .dtype = FV_I32};
    h->pos = (fv_tensor){.data = data + n, .shape = FV_SHAPE(n), .dtype = FV_I32};
    h->lens = (fv_tensor){.data = data + 2 * n, .shape = FV_SHAPE(n), .dtype = FV_I32};
    h->shifted = (fv_tensor){.data = data + 3 * n, .shape = FV_SHAPE(n, 1), .dtype = FV_I32};
    for (int64_t i = 0; i < n; i++) {
        at[i] = ids[i];
        int32_t len = s->len[s->first + i];
        at[n + i] = len;
        at[2 * n + i] = len + 1;
        at[3 * n + i] = len + h->from;
    }
    s->dev->backend->upload(&c->stream, data, at, (size_t)(4 * n) * sizeof *at);
    return true;
}

/* The graph of steps like this one; where there is none, the one that was longest not used, under a
 * new key, so that it is captured again.  Steps are compared member by member: a hash of them that
 * collides would replay kernels that read the inputs of another number of rows. */
static fv_step_graph *graph_of(fv_session *s, uint64_t kind)
{
    fv_step_graph *found = &s->graphs[0];
    fv_step_kind of = {.version = s->version,
                       .rows = (uint64_t)s->rows,
                       .first = (uint64_t)s->first,
                       .model = (uintptr_t)s->model,
                       .watched = s->watched,
                       .kind = kind};
    uint64_t now = ++s->replays;
    for (int i = 0; i < FV_STEP_GRAPHS; i++) {
        fv_step_graph *g = &s->graphs[i];
        if (g->used && !memcmp(&g->of, &of, sizeof of)) {
            g->used = now;
            return g;
        }
        if (g->used < found->used) found = g;
    }
    found->of = of;
    found->key = found->used = now;
    return found;
}

bool fv__session_replay(fv_ctx *c, fv_session *s, const int32_t *ids, uint64_t kind,
                        fv_after_fn *after, void *user)
{
    int64_t most = 0;
    if (fv__failed(c) ||
        (ids && (!fv__session_begin_rows(c, s) || !fv__session_fits(c, s, 1, &most))))
        return false;
    fv__session_grow(c, s, most);
    for (int64_t i = s->first; ids && i < s->first + s->rows; i++) /* empty ones pad the batch */
        if (s->len[i] && !fv__session_hold(c, s, i, s->len[i] + 1)) return false;
    if (ids && !arrange(c, s, ids)) return false;
    replay_args a = {s, after, user};
    fv_step_graph *g = graph_of(s, kind);
    if (fv_model_ranks(s->model)) { /* talks through the host, which no graph can hold */
        fv_ctx_reset(c, 0);
        run_step(c, &a);
    } else {
        fv__graph_run(c, &g->graph, g->key, 0, run_step, &a);
    }
    if (fv__failed(c)) return false;
    for (int64_t i = 0; i < s->rows; i++) s->len[s->first + i]++;
    s->processed += s->rows;
    return true;
}

void fv__session_replay_free(fv_session *s)
{
    for (int i = 0; i < FV_STEP_GRAPHS; i++) fv__graph_drop(&s->graphs[i].graph);
}
