/* scheduler_attention.c - exact attention weights beside the tokens they chose.
 *
 * A tap sees the attention of each layer of a step.  For every row whose request wants that layer
 * it has the device recompute the weights of the heads asked for, from queries, keys and the
 * log-sum-exp that the operator keeps, into memory of the scheduler's own; after the step they are
 * read in one piece.  So asking costs the rows asked for, the sequences beside are not touched, and
 * no step waits in its middle: a GPU captures the maps with the step and replays both, as long as
 * the same rows want the same. */
#include "gen/scheduler.h"
#include "ops/attention.h"

static bool reads_prompt(const fv_scheduler *s) { return s->tap.first == s->decoding; }

/* Rows of queries that are wanted of the sequence in row b of the step: all of a prompt, else its
 * last. */
static int64_t queries_of(const fv_scheduler *s, const sequence *q)
{
    return reads_prompt(s) && q->ask.prompt_rows ? s->tap.queries : 1;
}

static int64_t floats_of(const fv_scheduler *s, const sequence *q)
{
    return (int64_t)q->ask.n_layers * q->ask.n_heads * queries_of(s, q) * s->tap.cols;
}

/* The weights of the sequence in row b of the step begin behind those of the rows before it. */
static int64_t start_of(const fv_scheduler *s, int64_t b)
{
    int64_t at = 0;
    for (int64_t i = 0; i < b; i++) at += floats_of(s, s->row[s->tap.first + i]);
    return at;
}

static void see(void *user, fv_ctx *c, const char *site, const char *name, const void *what)
{
    fv_scheduler *s = user;
    fv_sched_tap *t = &s->tap;
    (void)name;
    if (strcmp(site, "attention") || fv_attn_view_role(what) == FV_ATTN_CROSS) return;
    int64_t layer = t->layer++;
    fv_shape shape = fv_attn_view_shape(what);
    float *at = t->device;
    for (int64_t b = 0; b < t->rows; b++) {
        const sequence *q = s->row[t->first + b];
        int64_t queries = queries_of(s, q), map = queries * t->cols;
        for (int l = 0; l < q->ask.n_layers; l++)
            for (int h = 0; h < q->ask.n_heads; h++, at += map)
                if (q->ask.layers[l] == layer && shape.d[3] == t->cols)
                    fv__attn_view_write(c, what, at, b, q->ask.heads[h], shape.d[2] - queries,
                                        shape.d[2]);
    }
}

static uint64_t mix(uint64_t h, uint64_t x) { return (h ^ x) * 0x9E3779B97F4A7C15u + (h >> 31); }

/* Who wants what; a change makes a captured step worthless. */
static uint64_t wanted(const fv_scheduler *s)
{
    uint64_t h = 0;
    for (int64_t b = 0; b < s->tap.rows; b++) {
        const sequence *q = s->row[s->tap.first + b];
        if (q->ask.n_layers) h = mix(mix(h, (uint64_t)b + 1), q->id);
    }
    return h;
}

bool fv__sched_watch(fv_scheduler *s, int64_t first, int64_t rows, int64_t T)
{
    fv_sched_tap *t = &s->tap;
    const fv_backend *backend = s->session->dev->backend;
    t->layer = 0;
    t->first = first;
    t->rows = rows;
    t->queries = T;
    t->cols = s->session->allocated;
    uint64_t now = wanted(s);
    if (now != t->wanted && !reads_prompt(s)) s->session->version++;
    if (!reads_prompt(s)) t->wanted = now;
    size_t bytes = (size_t)start_of(s, rows) * sizeof(float);
    fv_ctx_set_tap(s->ctx, bytes ? see : NULL, s);
    if (bytes > t->device_bytes) {
        if (t->device) backend->release(s->session->dev, t->device, t->device_bytes);
        t->device = backend->alloc(s->session->dev, bytes);
        t->device_bytes = t->device ? bytes : 0;
        s->session->version++;
    }
    if (bytes <= t->device_bytes) return true;
    fv_raise(s->ctx, FV_ENOMEM, "scheduler: out of memory for %zu bytes of attention weights",
             bytes);
    return false;
}

bool fv__sched_collect(fv_scheduler *s)
{
    fv_sched_tap *t = &s->tap;
    size_t bytes = (size_t)start_of(s, t->rows) * sizeof(float);
    void *host = t->host;
    fv_ctx_set_tap(s->ctx, NULL, NULL);
    if (!bytes) return true;
    if (!fv__grow(&s->env, &host, &t->host_bytes, bytes)) {
        fv_raise(s->ctx, FV_ENOMEM, "scheduler: out of memory for attention weights");
        return false;
    }
    t->host = host;
    s->session->dev->backend->download(&s->ctx->stream, t->host, t->device, bytes);
    return !fv__failed(s->ctx);
}

/* Caches are longer than what is in them: what stands behind the last key is left out. */
const fv_sched_weights *fv__sched_weights(fv_scheduler *s, fv_sched_weights *out, int64_t b,
                                          int64_t from, int64_t n)
{
    fv_sched_tap *t = &s->tap;
    const sequence *q = s->row[t->first + b];
    int64_t maps = (int64_t)q->ask.n_layers * q->ask.n_heads, queries = queries_of(s, q);
    int64_t cols = q->cached;
    void *packed = t->packed;
    if (!maps || n < 1) return NULL;
    if (!fv__grow(&s->env, &packed, &t->packed_bytes,
                  (size_t)(maps * n * cols) * sizeof *t->packed)) {
        fv_raise(s->ctx, FV_ENOMEM, "scheduler: out of memory for attention weights");
        return NULL;
    }
    float *to = t->packed = packed;
    const float *w = t->host + start_of(s, b);
    for (int64_t m = 0; m < maps; m++)
        for (int64_t i = from; i < from + n; i++, to += cols)
            memcpy(to, w + (m * queries + i) * t->cols, (size_t)cols * sizeof *to);
    *out = (fv_sched_weights){.w = t->packed,
                              .n_layers = q->ask.n_layers,
                              .n_heads = q->ask.n_heads,
                              .first = q->cached - queries + from,
                              .rows = n,
                              .cols = cols};
    return out;
}

void fv__sched_tap_free(fv_scheduler *s)
{
    fv_sched_tap *t = &s->tap;
    if (t->device) s->session->dev->backend->release(s->session->dev, t->device, t->device_bytes);
    fv__free(&s->env, t->host, t->host_bytes);
    fv__free(&s->env, t->packed, t->packed_bytes);
    *t = (fv_sched_tap){0};
}
