/* sample_device.c - runs of decode steps in which the device samples and feeds tokens back.
 *
 * A step of a small model takes less than a round trip to the host.  So the sampling kernel leaves
 * the chosen token where the next step reads its input, counts and remembers it in a log of
 * FV_SAMPLE_LOG steps, and the host starts several steps before it reads the log.  What the kernel
 * needs lies in one block of device memory that belongs to the session: addresses stay, so a step
 * captured as a graph can be replayed. */
#include "base/base.h"
#include "model/session.h"
#include "fovea/author/family.h"

bool fv__sampler_supported(const fv_session *s, fv_dtype t)
{
    return (unsigned)t < FV_FLOATS && s->dev->k[t] && s->dev->k[t]->sample;
}

/* Byte offsets in that block: per row its number and four counters, the log, per token its flags.
 */
typedef struct layout {
    size_t number, counts, log, token_flags, all;
} layout;

static layout set_layout(int64_t rows, int64_t V)
{
    layout l = {.counts = (size_t)rows * sizeof(int64_t)};
    l.log = l.counts + 4 * (size_t)rows * sizeof(int32_t);
    l.token_flags = l.log + 2 * FV_SAMPLE_LOG * (size_t)rows * sizeof(int32_t);
    l.all = l.token_flags + (size_t)V;
    return l;
}

/* Fills a host copy of the block up to the log: for each row its number, then the arrays made,
 * ended, min_new and max_new. */
static void fill(char *block, const layout *l, const fv_sampler *w, int64_t rows)
{
    int64_t *number = (int64_t *)block;
    int32_t *made = (int32_t *)(block + l->counts), *ended = made + rows, *min_new = ended + rows,
            *max_new = min_new + rows;
    for (int64_t i = 0; i < rows; i++) {
        number[i] = w->number ? w->number[i] : i;
        made[i] = w->made;
        ended[i] = 0;
        min_new[i] = w->min_new ? w->min_new[i] : 0;
        max_new[i] = w->max_new ? w->max_new[i] : INT32_MAX;
    }
}

/* Addresses in the block, for the kernel. */
static void point(fv_sample *to, char *block, const layout *l, int64_t rows, bool token_flags)
{
    int32_t *counts = (int32_t *)(block + l->counts);
    to->number = (const int64_t *)block;
    to->made = counts;
    to->ended = counts + rows;
    to->min_new = counts + 2 * rows;
    to->max_new = counts + 3 * rows;
    to->tokens = (int32_t *)(block + l->log);
    to->scores = (float *)(to->tokens + FV_SAMPLE_LOG * rows);
    to->token_flags = token_flags ? (const uint8_t *)(block + l->token_flags) : NULL;
}

/* Whether a captured step can be replayed: equal in all that its kernels were launched with. */
static bool alike(const fv_sample *a, const fv_sample *b)
{
    return a->rows == b->rows && a->V == b->V && a->number == b->number &&
           a->token_flags == b->token_flags && a->forced_first == b->forced_first &&
           a->forced_last == b->forced_last && a->pad == b->pad && a->do_sample == b->do_sample &&
           a->temperature == b->temperature && a->top_p == b->top_p && a->min_p == b->min_p &&
           a->top_k == b->top_k && a->seed == b->seed;
}

/* Settings that differ from those captured change the version, so that the step is captured anew.
 */
bool fv__sampler_begin(fv_ctx *c, fv_session *s, const fv_sampler *w)
{
    int64_t rows = s->rows, V = w->how.V;
    layout l = set_layout(rows, V);
    void *host = s->host;
    const fv_backend *b = s->dev->backend;
    if (fv__failed(c) ||
        !fv__session_reserve(c, s, &s->sampler_block, FV_U8, FV_SHAPE((int64_t)l.all), 0))
        return false;
    if (!fv__grow(&s->env, &host, &s->host_bytes, l.token_flags))
        return fv_raise(c, FV_ENOMEM, "session: out of memory") != NULL;
    s->host = host;
    fill(host, &l, w, rows);
    b->upload(&c->stream, s->sampler_block.t.data, host, l.log);
    if (w->token_flags)
        b->upload(&c->stream, (char *)s->sampler_block.t.data + l.token_flags, w->token_flags,
                  (size_t)V);
    fv_sample now = w->how;
    now.rows = rows;
    now.log = FV_SAMPLE_LOG;
    now.n_positions = 3; /* pos, lens and shifted lie one behind the other */
    point(&now, s->sampler_block.t.data, &l, rows, w->token_flags != NULL);
    if (!alike(&now, &s->sample)) s->version++;
    s->sample = now;
    s->sampled = w->made;
    return !fv__failed(c);
}

static void sample_step(fv_ctx *c, void *user, fv_tensor *logits)
{
    const fv_session *s = user;
    const fv_kernels *k = s->dev->k[logits->dtype];
    fv_sample a = s->sample;
    a.logits = logits->data;
    a.token = s->step_inputs.ids.data;
    a.position = s->step_inputs.pos.data;
    if (!k->sample(&c->stream, &a))
        fv_raise(c, FV_EMISSING, "choose: not from %s", fv_desc(logits).s);
}

bool fv__sampler_run(fv_ctx *c, fv_session *s, const int32_t *ids, int64_t n, int32_t *tokens,
                     float *scores)
{
    int64_t rows = s->rows;
    size_t bytes = FV_SAMPLE_LOG * (size_t)rows * sizeof(int32_t);
    for (int64_t i = 0; i < n; i++)
        if (!fv__session_replay(c, s, i ? NULL : ids, FV_STEP_SAMPLE, sample_step, s)) return false;
    s->dev->backend->download(&c->stream, s->host, s->sample.tokens, 2 * bytes);
    if (fv__failed(c)) return false;
    const float *log = (const float *)(s->host + FV_SAMPLE_LOG * rows);
    for (int64_t i = 0; i < n; i++) {
        int64_t at = (s->sampled + i) % FV_SAMPLE_LOG * rows;
        memcpy(tokens + i * rows, s->host + at, (size_t)rows * sizeof *tokens);
        if (scores) memcpy(scores + i * rows, log + at, (size_t)rows * sizeof *scores);
    }
    s->sampled += n;
    return true;
}

/* ---- greedy, without processors ---- */

static void likeliest(fv_ctx *c, void *user, fv_tensor *logits)
{
    *(fv_tensor **)user = fv_argmax(c, logits, -1);
}

static bool greedy_on_host(fv_ctx *c, fv_session *s, const int32_t *ids, int32_t *out, int64_t n)
{
    fv_tensor *best = NULL;
    bool ok = true;
    for (int64_t i = 0; i < n && ok; i++, ids = out, out += s->rows)
        ok = fv__session_replay(c, s, ids, FV_STEP_GREEDY, likeliest, &best) &&
             !fv_read_i32(c, best, out, s->rows);
    return ok;
}

/* In runs as long as the log, or step by step through the host where there is no such kernel. */
fv_status fv_session_greedy(fv_ctx *c, fv_session *s, const int32_t *ids, int32_t *out, int64_t n)
{
    int64_t V = fv_model_family(s->model)->vocabulary(fv_model_self(s->model));
    for (int64_t i = 0; i < s->rows; i++)
        if (s->len[i] + n > s->cap) {
            fv_raise(c, FV_EARG,
                     "session: row %lld has %d tokens and a capacity of %lld, not of %lld more",
                     (long long)i, s->len[i], (long long)s->cap, (long long)n);
            return fv_ctx_err(c)->code;
        }
    if (!fv__sampler_supported(s, c->dtype))
        return greedy_on_host(c, s, ids, out, n) ? FV_OK : fv_ctx_err(c)->code;
    fv_sampler w = {
        .how = {.V = V, .forced_first = -1, .forced_last = -1, .temperature = 1, .top_p = 1}};
    bool ok = fv__sampler_begin(c, s, &w);
    for (int64_t at = 0, run; at < n && ok; at += run) {
        run = n - at < FV_SAMPLE_LOG ? n - at : FV_SAMPLE_LOG;
        ok = fv__sampler_run(c, s, at ? NULL : ids, run, out + at * s->rows, NULL);
    }
    return ok ? FV_OK : fv_ctx_err(c)->code;
}
