/* session.c - the key/value caches of one generation.
 *
 * Memory is taken when a layer first asks for it, grows with the sequences and is kept.  When rows change places (beams that
 * go on and beams that end) only what differs is copied: rows that came from one ancestor hold the same keys up to where
 * they parted, because equal tokens give equal bits whatever the batch.  How long that is, is known for every two rows
 * without looking at tokens.  A table of where each key lies, read by attention, would save the rest of the copying; with
 * beams that part a few tokens back it has little left to save, and every backend's kernel would have to follow it. */
#include "base/base.h"
#include "core/core.h"
#include "fovea/gen.h"

#define MAX_SLOTS 512
#define FIRST_ROOM 64 /* tokens a row has memory for at first */

/* One tensor of the session and its memory. */
typedef struct slot {
    fv_tensor t;
    size_t bytes;
} slot;

/* Tokens [first, end) of row `from` go to row `to`. */
typedef struct move {
    int32_t to, from, first, end;
} move;

struct fv_session {
    fv_env env;
    fv_device *dev;
    const fv_model *model;
    int64_t all, rows;              /* rows it was made for, and rows in use */
    int64_t cap, room;              /* tokens of a row: allowed, and that there is memory for */
    int32_t *len;                   /* tokens of each row before the step under way */
    fv_tensor *pos, *lens, *places; /* on the device, for the step under way */
    int32_t *host;                  /* where those are made */
    size_t host_bytes;
    int32_t *shared; /* (all,all): first tokens that two rows have in common; NULL before rows changed places */
    int32_t *work;   /* (all,all) for the next of these, then lists of rows */
    move *moves;     /* room for 2 * all */
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
    *s = (fv_session){.env = d->env, .dev = d, .model = m, .all = rows, .rows = rows, .cap = cap};
    s->room = cap < FIRST_ROOM ? cap : FIRST_ROOM;
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
    for (int i = 0; all && i < MAX_SLOTS; i++)
        if (all[i].t.data) s->dev->backend->release(s->dev, all[i].t.data, all[i].bytes);
    fv__free(&s->env, all, MAX_SLOTS * sizeof *all);
}

static size_t pairs_bytes(const fv_session *s) { return (size_t)(s->all * s->all) * sizeof(int32_t); }
static size_t work_bytes(const fv_session *s) { return pairs_bytes(s) + 4 * (size_t)s->all * sizeof(int32_t); }
static size_t moves_bytes(const fv_session *s) { return 2 * (size_t)s->all * sizeof(move); }

void fv_session_free(fv_session *s)
{
    if (!s) return;
    fv_env env = s->env;
    free_slots(s, s->k);
    free_slots(s, s->v);
    free_slots(s, s->kept);
    fv__free(&env, s->shared, pairs_bytes(s));
    fv__free(&env, s->work, work_bytes(s));
    fv__free(&env, s->moves, moves_bytes(s));
    fv__free(&env, s->host, s->host_bytes);
    fv__free(&env, s->len, (size_t)s->all * sizeof *s->len);
    fv__free(&env, s, sizeof *s);
}

void fv_session_reset(fv_session *s)
{
    s->rows = s->all;
    memset(s->len, 0, (size_t)s->all * sizeof *s->len);
    if (s->shared) memset(s->shared, 0, pairs_bytes(s));
}

int64_t fv_session_count(const fv_session *s) { return s->rows; }
int64_t fv_session_len(const fv_session *s, int64_t row) { return s->len[row]; }

void fv_session_cut(fv_session *s, int64_t row, int64_t n)
{
    if (n < 0 || n >= s->len[row]) return;
    s->len[row] = (int32_t)n;
    for (int64_t i = 0; s->shared && i < s->all; i++) {
        int32_t *a = &s->shared[row * s->all + i], *b = &s->shared[i * s->all + row];
        *a = *b = *a < (int32_t)n ? *a : (int32_t)n;
    }
}

/* ---- memory ---- */

/* Makes the slot hold a tensor of this shape, with `spare` rows more behind it; what was in it may be lost. */
static bool hold(fv_ctx *c, fv_session *s, slot *at, fv_dtype t, fv_shape shape, int64_t spare)
{
    const fv_backend *b = s->dev->backend;
    size_t bytes = fv__tensor_bytes(t, fv_shape_len(shape) / shape.d[0] * (shape.d[0] + spare));
    if (bytes > at->bytes) {
        if (at->t.data) b->release(s->dev, at->t.data, at->bytes);
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

/* One row more than there are: where a row waits while others change places in a circle. */
static bool hold_cache(fv_ctx *c, fv_session *s, slot *at, int64_t width)
{
    if (at->t.data && at->t.shape.d[1] == s->room && at->t.shape.d[2] == width) {
        at->t.shape.d[0] = s->rows;
        return true;
    }
    bool ok = hold(c, s, at, c->dtype, FV_SHAPE(s->all, s->room, width), 1);
    at->t.shape.d[0] = s->rows;
    return ok;
}

fv_kv fv_session_kv(fv_ctx *c, fv_session *s, int layer, int64_t width)
{
    if (fv__failed(c) || !numbered(c, layer) || !s->pos) return (fv_kv){0};
    if (!hold_cache(c, s, &s->k[layer], width) || !hold_cache(c, s, &s->v[layer], width)) return (fv_kv){0};
    return (fv_kv){.k = &s->k[layer].t, .v = &s->v[layer].t, .pos = s->pos, .lens = s->lens};
}

/* Moves a cache into memory for `room` tokens a row. */
static void widen(fv_ctx *c, fv_session *s, slot *at, int64_t room)
{
    if (!at->t.data || fv__failed(c)) return;
    slot old = *at;
    int64_t width = at->t.shape.d[2];
    *at = (slot){0};
    if (hold(c, s, at, old.t.dtype, FV_SHAPE(s->all, room, width), 1)) {
        size_t token = fv__tensor_bytes(old.t.dtype, width);
        for (int64_t i = 0; i < s->rows; i++)
            s->dev->backend->move(&c->stream, (char *)at->t.data + (size_t)(i * room) * token,
                                  (char *)old.t.data + (size_t)(i * s->room) * token, (size_t)s->len[i] * token);
        s->dev->backend->sync(&c->stream);
    }
    s->dev->backend->release(s->dev, old.t.data, old.bytes);
}

static void make_room(fv_ctx *c, fv_session *s, int64_t tokens)
{
    int64_t room = s->room * 2 > tokens ? s->room * 2 : tokens;
    if (tokens <= s->room) return;
    if (room > s->cap) room = s->cap;
    for (int i = 0; i < MAX_SLOTS; i++) {
        widen(c, s, &s->k[i], room);
        widen(c, s, &s->v[i], room);
    }
    s->room = room;
}

fv_tensor *fv_session_places(fv_ctx *c, fv_session *s)
{
    (void)c;
    return s->places;
}

fv_tensor *fv_session_places_from(fv_ctx *c, fv_session *s, int32_t from)
{
    if (!s->places || fv__failed(c)) return NULL;
    int64_t n = fv_dim(s->places, 1);
    int32_t *at = s->host + 2 * s->rows;
    for (int64_t i = 0; i < s->rows * n; i++) at[i] = from + s->len[i / n] + (int32_t)(i % n);
    return fv_ints(c, at, s->places->shape);
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
    if (hold(c, s, at, x->dtype, x->shape, 0))
        s->dev->backend->move(&c->stream, at->t.data, x->data, fv__tensor_bytes(x->dtype, fv_len(x)));
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
    void *host = s->host;
    if (!fv__grow(&s->env, &host, &s->host_bytes, (size_t)(s->rows * (n + 2)) * sizeof(int32_t))) {
        fv_raise(c, FV_ENOMEM, "session: out of memory");
        return false;
    }
    int32_t *pos = s->host = host, *lens = pos + s->rows, *at = lens + s->rows;
    for (int64_t i = 0; i < s->rows; i++) {
        pos[i] = s->len[i];
        lens[i] = s->len[i] + (int32_t)n;
        for (int64_t j = 0; j < n; j++) at[i * n + j] = s->len[i] + (int32_t)j;
    }
    s->pos = fv_ints(c, pos, FV_SHAPE(s->rows));
    s->lens = fv_ints(c, lens, FV_SHAPE(s->rows));
    s->places = fv_ints(c, at, FV_SHAPE(s->rows, n));
    return !fv__failed(c);
}

fv_tensor *fv_session_step(fv_ctx *c, fv_session *s, fv_tensor *ids)
{
    if (!ids || fv__failed(c)) return NULL;
    int64_t n = fv_dim(ids, 1), most = 0;
    if (ids->shape.n != 2 || ids->dtype != FV_I32 || fv_dim(ids, 0) != s->rows || n < 1)
        return fv_raise(c, FV_ESHAPE, "session: ids %s for %lld rows", fv_desc(ids).s, (long long)s->rows);
    for (int64_t i = 0; i < s->rows; i++) {
        if (s->len[i] + n > s->cap)
            return fv_raise(c, FV_EARG, "session: row %lld has %d tokens and room for %lld, %lld more were given", (long long)i,
                            s->len[i], (long long)s->cap, (long long)n);
        if (s->len[i] + n > most) most = s->len[i] + n;
    }
    make_room(c, s, most);
    if (!place(c, s, n)) return NULL;
    fv_tensor *y = fv_model_family(s->model)->step(c, fv_model_self(s->model), s, ids);
    s->pos = s->lens = s->places = NULL; /* they live in the context, which may be reset before the next step */
    for (int64_t i = 0; y && i < s->rows; i++) s->len[i] += (int32_t)n;
    return y;
}

/* ---- rows that change places ---- */

/* The order in which n rows can be overwritten: a row that others still need waits for them, and of a circle one row waits
 * aside as row `spare`.  Writes at most 2n moves, without their tokens; used has room for 2n. */
static int64_t order_moves(move *out, const int32_t *from, int64_t n, int32_t spare, int32_t *used)
{
    int64_t n_out = 0, n_ready = 0;
    int32_t *ready = used + spare;
    memset(used, 0, (size_t)spare * sizeof *used);
    for (int32_t i = 0; i < n; i++) used[from[i]] += from[i] != i;
    for (int32_t i = 0; i < n; i++)
        if (from[i] != i && !used[i]) ready[n_ready++] = i;
    for (int32_t start = 0; start < n; start++) {
        while (n_ready) {
            int32_t to = ready[--n_ready], source = from[to];
            out[n_out++] = (move){.to = to, .from = source};
            used[to] = -1; /* done */
            if (!--used[source] && source < n && from[source] != source) ready[n_ready++] = source;
        }
        if (from[start] == start || used[start] < 0) continue;
        /* What is left are circles, in which every row is needed once. */
        out[n_out++] = (move){.to = spare, .from = start};
        for (int32_t to = start; used[to] > 0; to = from[to]) {
            out[n_out++] = (move){.to = to, .from = from[to] == start ? spare : from[to]};
            used[to] = -1;
        }
    }
    return n_out;
}

static int32_t in_common(const fv_session *s, int32_t a, int32_t b)
{
    return a == b ? s->len[a] : s->shared[(int64_t)a * s->all + b];
}

/* A move to the row aside is the first half of the one that comes from there. */
static void bound_moves(const fv_session *s, move *m, int64_t n, const int32_t *from)
{
    for (int64_t i = n - 1, last = 0; i >= 0; i--) {
        if (m[i].from == s->all) last = i;
        const move *real = m[i].to == s->all ? &m[last] : &m[i];
        int32_t source = from[real->to];
        m[i].first = in_common(s, real->to, source);
        m[i].end = s->len[source];
    }
}

static void apply(fv_ctx *c, fv_session *s, slot *at, const move *m, int64_t n)
{
    if (!at->t.data) return;
    size_t token = fv__tensor_bytes(at->t.dtype, at->t.shape.d[2]), row = token * (size_t)s->room;
    char *data = at->t.data;
    for (int64_t i = 0; i < n; i++) {
        size_t skip = (size_t)m[i].first * token;
        if (m[i].end > m[i].first)
            s->dev->backend->move(&c->stream, data + (size_t)m[i].to * row + skip, data + (size_t)m[i].from * row + skip,
                                  (size_t)(m[i].end - m[i].first) * token);
    }
}

/* Groups of rows share what is kept: it moves when whole groups do. */
static void select_kept(fv_ctx *c, fv_session *s, slot *at, const int32_t *from, int64_t n)
{
    if (!at->t.data || fv__failed(c)) return;
    int64_t groups = at->t.shape.d[0], each = s->rows / groups, left = n / each;
    size_t bytes = fv__tensor_bytes(at->t.dtype, fv_len(&at->t)) / (size_t)groups;
    bool whole = n % each == 0;
    for (int64_t i = 0; whole && i < n; i++) whole = from[i] / each == from[i / each * each] / each;
    for (int64_t g = 0; whole && g < left; g++) whole = from[g * each] / each == g || from[g * each] / each >= left;
    if (!whole) {
        fv_raise(c, FV_EARG, "session: rows that share what is kept change places one by one, or groups overlap");
        return;
    }
    for (int64_t g = 0; g < left; g++)
        if (from[g * each] / each != g)
            s->dev->backend->move(&c->stream, (char *)at->t.data + (size_t)g * bytes,
                                  (char *)at->t.data + (size_t)(from[g * each] / each) * bytes, bytes);
    at->t.shape.d[0] = left;
}

static bool prepare(fv_ctx *c, fv_session *s)
{
    if (!s->shared) s->shared = fv__alloc(&s->env, pairs_bytes(s));
    if (!s->work) s->work = fv__alloc(&s->env, work_bytes(s));
    if (!s->moves) s->moves = fv__alloc(&s->env, moves_bytes(s));
    if (s->shared && s->work && s->moves) return true;
    fv_raise(c, FV_ENOMEM, "session: out of memory");
    return false;
}

/* What the rows have in common and their lengths, once they have changed places. */
static void follow(fv_session *s, const int32_t *from, int64_t n)
{
    int32_t *now = s->work, *len = now + s->all * s->all;
    for (int64_t i = 0; i < n; i++) {
        len[i] = s->len[from[i]];
        for (int64_t j = 0; j < n; j++) now[i * s->all + j] = in_common(s, from[i], from[j]);
    }
    memcpy(s->len, len, (size_t)n * sizeof *len);
    for (int64_t i = 0; i < n; i++) memcpy(s->shared + i * s->all, now + i * s->all, (size_t)n * sizeof *now);
}

void fv_session_select(fv_ctx *c, fv_session *s, const int32_t *from, int64_t n)
{
    bool same = n == s->rows;
    if (n < 1 || n > s->rows) {
        fv_raise(c, FV_EARG, "session: %lld of %lld rows", (long long)n, (long long)s->rows);
        return;
    }
    for (int64_t i = 0; i < n; i++) {
        if (from[i] < 0 || from[i] >= s->rows) {
            fv_raise(c, FV_EARG, "session: row %d of %lld", from[i], (long long)s->rows);
            return;
        }
        same = same && from[i] == i;
    }
    if (same || !prepare(c, s)) return;
    int64_t n_moves = order_moves(s->moves, from, n, (int32_t)s->all, s->work);
    bound_moves(s, s->moves, n_moves, from);
    for (int i = 0; i < MAX_SLOTS; i++) {
        apply(c, s, &s->k[i], s->moves, n_moves);
        apply(c, s, &s->v[i], s->moves, n_moves);
        select_kept(c, s, &s->kept[i], from, n);
    }
    follow(s, from, n);
    s->rows = n;
}

void fv_session_reorder(fv_ctx *c, fv_session *s, const int32_t *from) { fv_session_select(c, s, from, s->rows); }
