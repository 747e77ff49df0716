/* write.c - tokens that a device chooses and feeds back by itself: the host starts steps and reads
 * what came in runs. */
#include "base/base.h"
#include "model/session.h"

bool fv__write_can(const fv_session *s, fv_dtype t)
{
    return (unsigned)t < FV_FLOATS && s->dev->k[t] && s->dev->k[t]->choose;
}

/* Where things lie in the block of device memory, in bytes. */
typedef struct layout {
    size_t number, counts, log, kinds, all;
} layout;

static layout lay_out(int64_t rows, int64_t V)
{
    layout l = {.counts = (size_t)rows * sizeof(int64_t)};
    l.log = l.counts + 4 * (size_t)rows * sizeof(int32_t);
    l.kinds = l.log + 2 * FV_WRITE_LOG * (size_t)rows * sizeof(int32_t);
    l.all = l.kinds + (size_t)V;
    return l;
}

/* made, ended, least and last of each row, behind their numbers, as the device has them. */
static void fill(char *block, const layout *l, const fv_writer *w, int64_t rows)
{
    int64_t *number = (int64_t *)block;
    int32_t *made = (int32_t *)(block + l->counts), *ended = made + rows, *least = ended + rows,
            *last = least + rows;
    for (int64_t i = 0; i < rows; i++) {
        number[i] = w->number ? w->number[i] : i;
        made[i] = w->made;
        ended[i] = 0;
        least[i] = w->least ? w->least[i] : 0;
        last[i] = w->last ? w->last[i] : INT32_MAX;
    }
}

static void point(fv_choose *to, char *block, const layout *l, int64_t rows, bool kinds)
{
    int32_t *counts = (int32_t *)(block + l->counts);
    to->number = (const int64_t *)block;
    to->made = counts;
    to->ended = counts + rows;
    to->least = counts + 2 * rows;
    to->last = counts + 3 * rows;
    to->tokens = (int32_t *)(block + l->log);
    to->scores = (float *)(to->tokens + FV_WRITE_LOG * rows);
    to->kinds = kinds ? (const uint8_t *)(block + l->kinds) : NULL;
}

/* All that a kept step depends on. */
static bool alike(const fv_choose *a, const fv_choose *b)
{
    return a->rows == b->rows && a->V == b->V && a->number == b->number && a->kinds == b->kinds &&
           a->first_is == b->first_is && a->last_is == b->last_is && a->pad == b->pad &&
           a->draw == b->draw && a->temperature == b->temperature && a->top_p == b->top_p &&
           a->min_p == b->min_p && a->top_k == b->top_k && a->seed == b->seed;
}

bool fv__write_begin(fv_ctx *c, fv_session *s, const fv_writer *w)
{
    int64_t rows = s->rows, V = w->how.V;
    layout l = lay_out(rows, V);
    void *host = s->host;
    const fv_backend *b = s->dev->backend;
    if (fv__failed(c) || !fv__session_hold(c, s, &s->writing, FV_U8, FV_SHAPE((int64_t)l.all), 0))
        return false;
    if (!fv__grow(&s->env, &host, &s->host_bytes, l.kinds))
        return fv_raise(c, FV_ENOMEM, "session: out of memory") != NULL;
    s->host = host;
    fill(host, &l, w, rows);
    b->upload(&c->stream, s->writing.t.data, host, l.log);
    if (w->kinds) b->upload(&c->stream, (char *)s->writing.t.data + l.kinds, w->kinds, (size_t)V);
    fv_choose now = w->how;
    now.rows = rows;
    now.log = FV_WRITE_LOG;
    now.places = 3; /* pos, lens and shifted lie one behind the other */
    point(&now, s->writing.t.data, &l, rows, w->kinds != NULL);
    if (!alike(&now, &s->choose)) s->version++;
    s->choose = now;
    s->written = w->made;
    return !fv__failed(c);
}

static void choose(fv_ctx *c, void *user, fv_tensor *logits)
{
    const fv_session *s = user;
    const fv_kernels *k = s->dev->k[logits->dtype];
    fv_choose a = s->choose;
    a.logits = logits->data;
    a.token = s->here.ids.data;
    a.place = s->here.pos.data;
    if (!k->choose(&c->stream, &a))
        fv_raise(c, FV_EMISSING, "choose: not from %s", fv_desc(logits).s);
}

bool fv__write_run(fv_ctx *c, fv_session *s, const int32_t *ids, int64_t n, int32_t *tokens,
                   float *scores)
{
    int64_t rows = s->rows;
    size_t bytes = FV_WRITE_LOG * (size_t)rows * sizeof(int32_t);
    for (int64_t i = 0; i < n; i++)
        if (!fv__session_again(c, s, i ? NULL : ids, FV_STEP_CHOOSE, choose, s)) return false;
    s->dev->backend->download(&c->stream, s->host, s->choose.tokens, 2 * bytes);
    if (fv__failed(c)) return false;
    const float *log = (const float *)(s->host + FV_WRITE_LOG * rows);
    for (int64_t i = 0; i < n; i++) {
        int64_t at = (s->written + i) % FV_WRITE_LOG * rows;
        memcpy(tokens + i * rows, s->host + at, (size_t)rows * sizeof *tokens);
        if (scores) memcpy(scores + i * rows, log + at, (size_t)rows * sizeof *scores);
    }
    /* rows that ended will leave */
    for (int64_t i = 0; i < rows; i++) s->len[i] += (int32_t)(n - (ids != NULL));
    s->written += n;
    return true;
}

/* ---- the likeliest tokens, without rules ---- */

static void likeliest(fv_ctx *c, void *user, fv_tensor *logits)
{
    *(fv_tensor **)user = fv_argmax(c, logits, -1);
}

static bool write_by_host(fv_ctx *c, fv_session *s, const int32_t *ids, int32_t *out, int64_t n)
{
    fv_tensor *best = NULL;
    bool ok = true;
    for (int64_t i = 0; i < n && ok; i++, ids = out, out += s->rows)
        ok = fv__session_again(c, s, ids, FV_STEP_LIKELIEST, likeliest, &best) &&
             !fv_read_i32(c, best, out, s->rows);
    return ok;
}

fv_status fv_session_write(fv_ctx *c, fv_session *s, const int32_t *ids, int32_t *out, int64_t n)
{
    int64_t V = fv_model_family(s->model)->vocabulary(fv_model_self(s->model));
    for (int64_t i = 0; i < s->rows; i++)
        if (s->len[i] + n > s->cap) {
            fv_raise(c, FV_EARG,
                     "session: row %lld has %d tokens and room for %lld, not for %lld more",
                     (long long)i, s->len[i], (long long)s->cap, (long long)n);
            return fv_ctx_err(c)->code;
        }
    if (!fv__write_can(s, c->dtype))
        return write_by_host(c, s, ids, out, n) ? FV_OK : fv_ctx_err(c)->code;
    fv_writer w = {.how = {.V = V, .first_is = -1, .last_is = -1, .temperature = 1, .top_p = 1}};
    bool ok = fv__write_begin(c, s, &w);
    for (int64_t at = 0, run; at < n && ok; at += run) {
        run = n - at < FV_WRITE_LOG ? n - at : FV_WRITE_LOG;
        ok = fv__write_run(c, s, at ? NULL : ids, run, out + at * s->rows, NULL);
    }
    return ok ? FV_OK : fv_ctx_err(c)->code;
}
