/* recognise.c - a sound's frames through the encoder of a CTC model or a transducer, whole or chunk
 * by chunk, and into a search.
 *
 * The state of a stream is on the host: keys and values of left_context frames for each layer, a
 * few hundred kilobytes that go to the device with each chunk.  In memory of the device they would
 * save a copy of 0.1 ms a chunk, of which there are four a second. */
#include "gen/recognise.h"

#include "model/part.h"

enum { MOST_BEAMS = 64 };

fv_status fv__recognise_failed(const fv_recogniser *r, fv_err *e)
{
    return fv_fail(e, fv_ctx_err(r->ctx)->code, "%s", fv_ctx_err(r->ctx)->text);
}

fv_status fv__recognise_read(fv_recogniser *r, fv__floats *to, const fv_tensor *y,
                             const float **out, fv_err *e)
{
    void *host = to->x;
    size_t bytes = (size_t)fv_len(y) * sizeof(float);
    if (!fv__grow(r->env, &host, &to->bytes, bytes))
        return fv_fail(e, FV_ENOMEM, "recogniser: out of memory for %zu bytes", bytes);
    to->x = host;
    *out = host;
    return fv_read(r->ctx, y, host, fv_len(y)) ? fv__recognise_failed(r, e) : FV_OK;
}

int64_t fv_model_stream_chunk(const fv_model *m, int64_t *left)
{
    const fv_family *f = fv_model_family(m);
    if (!f->stream) return 0;
    fv_stream_shape s = f->stream(fv_model_self(m));
    if (left) *left = s.left;
    return s.chunk;
}

static size_t past_bytes(const fv_recogniser *r)
{
    const fv_stream_shape *s = &r->shape;
    return (size_t)(2 * s->layers * (s->left + s->chunk) * s->width) * sizeof(float);
}

static int64_t beams_of(const fv_recogniser *r) { return r->opt.beams > 1 ? r->opt.beams : 1; }

fv_status fv_recogniser_new(fv_recogniser **out, fv_device *d, const fv_model *m,
                            fv_recognise_opt opt, fv_err *e)
{
    const fv_env *env = fv_device_env(d);
    const fv_family *f = fv_model_family(m);
    bool ctc = fv_model_job(m) == FV_HEAD_CTC;
    *out = NULL;
    if (!ctc && fv_model_job(m) != FV_HEAD_TRANSDUCER)
        return fv_fail(e, FV_EARG, "%s: its head is neither CTC's nor a transducer's",
                       fv_model_head(m));
    if (opt.stream && !f->stream)
        return fv_fail(e, FV_EARG, "%s hears whole recordings, no streams", f->type);
    if (opt.beams > MOST_BEAMS || (ctc && opt.beams > 1))
        return fv_fail(e, FV_EARG, "%lld beams: %s", (long long)opt.beams,
                       ctc ? "CTC is searched greedily" : "at most 64");
    fv_recogniser *r = fv__alloc(env, sizeof *r);
    if (!r) return fv_fail(e, FV_ENOMEM, "recogniser: out of memory");
    *r = (fv_recogniser){.env = env, .model = m, .opt = opt};
    if (!opt.input) r->opt.input = "input_features";
    if (f->stream) r->shape = f->stream(fv_model_self(m));
    r->waiting.env = env;
    if (opt.stream) r->past = fv__alloc(env, past_bytes(r));
    r->best = fv__alloc(env, 2 * (size_t)beams_of(r) * sizeof *r->best);
    fv_status st = fv_ctx_new(&r->ctx, d, (fv_ctx_opt){.dtype = fv_model_dtype(m)}, e);
    if (!st && (!r->best || (opt.stream && !r->past)))
        st = fv_fail(e, FV_ENOMEM, "recogniser: out of memory");
    for (int64_t i = 0; r->best && i < 2 * beams_of(r); i++) r->best[i].tokens.env = env;
    if (st) {
        fv_recogniser_free(r);
        return st;
    }
    fv_recogniser_reset(r);
    *out = r;
    return FV_OK;
}

void fv_recogniser_free(fv_recogniser *r)
{
    if (!r) return;
    const fv_env *env = r->env;
    fv_ctx_free(r->ctx);
    fv__buf_free(&r->waiting);
    fv__free(env, r->states.x, r->states.bytes);
    fv__free(env, r->scores.x, r->scores.bytes);
    for (int64_t i = 0; r->best && i < 2 * beams_of(r); i++) fv__buf_free(&r->best[i].tokens);
    fv__free(env, r->best, 2 * (size_t)beams_of(r) * sizeof *r->best);
    fv__free(env, r->past, r->past ? past_bytes(r) : 0);
    fv__free(env, r, sizeof *r);
}

void fv_recogniser_reset(fv_recogniser *r)
{
    r->waiting.len = 0;
    r->past_n = r->position = 0;
    r->n = 1;
    r->last = r->opt.blank;
    r->best[0].tokens.len = 0;
    r->best[0].score = 0;
}

const fv_recognised *fv_recogniser_tokens(const fv_recogniser *r, int64_t *n)
{
    *n = fv__hypothesis_n(&r->best[0]);
    return fv__hypothesis_at(&r->best[0]);
}

int64_t fv_recogniser_frames(const fv_recogniser *r) { return r->position; }

/* ---- the encoder ---- */

/* Keys and values of earlier frames, and where this chunk's go. */
static void put_past(fv_recogniser *r, fv_items *in, int64_t n)
{
    const fv_stream_shape *s = &r->shape;
    int32_t lens[2] = {(int32_t)r->past_n, (int32_t)(r->past_n + n)},
            *at = fv__step_memory(r->ctx, (size_t)n * sizeof *at);
    for (int64_t i = 0; at && i < n; i++) at[i] = (int32_t)(r->position + i);
    fv_items_put(in, "past",
                 fv_floats(r->ctx, r->past, FV_SHAPE(2 * s->layers, s->left + s->chunk, s->width)));
    fv_items_put(in, "past_lengths", fv_ints(r->ctx, lens, FV_SHAPE(2)));
    if (at) fv_items_put(in, "position_ids", fv_ints(r->ctx, at, FV_SHAPE(1, n)));
}

/* The last `left` rows of what is there now are what the next chunk sees. */
static fv_status keep_past(fv_recogniser *r, const fv_items *out, int64_t n, fv_err *e)
{
    const fv_stream_shape *s = &r->shape;
    const fv_tensor *present = fv_items_get(out, "present");
    int64_t rows = s->left + s->chunk, have = r->past_n + n, keep = have < s->left ? have : s->left;
    if (fv_read(r->ctx, present, r->past, 2 * s->layers * rows * s->width))
        return fv__recognise_failed(r, e);
    for (int64_t i = 0; keep < have && i < 2 * s->layers; i++) {
        float *at = r->past + i * rows * s->width;
        memmove(at, at + (have - keep) * s->width, (size_t)(keep * s->width) * sizeof *at);
    }
    r->past_n = keep;
    return FV_OK;
}

/* n frames of waiting, from frame `from` on. */
static fv_status encode(fv_recogniser *r, int64_t from, int64_t n, fv_err *e)
{
    fv_items in = {0}, out = {0};
    fv_ctx *c = r->ctx;
    const float *x = (const float *)(const void *)r->waiting.data + from * r->width;
    bool samples = !strcmp(r->opt.input, "input_values"),
         ctc = fv_model_job(r->model) == FV_HEAD_CTC;
    fv_ctx_reset(c, 0);
    fv_items_put(&in, r->opt.input,
                 fv_floats(c, x, samples ? FV_SHAPE(1, n) : FV_SHAPE(1, n, r->width)));
    if (r->opt.stream) put_past(r, &in, n);
    fv_model_forward(c, r->model, &in, &out);
    const fv_tensor *y = fv_items_get(&out, ctc ? "logits" : "encoder_last_hidden_state");
    if (!y || fv_ctx_status(c)) return fv__recognise_failed(r, e);
    int64_t frames = fv_dim(y, 1), width = fv_dim(y, 2);
    const float *host;
    fv_status st = fv__recognise_read(r, &r->states, y, &host, e);
    if (!st && r->opt.stream) st = keep_past(r, &out, n, e);
    if (st) return st;
    if (ctc)
        st = fv__recognise_ctc(r, host, frames, width, e);
    else if (r->opt.beams > 1)
        st = fv__recognise_beams(r, host, frames, width, e);
    else
        st = fv__recognise_greedy(r, host, frames, width, e);
    r->position += frames;
    return st;
}

static int64_t waiting(const fv_recogniser *r)
{
    return r->width ? (int64_t)(r->waiting.len / sizeof(float)) / r->width : 0;
}

fv_status fv_recogniser_add(fv_recogniser *r, const float *x, int64_t n, int64_t width, fv_err *e)
{
    int64_t from = 0, chunk = r->shape.chunk;
    fv_status st = FV_OK;
    if (r->waiting.len && width != r->width)
        return fv_fail(e, FV_EARG, "recogniser: frames of %lld numbers, then of %lld",
                       (long long)r->width, (long long)width);
    r->width = width;
    fv__buf_add(&r->waiting, x, (size_t)(n * width) * sizeof *x);
    if (r->waiting.failed) return fv_fail(e, FV_ENOMEM, "recogniser: out of memory");
    for (; !st && r->opt.stream && waiting(r) - from >= chunk; from += chunk)
        st = encode(r, from, chunk, e);
    if (from) {
        size_t gone = (size_t)(from * width) * sizeof *x;
        memmove(r->waiting.data, r->waiting.data + gone, r->waiting.len - gone);
        r->waiting.len -= gone;
    }
    return st;
}

fv_status fv_recogniser_end(fv_recogniser *r, fv_err *e)
{
    int64_t n = waiting(r);
    fv_status st = n ? encode(r, 0, n, e) : FV_OK;
    r->waiting.len = 0;
    return st;
}
