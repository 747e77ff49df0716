/* session.c - the key/value caches of one generation.
 *
 * Memory is taken when a layer first asks for it and kept.  Reordering rows copies what is in use into a second set of
 * buffers and exchanges the two: rows of a cache may come from any other row, so it cannot be done in place. */
#include "base/base.h"
#include "core/core.h"
#include "fovea/gen.h"

#define MAX_SLOTS 512

/* One tensor of the session: its memory, and a second block for reordering. */
typedef struct slot {
    fv_tensor t;
    void *spare;
    size_t bytes;
} slot;

struct fv_session {
    fv_env env;
    fv_device *dev;
    const fv_model *model;
    int64_t rows, cap;
    int64_t step;                   /* tokens of the step under way */
    int32_t *len;                   /* tokens of each row before it */
    fv_tensor *pos, *lens, *places; /* on the device, for the step under way */
    slot *k, *v, *kept;
};

static slot *slots(const fv_env *env) { return fv__alloc(env, MAX_SLOTS * sizeof(slot)); }

fv_status fv_session_new(fv_session **out, const fv_model *m, fv_device *d, int64_t rows, int64_t cap, fv_err *e)
{
    *out = NULL;
    if (rows < 1 || cap < 1 || rows > INT32_MAX || cap > INT32_MAX)
        return fv_fail(e, FV_EARG, "session: %lld rows of %lld tokens", (long long)rows, (long long)cap);
    if (!fv_model_family(m)->step)
        return fv_fail(e, FV_EMISSING, "session: the family %s does not generate", fv_model_family(m)->type);
    fv_session *s = fv__alloc(&d->env, sizeof *s);
    if (!s) return fv_fail(e, FV_ENOMEM, "session: out of memory");
    *s = (fv_session){.env = d->env, .dev = d, .model = m, .rows = rows, .cap = cap};
    s->len = fv__alloc(&s->env, (size_t)rows * sizeof *s->len);
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

static void free_slots(fv_session *s, slot *all)
{
    const fv_backend *b = s->dev->backend;
    for (int i = 0; all && i < MAX_SLOTS; i++) {
        if (all[i].t.data) b->release(s->dev, all[i].t.data, all[i].bytes);
        if (all[i].spare) b->release(s->dev, all[i].spare, all[i].bytes);
    }
    fv__free(&s->env, all, MAX_SLOTS * sizeof *all);
}

void fv_session_free(fv_session *s)
{
    if (!s) return;
    fv_env env = s->env;
    free_slots(s, s->k);
    free_slots(s, s->v);
    free_slots(s, s->kept);
    fv__free(&env, s->len, (size_t)s->rows * sizeof *s->len);
    fv__free(&env, s, sizeof *s);
}

void fv_session_reset(fv_session *s) { memset(s->len, 0, (size_t)s->rows * sizeof *s->len); }
int64_t fv_session_count(const fv_session *s) { return s->rows; }
int64_t fv_session_len(const fv_session *s, int64_t row) { return s->len[row]; }

void fv_session_cut(fv_session *s, int64_t row, int64_t n)
{
    if (n >= 0 && n < s->len[row]) s->len[row] = (int32_t)n;
}

/* ---- memory ---- */

/* Makes the slot hold a tensor of this shape; what was in it may be lost. */
static bool hold(fv_ctx *c, fv_session *s, slot *at, fv_dtype t, fv_shape shape)
{
    const fv_backend *b = s->dev->backend;
    size_t bytes = fv__tensor_bytes(t, fv_shape_len(shape));
    if (bytes > at->bytes) {
        if (at->t.data) b->release(s->dev, at->t.data, at->bytes);
        if (at->spare) b->release(s->dev, at->spare, at->bytes);
        *at = (slot){.t.data = b->alloc(s->dev, bytes)};
        if (!at->t.data) {
            fv_raise(c, FV_ENOMEM, "session: out of memory for %zu bytes", bytes);
            return false;
        }
        at->bytes = bytes;
    }
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

fv_kv fv_session_kv(fv_ctx *c, fv_session *s, int layer, int64_t width)
{
    fv_shape shape = FV_SHAPE(s->rows, s->cap, width);
    if (fv__failed(c) || !numbered(c, layer) || !s->pos) return (fv_kv){0};
    bool there = s->k[layer].t.data != NULL;
    if (!there && (!hold(c, s, &s->k[layer], c->dtype, shape) || !hold(c, s, &s->v[layer], c->dtype, shape))) return (fv_kv){0};
    return (fv_kv){.k = &s->k[layer].t, .v = &s->v[layer].t, .pos = s->pos, .lens = s->lens};
}

fv_tensor *fv_session_places(fv_ctx *c, fv_session *s)
{
    (void)c;
    return s->places;
}

void fv_session_keep(fv_ctx *c, fv_session *s, int number, fv_tensor *x)
{
    if (!x || fv__failed(c) || !numbered(c, number)) return;
    int64_t n = fv_dim(x, 0);
    if (n < 1 || s->rows % n) {
        fv_raise(c, FV_ESHAPE, "session: %s kept for %lld rows", fv_desc(x).s, (long long)s->rows);
        return;
    }
    slot *at = &s->kept[number];
    fv_shape shape = x->shape;
    shape.d[0] = s->rows;
    if (!hold(c, s, at, x->dtype, shape)) return;
    size_t row = fv__tensor_bytes(x->dtype, fv_len(x)) / (size_t)n;
    for (int64_t i = 0; i < s->rows; i++)
        s->dev->backend->move(&c->stream, (char *)at->t.data + (size_t)i * row,
                              (char *)x->data + (size_t)(i / (s->rows / n)) * row, row);
}

fv_tensor *fv_session_kept(fv_ctx *c, fv_session *s, int number)
{
    return !fv__failed(c) && numbered(c, number) && s->kept[number].t.data ? &s->kept[number].t : NULL;
}

/* ---- steps ---- */

void fv_session_begin(fv_ctx *c, fv_session *s, const fv_items *in)
{
    const fv_family *f = fv_model_family(s->model);
    fv_session_reset(s);
    if (f->begin && !fv__failed(c)) f->begin(c, fv_model_self(s->model), s, in);
}

/* Where the tokens of this step go, how many keys there are then, and the place of each. */
static bool place(fv_ctx *c, fv_session *s, int64_t n)
{
    size_t bytes = (size_t)(s->rows * (n + 2)) * sizeof(int32_t);
    int32_t *host = fv__alloc(&s->env, bytes), *lens = host + s->rows, *at = lens + s->rows;
    if (!host) {
        fv_raise(c, FV_ENOMEM, "session: out of memory");
        return false;
    }
    for (int64_t i = 0; i < s->rows; i++) {
        host[i] = s->len[i];
        lens[i] = s->len[i] + (int32_t)n;
        for (int64_t j = 0; j < n; j++) at[i * n + j] = s->len[i] + (int32_t)j;
    }
    s->pos = fv_ints(c, host, FV_SHAPE(s->rows));
    s->lens = fv_ints(c, lens, FV_SHAPE(s->rows));
    s->places = fv_ints(c, at, FV_SHAPE(s->rows, n));
    fv__free(&s->env, host, bytes);
    return !fv__failed(c);
}

fv_tensor *fv_session_step(fv_ctx *c, fv_session *s, fv_tensor *ids)
{
    if (!ids || fv__failed(c)) return NULL;
    int64_t n = fv_dim(ids, 1);
    if (ids->shape.n != 2 || ids->dtype != FV_I32 || fv_dim(ids, 0) != s->rows || n < 1)
        return fv_raise(c, FV_ESHAPE, "session: ids %s for %lld rows", fv_desc(ids).s, (long long)s->rows);
    for (int64_t i = 0; i < s->rows; i++)
        if (s->len[i] + n > s->cap)
            return fv_raise(c, FV_EARG, "session: row %lld has %d tokens and room for %lld, %lld more were given", (long long)i,
                            s->len[i], (long long)s->cap, (long long)n);
    if (!place(c, s, n)) return NULL;
    fv_tensor *y = fv_model_family(s->model)->step(c, fv_model_self(s->model), s, ids);
    s->pos = s->lens = s->places = NULL; /* they live in the context, which may be reset before the next step */
    for (int64_t i = 0; y && i < s->rows; i++) s->len[i] += (int32_t)n;
    return y;
}

/* ---- rows that change places ---- */

static void shuffle(fv_ctx *c, fv_session *s, slot *at, const int32_t *from, int64_t used)
{
    const fv_backend *b = s->dev->backend;
    if (!at->t.data || fv__failed(c)) return;
    if (!at->spare && !(at->spare = b->alloc(s->dev, at->bytes))) {
        fv_raise(c, FV_ENOMEM, "session: out of memory for %zu bytes", at->bytes);
        return;
    }
    size_t row = fv__tensor_bytes(at->t.dtype, fv_len(&at->t)) / (size_t)s->rows;
    size_t part = used < 0 ? row : row / (size_t)s->cap * (size_t)used;
    for (int64_t i = 0; i < s->rows; i++)
        b->move(&c->stream, (char *)at->spare + (size_t)i * row, (char *)at->t.data + (size_t)from[i] * row, part);
    void *t = at->t.data;
    at->t.data = at->spare;
    at->spare = t;
}

void fv_session_reorder(fv_ctx *c, fv_session *s, const int32_t *from)
{
    bool same = true;
    int64_t used = 0;
    for (int64_t i = 0; i < s->rows; i++) {
        if (from[i] < 0 || from[i] >= s->rows) {
            fv_raise(c, FV_EARG, "session: row %d of %lld", from[i], (long long)s->rows);
            return;
        }
        same = same && from[i] == i;
        if (s->len[i] > used) used = s->len[i];
    }
    if (same) return;
    for (int i = 0; i < MAX_SLOTS; i++) {
        shuffle(c, s, &s->k[i], from, used);
        shuffle(c, s, &s->v[i], from, used);
        shuffle(c, s, &s->kept[i], from, -1);
    }
    int32_t *len = fv__alloc(&s->env, (size_t)s->rows * sizeof *len);
    if (!len) {
        fv_raise(c, FV_ENOMEM, "session: out of memory");
        return;
    }
    for (int64_t i = 0; i < s->rows; i++) len[i] = s->len[from[i]];
    memcpy(s->len, len, (size_t)s->rows * sizeof *len);
    fv__free(&s->env, len, (size_t)s->rows * sizeof *len);
}
