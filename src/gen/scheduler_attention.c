/* scheduler_attention.c - exact attention weights beside the tokens they chose.
 *
 * A tap sees the attention of each layer of a step.  For every row whose request wants that layer
 * it has the device recompute the weights of the heads asked for, from queries, keys and the
 * log-sum-exp that the operator keeps, into memory of the scheduler's own; after the step they are
 * read in one piece.  So asking costs the rows asked for, the sequences beside are not touched, and
 * no step waits in its middle.
 *
 *    memory:   [ row 0: layer, head, query, key | row 2: .. | .. ]     rows that want nothing: none
 *
 * A GPU captures a step and replays it.  There who wants what is a list in its memory, written
 * before each step: a layer that anybody wants has one launch of `padded` blocks, one for each
 * entry, and the captured step stays good while the layers and that number do.  Prompts that are
 * read side by side are listed alike, each with its last row; where all rows of a prompt are
 * wanted it is read alone, and its maps are written one by one. */
#include "gen/scheduler.h"
#include "ops/attention.h"

/* Rows of queries that are wanted of a sequence: all of a prompt, else its last. */
static int64_t queries_of(const fv_scheduler *s, const sequence *q)
{
    return s->tap.prompt && q->ask.prompt_rows ? s->tap.queries : 1;
}

/* Of a step whose rows begin with virtual tokens the keys are not known beforehand. */
static bool listable(const fv_scheduler *s)
{
    const fv_sched_tap *t = &s->tap;
    if (!s->choice.row || !fv__attn_lists_rows(s->session->dev, s->ctx->dtype)) return false;
    for (int64_t b = 0; t->prompt && b < t->rows; b++) {
        const sequence *q = s->row[t->first + b];
        if (q->ask.n_layers && q->ask.prompt_rows) return false;
    }
    return !t->prompt || !s->session->virtual;
}

/* Tokens of a row of the step. */
static int64_t tokens_of(const fv_sched_tap *t, int64_t b) { return t->prompt ? t->n[b] : 1; }

/* Where each row's maps lie; floats in all. */
static int64_t map_offsets(fv_scheduler *s)
{
    fv_sched_tap *t = &s->tap;
    int64_t at = 0;
    for (int64_t b = 0; b < t->rows; b++) {
        const sequence *q = s->row[t->first + b];
        t->start[b] = at;
        /* a list says how many keys a row has; a map has as many as the cache */
        t->width[b] = t->listed ? s->session->len[t->first + b] + tokens_of(t, b)
                                : s->session->allocated;
        at += (int64_t)q->ask.n_layers * q->ask.n_heads * queries_of(s, q) * t->width[b];
    }
    return t->start[t->rows] = at;
}

/* ---- lists ---- */

/* Counts the entries of each layer, in one pass over the rows, and makes of them where the layer's
 * list begins: lists of `padded` entries lie behind one another.  *key: which layers these are.
 * Returns how many. */
static int64_t list_offsets(fv_scheduler *s, uint64_t *key)
{
    fv_sched_tap *t = &s->tap;
    int64_t most = 0, layers = 0;
    *key = 0;
    memset(t->next, 0, (size_t)s->stats.layers * sizeof *t->next);
    for (int64_t b = 0; b < t->rows; b++) {
        const sequence *q = s->row[t->first + b];
        for (int l = 0; l < q->ask.n_layers; l++) {
            int64_t n = t->next[q->ask.layers[l]] += q->ask.n_heads;
            most = n > most ? n : most;
        }
    }
    t->padded = (most + 15) / 16 * 16; /* so that a number comes again */
    for (int64_t layer = 0; layer < s->stats.layers; layer++) {
        if (!t->next[layer]) continue;
        t->next[layer] = layers++ * t->padded;
        *key = (*key ^ (uint64_t)(layer + 1)) * 0x9E3779B97F4A7C15u;
    }
    return layers;
}

static void list_row(fv_sched_tap *t, const sequence *q, int64_t b)
{
    for (int l = 0; l < q->ask.n_layers; l++)
        for (int h = 0; h < q->ask.n_heads; h++)
            t->jobs[t->next[q->ask.layers[l]]++] = (fv_weights_job){
                .b = (int32_t)b,
                .head = q->ask.heads[h],
                .query = (int32_t)(tokens_of(t, b) - 1),
                .n = (int32_t)t->width[b],
                .at = (int32_t)(t->start[b] + (l * q->ask.n_heads + h) * t->width[b])};
}

/* Device memory of at least so many bytes.  Captured steps have its address and are captured again
 * where it changes: so there is some to spare. */
static bool reserve(fv_scheduler *s, void **p, size_t *have, size_t bytes)
{
    const fv_backend *backend = s->session->dev->backend;
    if (bytes <= *have) return true;
    if (*p) backend->release(s->session->dev, *p, *have);
    bytes = fv__sched_capacity(bytes);
    *p = backend->alloc(s->session->dev, bytes);
    *have = *p ? bytes : 0;
    s->session->version++;
    if (*p) return true;
    fv_raise(s->ctx, FV_ENOMEM, "scheduler: out of memory for %zu bytes of attention weights",
             bytes);
    return false;
}

/* The lists, and memory for so many bytes of weights. */
static bool write_lists(fv_scheduler *s, size_t weights)
{
    fv_sched_tap *t = &s->tap;
    uint64_t key = 0;
    void *next = t->next;
    bool ok = fv__grow(&s->env, &next, &t->next_bytes, (size_t)s->stats.layers * sizeof *t->next);
    t->next = next;
    if (!ok) fv_raise(s->ctx, FV_ENOMEM, "scheduler: out of memory for attention weights");
    size_t bytes = ok ? (size_t)(list_offsets(s, &key) * t->padded) * sizeof *t->jobs : 0;
    if (!ok || !fv__sched_choice_reserve(s, bytes, weights)) return false;
    memset(t->jobs, 0, bytes); /* entries of no keys, for which nothing is done */
    for (int64_t b = 0; b < t->rows; b++) list_row(t, s->row[t->first + b], b);
    s->session->watched = (key + (uint64_t)t->padded) | 1;
    return !fv__failed(s->ctx);
}

/* ---- the tap ---- */

static bool wants_layer(const sequence *q, int64_t layer)
{
    for (int l = 0; l < q->ask.n_layers; l++)
        if (q->ask.layers[l] == layer) return true;
    return false;
}

/* The lists of layers that are wanted lie behind one another: this one's is behind those before. */
static void see_listed(fv_scheduler *s, fv_ctx *c, int64_t layer, const fv_attn_view *view)
{
    const fv_sched_tap *t = &s->tap;
    int64_t before = 0;
    bool wanted = false;
    if (t->prompt && fv_attn_view_shape(view).d[3] != s->session->allocated) return;
    for (int64_t l = 0; l <= layer; l++) {
        wanted = false;
        for (int64_t b = 0; b < t->rows && !wanted; b++)
            wanted = wants_layer(s->row[t->first + b], l);
        before += wanted && l < layer;
    }
    if (wanted)
        fv__attn_view_write_rows(c, view, t->device, t->device_jobs + before * t->padded,
                                 t->padded);
}

static void see(void *user, fv_ctx *c, const char *site, const char *name, const void *what)
{
    fv_scheduler *s = user;
    fv_sched_tap *t = &s->tap;
    (void)name;
    if (strcmp(site, "attention") || fv_attn_view_role(what) == FV_ATTN_CROSS) return;
    int64_t layer = t->layer++;
    if (t->listed) {
        see_listed(s, c, layer, what);
        return;
    }
    fv_shape shape = fv_attn_view_shape(what);
    for (int64_t b = 0; b < t->rows; b++) {
        const sequence *q = s->row[t->first + b];
        int64_t queries = queries_of(s, q), map = queries * t->width[b];
        /* of a padded prompt the last of its own tokens */
        int64_t end = t->prompt ? t->n[b] : shape.d[2];
        float *at = t->device + t->start[b];
        for (int l = 0; l < q->ask.n_layers; l++)
            for (int h = 0; h < q->ask.n_heads; h++, at += map)
                if (q->ask.layers[l] == layer && shape.d[3] == t->width[b])
                    fv__attn_view_write(c, what, at, b, q->ask.heads[h], end - queries, end);
    }
}

static uint64_t mix(uint64_t h, uint64_t x) { return (h ^ x) * 0x9E3779B97F4A7C15u + (h >> 31); }

/* Who wants what; without a list a change makes a captured step worthless. */
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
    t->layer = 0;
    t->first = first;
    t->rows = rows;
    t->queries = T;
    t->tokens = NULL;
    t->listed = listable(s);
    s->choice.listed = 0;
    size_t bytes = (size_t)map_offsets(s) * sizeof(float);
    s->session->watched = 0;
    fv_ctx_set_tap(s->ctx, bytes ? see : NULL, s);
    if (!bytes) return true;
    if (t->listed) return write_lists(s, bytes);
    if (!reserve(s, &t->maps, &t->maps_bytes, bytes)) return false;
    t->device = t->maps;
    uint64_t now = wanted(s);
    if (now != t->wanted && !t->prompt) s->session->version++;
    if (!t->prompt) t->wanted = now;
    s->session->watched = 2; /* no list's: those are odd */
    return true;
}

/* A wait for the device takes as long as many copies: tokens that were chosen come along. */
bool fv__sched_collect(fv_scheduler *s)
{
    fv_sched_tap *t = &s->tap;
    size_t bytes = (size_t)t->start[t->rows] * sizeof(float),
           chosen = t->listed ? (size_t)s->opt.rows * (sizeof(int32_t) + sizeof(float)) : 0;
    fv_ctx_set_tap(s->ctx, NULL, NULL);
    if (!bytes || fv__failed(s->ctx)) return !fv__failed(s->ctx);
    if (!fv__grow(&s->env, &t->read, &t->read_bytes, chosen + bytes)) {
        fv_raise(s->ctx, FV_ENOMEM, "scheduler: out of memory for attention weights");
        return false;
    }
    t->host = (float *)((char *)t->read + chosen);
    t->tokens = t->listed ? t->read : NULL;
    int64_t from = fv__sched_now();
    s->session->dev->backend->download(&s->ctx->stream, t->read, (char *)t->device - chosen,
                                       chosen + bytes);
    fv__sched_inner(s, &s->times.wait, from);
    return !fv__failed(s->ctx);
}

/* ---- what an event brings ---- */

static const fv_sched_weights *describe(fv_sched_weights *out, const sequence *q, const float *w,
                                        int64_t n, int64_t cols)
{
    *out = (fv_sched_weights){
        .w = w, .n_layers = q->ask.n_layers, .n_heads = q->ask.n_heads, .rows = n, .cols = cols};
    return out;
}

/* n rows of each map, `every` floats from one map to the next and `width` from row to row.  Caches
 * are longer than what is in them: what stands behind the last key is left out.  Lists have no more
 * than is wanted, and are told of where they are. */
static const fv_sched_weights *pack(fv_scheduler *s, fv_sched_weights *out, const sequence *q,
                                    const float *w, int64_t every, int64_t width, int64_t n,
                                    int64_t cols)
{
    fv_sched_tap *t = &s->tap;
    int64_t maps = (int64_t)q->ask.n_layers * q->ask.n_heads;
    void *packed = t->packed;
    if (width == cols && every == n * cols) return describe(out, q, w, n, cols);
    if (!fv__grow(&s->env, &packed, &t->packed_bytes,
                  (size_t)(maps * n * cols) * sizeof *t->packed)) {
        fv_raise(s->ctx, FV_ENOMEM, "scheduler: out of memory for attention weights");
        return NULL;
    }
    float *to = t->packed = packed;
    for (int64_t m = 0; m < maps; m++)
        for (int64_t i = 0; i < n; i++, to += cols)
            memcpy(to, w + m * every + i * width, (size_t)cols * sizeof *to);
    return describe(out, q, t->packed, n, cols);
}

const fv_sched_weights *fv__sched_weights(fv_scheduler *s, fv_sched_weights *out, int64_t b,
                                          int64_t from, int64_t n)
{
    fv_sched_tap *t = &s->tap;
    const sequence *q = s->row[t->first + b];
    int64_t queries = queries_of(s, q), width = t->width[b];
    if (from < 0) from = queries - 1;
    if (!q->ask.n_layers || !q->ask.n_heads || n < 1) return NULL;
    if (!pack(s, out, q, t->host + t->start[b] + from * width, queries * width, width, n,
              q->cached))
        return NULL;
    out->first = q->cached - queries + from;
    return out;
}

void fv__sched_note_weights(const fv_scheduler *s, fv_sched_told *to, int64_t b)
{
    const fv_sched_tap *t = &s->tap;
    const sequence *q = to->q;
    if (!q->ask.n_layers || !q->ask.n_heads) return;
    to->every = queries_of(s, q) * t->width[b];
    to->weights = t->start[b] + to->every - t->width[b];
    to->cols = q->cached;
}

const fv_sched_weights *fv__sched_weights_at(fv_scheduler *s, fv_sched_weights *out,
                                             const fv_sched_told *t)
{
    if (!pack(s, out, t->q, s->tap.host + t->weights, t->every, t->every, 1, t->cols)) return NULL;
    out->first = t->cols - 1;
    return out;
}

void fv__sched_tap_free(fv_scheduler *s)
{
    fv_sched_tap *t = &s->tap;
    const fv_backend *b = s->session->dev->backend;
    if (t->maps) b->release(s->session->dev, t->maps, t->maps_bytes);
    fv__free(&s->env, t->next, t->next_bytes);
    fv__free(&s->env, t->read, t->read_bytes);
    fv__free(&s->env, t->packed, t->packed_bytes);
    *t = (fv_sched_tap){0};
}
