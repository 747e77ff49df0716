/* session.c - the KV caches of one generation, and its steps.
 *
 * A cache (rows, allocated, width) per layer, one for keys and one for values, is allocated when
 * the layer first asks for it, grows by doubling with its longest row, and is reused after a
 * reset.  On a GPU it has its full size from the start, since a captured step holds addresses, and
 * so it has, as addresses, where a scheduler pages it (session_pages.c).
 *
 * Two kinds of step: fv_session_step takes any number of tokens a row (prefill), with inputs in
 * the context; fv__session_replay (session_replay.c) takes one token a row (decode), with inputs in
 * memory of the session's own, so that a device can capture the step as a graph and replay it. */
#include "base/base.h"
#include "model/part.h"
#include "model/prompt.h"
#include "model/session.h"
#include "fovea/author/family.h"

#define INITIAL_CAPACITY 64 /* tokens of a row allocated at first, on the host */

static slot *slots(const fv_env *env) { return fv__alloc(env, MAX_SLOTS * sizeof(slot)); }

fv_status fv_session_new(fv_session **out, const fv_model *m, fv_device *d, int64_t rows,
                         int64_t cap, fv_err *e)
{
    *out = NULL;
    if (rows < 1 || cap < 1 || rows > INT32_MAX || cap > INT32_MAX)
        return fv_fail(e, FV_EARG, "session: %lld rows of %lld tokens", (long long)rows,
                       (long long)cap);
    if (!fv_model_family(m)->step && !fv_model_family(m)->advance)
        return fv_fail(e, FV_EMISSING, "session: the family %s does not generate",
                       fv_model_family(m)->type);
    fv_session *s = fv__alloc(&d->env, sizeof *s);
    if (!s) return fv_fail(e, FV_ENOMEM, "session: out of memory");
    int64_t more = fv__prompt_length(fv__model_virtual(m));
    cap += more;
    *s = (fv_session){.env = d->env,
                      .dev = d,
                      .model = m,
                      .all = rows,
                      .rows = rows,
                      .cap = cap,
                      .virtual = more};
    /* a GPU's captured step holds addresses: nothing may grow */
    s->allocated = cap < INITIAL_CAPACITY || !fv__device_is_host(d) ? cap : INITIAL_CAPACITY;
    s->len = fv__alloc(&s->env, 2 * (size_t)rows * sizeof *s->len);
    s->expected = s->len ? s->len + rows : NULL;
    s->k = slots(&s->env);
    s->v = slots(&s->env);
    s->kept = slots(&s->env);
    if (!s->len || !s->k || !s->v || !s->kept) {
        fv_session_free(s);
        return fv_fail(e, FV_ENOMEM, "session: out of memory");
    }
    *out = s;
    return FV_OK;
}

static void drop_slot(fv_session *s, slot *at)
{
    if (at->t.data && !at->inside) s->dev->backend->release(s->dev, at->t.data, at->bytes);
}

static void free_slots(fv_session *s, slot *all)
{
    for (int i = 0; all && i < MAX_SLOTS; i++) drop_slot(s, &all[i]);
    fv__free(&s->env, all, MAX_SLOTS * sizeof *all);
}

void fv_session_free(fv_session *s)
{
    if (!s) return;
    fv_env env = s->env;
    fv__session_replay_free(s);
    fv__session_share_free(s); /* while the caches are there */
    free_slots(s, s->k);
    free_slots(s, s->v);
    free_slots(s, s->kept);
    if (s->block) s->dev->backend->release(s->dev, s->block, s->block_bytes);
    fv__session_pages_free(s);
    drop_slot(s, &s->step_inputs.all);
    drop_slot(s, &s->sampler_block);
    fv__session_rows_free(s);
    fv__free(&env, s->host, s->host_bytes);
    fv__free(&env, s->len, 2 * (size_t)s->all * sizeof *s->len);
    fv__free(&env, s, sizeof *s);
}

void fv_session_reset(fv_session *s)
{
    s->rows = s->all;
    s->first = 0;
    for (int64_t i = 0; i < s->all; i++) {
        fv__session_unshare(s, i, 0);
        fv__session_needs(s, i, 0);
    }
    memset(s->len, 0, 2 * (size_t)s->all * sizeof *s->len); /* and what was expected */
    if (s->shared) memset(s->shared, 0, fv__session_prefix_bytes(s));
    s->forked = false;
}

int64_t fv_session_count(const fv_session *s) { return s->rows; }
int64_t fv_session_processed(const fv_session *s) { return s->processed; }
/* Virtual tokens go through the model before the first token of a row; outside nobody counts
 * them. */
int64_t fv_session_len(const fv_session *s, int64_t row)
{
    return s->len[row] ? s->len[row] - s->virtual : 0;
}

/* ---- memory ---- */

/* A new shape in enough memory keeps the address but not the meaning, so it counts as a version. */
bool fv__session_reserve(fv_ctx *c, fv_session *s, slot *at, fv_dtype t, fv_shape shape,
                         int64_t spare)
{
    const fv_backend *b = s->dev->backend;
    size_t bytes = fv__tensor_bytes(t, fv_shape_len(shape) / shape.d[0] * (shape.d[0] + spare));
    if (bytes > at->bytes) {
        drop_slot(s, at);
        bool follows = s->paged && spare; /* a cache: the others have no spare row */
        *at = (slot){.t.data = follows ? b->reserve(s->dev, bytes) : b->alloc(s->dev, bytes)};
        if (!at->t.data) {
            fv_raise(c, FV_ENOMEM, "session: out of memory for %zu bytes%s", bytes,
                     fv__memory_left(s->dev).s);
            return false;
        }
        at->bytes = bytes;
    }
    if (!fv_shape_same(at->t.shape, shape) || at->t.dtype != t) s->version++;
    at->t.shape = shape;
    at->t.dtype = t;
    return true;
}

static bool numbered(fv_ctx *c, int i)
{
    if (i >= 0 && i < MAX_SLOTS) return true;
    fv_raise(c, FV_EARG, "session: number %d, expected 0 to %d", i, MAX_SLOTS - 1);
    return false;
}

/* One row more than there are: a scratch row for cyclic moves.  GPU kernels multiply whole tiles
 * of values, with weights of 0 behind the last key, and 0 * NaN is NaN: new memory is zeroed. */
static bool reserve_cache(fv_ctx *c, fv_session *s, slot *at, int64_t width, fv_dtype t)
{
    if (at->t.data && at->t.dtype == t && at->t.shape.d[1] == s->allocated &&
        at->t.shape.d[2] == width) {
        at->t.shape.d[0] = s->rows;
        return true;
    }
    if (s->pages.data) { /* laid out as the session was that it is like */
        fv_raise(c, FV_ESTATE,
                 "session: a KV cache of %s, %lld wide, that the layout of the pages lacks",
                 fv_dtype_name(t), (long long)width);
        return false;
    }
    bool ok = fv__session_reserve(c, s, at, t, FV_SHAPE(s->all, s->allocated, width), 1);
    at->t.shape.d[0] = s->rows;
    if (ok && !fv__device_is_host(s->dev)) s->dev->backend->zero(&c->stream, at->t.data, at->bytes);
    return ok;
}

/* A cache narrowed to the rows of this step. */
static fv_tensor *view_rows(const fv_session *s, slot *at)
{
    at->view = at->t;
    at->view.data = fv__session_row_at(s, at, s->first);
    return &at->view;
}

fv_kv fv_session_kv(fv_ctx *c, fv_session *s, int layer, int64_t width, fv_dtype t)
{
    s->plain = true;
    if (s->pages.data)
        fv_raise(c, FV_ESTATE,
                 "session: %s reads its KV cache as a contiguous tensor, and it is paged",
                 fv_model_family(s->model)->type);
    return fv__session_kv(c, s, layer, width, t);
}

fv_kv fv__session_kv(fv_ctx *c, fv_session *s, int layer, int64_t width, fv_dtype t)
{
    if (fv__failed(c) || !numbered(c, layer) || !s->pos) return (fv_kv){0};
    if (!reserve_cache(c, s, &s->k[layer], width, t) ||
        !reserve_cache(c, s, &s->v[layer], width, t))
        return (fv_kv){0};
    return (fv_kv){.k = view_rows(s, &s->k[layer]),
                   .v = view_rows(s, &s->v[layer]),
                   .pos = s->pos,
                   .lens = s->lens};
}

/* Bytes of a cache of `allocated` tokens a row, with its scratch row. */
static size_t cache_bytes(const fv_session *s, const slot *at, int64_t allocated)
{
    size_t bytes = at->t.data
                       ? fv__tensor_bytes(at->t.dtype, (s->all + 1) * allocated * at->t.shape.d[2])
                       : 0;
    return (bytes + 63) / 64 * 64;
}

/* Copies a cache to `to`, whose rows have `allocated` tokens, and releases the old memory. */
static void widen(fv_ctx *c, fv_session *s, slot *at, void *to, int64_t allocated)
{
    if (!at->t.data) return;
    slot old = *at;
    size_t token = fv__tensor_bytes(old.t.dtype, old.t.shape.d[2]);
    for (int64_t i = 0; i < s->rows; i++)
        s->dev->backend->move(&c->stream, (char *)to + (size_t)(i * allocated) * token,
                              (char *)old.t.data + (size_t)(i * s->allocated) * token,
                              (size_t)s->len[i] * token);
    s->dev->backend->sync(&c->stream);
    at->t.data = to;
    at->t.shape.d[1] = allocated;
    at->bytes = cache_bytes(s, at, allocated);
    at->inside = true;
    drop_slot(s, &old);
}

/* At least twofold.  All caches move into one block. */
void fv__session_grow(fv_ctx *c, fv_session *s, int64_t tokens)
{
    int64_t allocated = s->allocated * 2 > tokens ? s->allocated * 2 : tokens;
    size_t bytes = 0, old_bytes = s->block_bytes;
    void *old = s->block;
    if (tokens <= s->allocated) return;
    s->version++;
    if (allocated > s->cap) allocated = s->cap;
    for (int i = 0; i < MAX_SLOTS; i++)
        bytes += cache_bytes(s, &s->k[i], allocated) + cache_bytes(s, &s->v[i], allocated);
    char *to = bytes ? s->dev->backend->alloc(s->dev, bytes) : NULL;
    if (bytes && !to) {
        fv_raise(c, FV_ENOMEM, "session: out of memory for %zu bytes%s", bytes,
                 fv__memory_left(s->dev).s);
        return;
    }
    for (int i = 0; i < 2 * MAX_SLOTS; i++) {
        slot *at = i % 2 ? &s->v[i / 2] : &s->k[i / 2];
        widen(c, s, at, to, allocated);
        to += at->t.data ? at->bytes : 0;
    }
    if (to) s->block = to - bytes, s->block_bytes = bytes;
    if (to && old) s->dev->backend->release(s->dev, old, old_bytes);
    s->allocated = allocated;
}

fv_tensor *fv_session_positions(fv_ctx *c, fv_session *s)
{
    (void)c;
    return s->positions;
}

/* Positions from `from` on, for a decode step.  The device advances them itself, so that they are
 * uploaded only when `from` is new: the first time a family asks. */
static fv_tensor *shifted(fv_ctx *c, fv_session *s, int32_t from)
{
    fv_step_inputs *h = &s->step_inputs;
    if (h->from != from) {
        h->from = from;
        for (int64_t i = 0; i < s->rows; i++) s->host[i] = s->len[s->first + i] + from;
        s->dev->backend->upload(&c->stream, h->shifted.data, s->host,
                                (size_t)s->rows * sizeof *s->host);
    }
    return &h->shifted;
}

fv_tensor *fv_session_positions_from(fv_ctx *c, fv_session *s, int32_t from)
{
    if (!s->positions || fv__failed(c)) return NULL;
    if (s->step_inputs.active) return shifted(c, s, from);
    int64_t n = fv_dim(s->positions, 1);
    int32_t *at = s->host + 2 * s->rows;
    for (int64_t i = 0; i < s->rows * n; i++)
        at[i] = from + s->len[s->first + i / n] + (int32_t)(i % n);
    return fv_ints(c, at, s->positions->shape);
}

void fv_session_save_state(fv_ctx *c, fv_session *s, int number, fv_tensor *x)
{
    if (!x || fv__failed(c) || !numbered(c, number)) return;
    int64_t n = fv_dim(x, 0);
    if (n < 1 || s->rows % n) {
        fv_raise(c, FV_ESHAPE, "session: %s kept for %lld rows", fv_desc(x).s, (long long)s->rows);
        return;
    }
    slot *at = &s->kept[number];
    if (fv__session_reserve(c, s, at, x->dtype, x->shape, 0))
        s->dev->backend->move(&c->stream, at->t.data, x->data,
                              fv__tensor_bytes(x->dtype, fv_len(x)));
}

fv_tensor *fv_session_state(fv_ctx *c, fv_session *s, int number)
{
    return !fv__failed(c) && numbered(c, number) && s->kept[number].t.data ? &s->kept[number].t
                                                                           : NULL;
}

/* ---- steps ---- */

void fv_session_begin(fv_ctx *c, fv_session *s, const fv_items *in)
{
    const fv_family *f = fv_model_family(s->model);
    fv_session_reset(s);
    if (in) fv_items_check(c, in, "inputs", f->type);
    if (!f->begin || fv__failed(c)) return;
    fv_items given = in ? *in : (fv_items){0};
    fv__prompt_encoder_inputs(c, fv__model_virtual(s->model), &given);
    if (!fv__failed(c)) f->begin(c, fv_model_self(s->model), s, &given);
    c->prompt = NULL;
}

/* Uploads, for a step of n tokens: each row's cache offset, its number of keys afterwards, and the
 * position of each token. */
static bool set_positions(fv_ctx *c, fv_session *s, int64_t n)
{
    void *host = s->host;
    if (!fv__grow(&s->env, &host, &s->host_bytes, (size_t)(s->rows * (n + 2)) * sizeof(int32_t))) {
        fv_raise(c, FV_ENOMEM, "session: out of memory");
        return false;
    }
    int32_t *pos = s->host = host, *lens = pos + s->rows, *at = lens + s->rows;
    for (int64_t i = 0; i < s->rows; i++) {
        pos[i] = s->len[s->first + i];
        lens[i] = pos[i] + (int32_t)n;
        for (int64_t j = 0; j < n; j++) at[i * n + j] = pos[i] + (int32_t)j;
    }
    s->pos = fv_ints(c, pos, FV_SHAPE(s->rows));
    s->lens = fv_ints(c, lens, FV_SHAPE(s->rows));
    s->positions = fv_ints(c, at, FV_SHAPE(s->rows, n));
    return !fv__failed(c);
}

bool fv__session_fits(fv_ctx *c, fv_session *s, int64_t n, int64_t *most)
{
    for (int64_t i = s->first; i < s->first + s->rows; i++) {
        if (s->len[i] + n > s->cap) {
            fv_raise(c, FV_EARG,
                     "session: row %lld has %d tokens and a capacity of %lld, %lld more were given",
                     (long long)i, s->len[i], (long long)s->cap, (long long)n);
            return false;
        }
        if (s->len[i] + n > *most) *most = s->len[i] + n;
    }
    return true;
}

/* Before and behind a family's step of n tokens.  The tensors of positions belong to the context,
 * which may be reset before the next step. */
static bool open_step(fv_ctx *c, fv_session *s, int64_t n)
{
    int64_t most = 0;
    if (!fv__session_fits(c, s, n, &most)) return false;
    fv__session_grow(c, s, most);
    return set_positions(c, s, n);
}

static void close_step(fv_session *s, int64_t n, bool ok)
{
    s->pos = s->lens = s->positions = NULL;
    for (int64_t i = 0; ok && i < s->rows; i++) s->len[s->first + i] += (int32_t)n;
    if (ok) s->processed += s->rows * n;
}

static fv_tensor *step(fv_ctx *c, fv_session *s, fv_tensor *ids)
{
    int64_t n = fv_dim(ids, 1);
    const fv_family *f = fv_model_family(s->model);
    if (!f->step || ids->shape.n != 2 || ids->dtype != FV_I32 || fv_dim(ids, 0) != s->rows || n < 1)
        return fv_raise(c, FV_ESHAPE, "session: ids %s for %lld rows of %s", fv_desc(ids).s,
                        (long long)s->rows, f->type);
    if (!open_step(c, s, n)) return NULL;
    fv_tensor *y = f->step(c, fv_model_self(s->model), s, ids);
    close_step(s, n, y != NULL);
    return y;
}

bool fv_session_advance(fv_ctx *c, fv_session *s, const fv_items *in, fv_items *out)
{
    const fv_family *f = fv_model_family(s->model);
    if (!f->advance) fv_raise(c, FV_EARG, "session: the family %s has tokens, no frames", f->type);
    if (fv__failed(c) || !open_step(c, s, 1)) return false;
    f->advance(c, fv_model_self(s->model), s, in, out);
    close_step(s, 1, !fv__failed(c));
    return !fv__failed(c);
}

/* Memory for what a step writes: n[i] tokens more in row i of it, or T in all of them. */
static bool hold_rows(fv_ctx *c, fv_session *s, const int32_t *n, int64_t T)
{
    bool ok = !fv__failed(c);
    for (int64_t i = 0; i < s->rows && ok; i++)
        ok = fv__session_hold(c, s, s->first + i, s->len[s->first + i] + (n ? n[i] : T));
    return ok;
}

bool fv__session_begin_rows(fv_ctx *c, fv_session *s)
{
    int64_t empty = 0;
    for (int64_t i = s->first; i < s->first + s->rows; i++) empty += !s->len[i];
    if (!s->virtual || !empty) return !fv__failed(c);
    if (empty < s->rows)
        fv_raise(c, FV_ESTATE,
                 "session: %lld of %lld rows of a step are empty; with virtual "
                 "tokens they begin together",
                 (long long)empty, (long long)s->rows);
    else if (hold_rows(c, s, NULL, s->virtual))
        step(c, s, fv__prompt_step(c, fv__model_virtual(s->model), s->rows));
    c->prompt = NULL;
    return !fv__failed(c);
}

fv_tensor *fv_session_step(fv_ctx *c, fv_session *s, fv_tensor *ids)
{
    if (!ids || fv__failed(c) || !fv__session_begin_rows(c, s)) return NULL;
    return hold_rows(c, s, NULL, fv_dim(ids, 1)) ? step(c, s, ids) : NULL;
}

fv_tensor *fv__session_step_all(fv_ctx *c, fv_session *s, fv_tensor *ids)
{
    if (!ids || fv__failed(c) || !fv__session_begin_rows(c, s) ||
        !hold_rows(c, s, NULL, fv_dim(ids, 1)))
        return NULL;
    c->all_positions = true;
    fv_tensor *y = step(c, s, ids);
    c->all_positions = false;
    return y;
}

bool fv__session_pads(const fv_session *s)
{
    for (int i = 0; i < MAX_SLOTS; i++)
        if (s->kept[i].t.data) return false;
    return !s->virtual && !s->spans;
}

/* The order of sums over keys does not depend on how many queries a step has, so a prompt's rows
 * have the bits that they have alone. */
fv_tensor *fv__session_step_padded(fv_ctx *c, fv_session *s, const int32_t *ids, const int32_t *n,
                                   int64_t T)
{
    int32_t *ends = fv__step_memory(c, (size_t)s->rows * sizeof *ends);
    for (int64_t i = 0; ends && i < s->rows; i++) ends[i] = (int32_t)(i * T) + n[i] - 1;
    fv_tensor *at = ends ? fv_ints(c, ends, FV_SHAPE(s->rows, 1)) : NULL;
    fv_tensor *x = fv_ints(c, ids, FV_SHAPE(s->rows, T));
    if (!at || !x || !hold_rows(c, s, n, 0)) return NULL; /* padding is not kept */
    c->ends = at;
    fv_tensor *y = step(c, s, x);
    c->ends = NULL;
    for (int64_t i = 0; y && i < s->rows; i++) {
        s->len[s->first + i] -= (int32_t)T - n[i];
        s->processed -= T - n[i];
    }
    return y;
}

bool fv__session_narrow(fv_ctx *c, fv_session *s, int64_t first, int64_t n, int64_t tokens)
{
    int64_t most = 0, rows = s->rows;
    if (fv__failed(c)) return false;
    s->first = first;
    s->rows = n;
    for (int64_t i = first; i < first + n; i++)
        if (!s->len[i] && s->virtual) { /* virtual tokens go first, and nothing grows then */
            tokens += s->virtual;
            break;
        }
    bool ok = fv__session_fits(c, s, tokens, &most);
    s->first = 0;
    s->rows = rows;
    if (ok) fv__session_grow(c, s, most); /* before narrowing: it copies all rows in use */
    if (!ok || fv__failed(c)) return false;
    s->widest = rows;
    s->first = first;
    s->rows = n;
    return true;
}

void fv__session_restore(fv_session *s)
{
    s->first = 0;
    s->rows = s->widest;
}
